#!/usr/bin/env bash
# Runs the recipe `gpu` on a GPU machine that is lent for minutes. The machine starts bare, gets this tree and up to
# 64 MiB per call, ends a call after ten minutes, keeps files that git ignores between calls, and returns at most 8 files
# of 16 MiB.
#   benchmarks/gpu.sh STAGE...   runs stages one after the other within LIMIT seconds (570). A stage that runs out of
#                                time exits with status 130 and continues in the next call; a finished one is skipped.
#   1  here   gpu.sh prepare baselines wheels pack
#                                          token ids, figures of the baselines, and packages that the machine lacks, to
#                                          runs/gpu/pack/1, 2, ...
#   2  there  gpu.sh receive               with runs/gpu/pack/1, then with 2, ...; `receive pretrain` with the last
#   3  there  gpu.sh pretrain finetune     until it no longer prints "call again"
#   4  there  gpu.sh export-1              then export-2, ...; after each, here: FROM=folder/of/OUT gpu.sh join, which
#                                          leaves the checkpoints and the report in WORK/result
#   5  there  gpu.sh test bench            in the remaining time
# The machine is lent for 15 minutes including its start and all transfers, so the recipe needs a smaller budget:
# OVERRIDES="pretrain.minutes=5 finetune.epochs=2 finetune.seeds=[1]" in steps 1 to 4. Delete model/weights from the
# working tree before step 1 and restore them after it: the tree then takes 3 of the 64 MiB. Export before the time ends,
# finished or not: everything else on the machine is lost.
# DATA: the texts. WORK: all that is made (runs/gpu/work). PACK: pieces to send (runs/gpu/pack). OUT: what comes back
# (runs/gpu/out). OVERRIDES: more for the recipe, "pretrain.minutes=12 ...". DRY_RUN=1 without a stage rehearses all of
# it on the CPU in WORK, with some hundred documents and seconds of training.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

DRY_RUN=${DRY_RUN:-}
ROOT=runs/gpu${DRY_RUN:+-rehearsal}
DATA=${DATA:-../shared/data} WORK=${WORK:-$ROOT/work} PACK=${PACK:-$ROOT/pack} OUT=${OUT:-$ROOT/out}
PYTHON=${PYTHON:-$([[ -x .venv/bin/python ]] && echo .venv/bin/python || echo python3)}
TARGET_PYTHON=${TARGET_PYTHON:-3.12}
LACKING=${LACKING:-pydantic pydantic_core annotated-types typing-inspection typing_extensions sentencex fastapi
    fastapi-swagger starlette uvicorn opentelemetry-api pytest-asyncio nltk defusedxml}
DEADLINE=$((SECONDS + ${LIMIT:-570}))
MIB=$((1024 * 1024))
TRANSFER=$((64 * MIB)) PART=$((15 * MIB)) PARTS=4  # PARTS of one call fit 64 MiB too
CHANGES=()
if [[ $DRY_RUN ]]; then
    CHANGES+=(device=cpu tokenizer.vocab_size=400 model.preset=tiny model.num_hidden_layers=2 micro_batch_tokens=512
        pretrain.tokens=20480 pretrain.batch_tokens=512 finetune.batch_tokens=512 finetune.epochs=0.5)
else
    CHANGES+=(device=cuda) # without a GPU, an error at once
fi
read -ra more <<<"${OVERRIDES:-}"
CHANGES+=("${more[@]}")
export PYTHONPATH="$PWD/client${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 TQDM_MININTERVAL=${TQDM_MININTERVAL:-60}

say() { echo "gpu.sh: $*" >&2; }
fail() { say "$@"; exit 1; }
again() { say "$1: out of time; call again"; exit 130; }

limited() { # STAGE COMMAND...: SIGTERM when the time of this call is over
    local stage=$1 left=$((DEADLINE - SECONDS)) status=0
    shift
    ((left > 5)) || again "$stage"
    timeout --foreground --kill-after=25 "$left" "$@" 2>&1 | tee -a "$OUT/$stage.log" || status=$?
    ((status != 124 && status != 130)) || again "$stage"
    return "$status"
}

training() { # STAGE COMMAND,COMMAND... KEY=VALUE...: `python -m training`, several commands in one process; once
    local stage=$1 finished="$WORK/finished/$1" asked
    shift
    asked="$* ${CHANGES[*]} $(cksum <training/recipes/gpu.toml)"
    if [[ -f $finished && $(<"$finished") == "$asked" ]]; then
        say "$stage: already done"
        return
    fi
    limited "$stage" "$PYTHON" -c 'import sys
from training.__main__ import main
for command in sys.argv[1].split(","):
    if status := main([command, *sys.argv[2:]]):
        sys.exit(status)' "$1" gpu "run=$WORK" "${@:2}" "${CHANGES[@]}"
    echo "$asked" >"$finished"
}

labelled() { # paths of the texts that finetune and evaluate read
    "$PYTHON" -c 'from training.recipe import load_recipe
tuning = load_recipe("gpu").finetune
print(*sorted({source.path for source in (*tuning.train, *tuning.test) if source.path}), sep="\n")'
}

sample() { # the beginning of every file
    "$PYTHON" -c 'import lzma, pathlib, sys
given, made = map(pathlib.Path, sys.argv[1:])
for file in sorted(given.glob("*/*.jsonl.xz")):
    target = made / file.relative_to(given)
    target.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(file, "rt") as lines, lzma.open(target, "wt", preset=0) as some:
        size = 0
        for line in lines:
            some.write(line)
            if (size := size + len(line)) > 300_000:
                break' "$1" "$2"
}

packages() { # install the packages that were sent, and use them
    if [[ ! -d $WORK/site ]] && compgen -G "$WORK/wheels/*.whl" >/dev/null; then
        "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --target "$WORK/site.part" "$WORK"/wheels/*.whl
        mv "$WORK/site.part" "$WORK/site"
    fi
    local site
    site=$(realpath "$WORK")/site
    [[ ! -d $site || :${PYTHONPATH:-}: == *:$site:* ]] || export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
}

on_machine() { # what training and tests need on the machine
    packages
    TORCHINDUCTOR_CACHE_DIR=$(realpath "$WORK")/inductor # later calls reuse what this one compiles
    export TORCHINDUCTOR_CACHE_DIR
    ulimit -n "$(ulimit -Hn)"
    local shared
    shared=$(df --output=avail -m /dev/shm | tail -1)
    if ((shared < 512)) && ! mount -o remount,size=4g /dev/shm 2>/dev/null; then # loader workers put batches there
        say "/dev/shm has only $shared MB: three cores are used, so that only two workers make batches"
        taskset -cp 0-2 $$ >/dev/null
    fi
    nvidia-smi -L 2>/dev/null || say "no GPU"
}

stage_prepare() {
    if [[ $DRY_RUN ]]; then
        [[ -d $WORK/sample ]] || sample "$DATA" "$WORK/sample"
        DATA=$WORK/sample
    fi
    rm -f "$WORK/finished/prepare" # it finds out itself what is up to date
    training prepare tokenizer,prepare "data=$DATA"
}

stage_baselines() { # takes minutes on a CPU, and nothing on the machine: evaluate reads baselines.json
    [[ ! $DRY_RUN ]] || DATA=$WORK/sample
    limited baselines "$PYTHON" -c 'import sys
from training.recipe import load_recipe
from training.report.baselines import evaluate_baselines, read_test
recipe = load_recipe("gpu", sys.argv[1:])
evaluate_baselines(recipe, read_test(recipe))' "run=$WORK" "data=$DATA" "${CHANGES[@]}"
}

stage_wheels() {
    local platform platforms=()
    for platform in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014; do
        platforms+=(--platform "${platform}_x86_64")
    done
    mkdir -p "$WORK/packed/wheels"
    # shellcheck disable=SC2086  # several names
    "$PYTHON" -m pip download -q --no-deps --only-binary=:all: --python-version "$TARGET_PYTHON" --implementation cp \
        "${platforms[@]}" -c constraints.txt -d "$WORK/packed/wheels" $LACKING
}

stage_pack() {
    local run=$WORK/gpu packed=$WORK/packed data=$DATA tree room piece number=0
    [[ -f $run/corpus/manifest.json ]] || fail "pack: run prepare first"
    [[ ! $DRY_RUN ]] || data=$WORK/sample
    mkdir -p "$packed/wheels"
    local corpus=(-C "$run" corpus tokenizer)
    # ids have two bytes, starts have four and grow slowly: each gets its own compression
    if [[ ! $packed/ids -nt $run/corpus/manifest.json ]]; then # takes minutes; the others take seconds
        tar -c --exclude='*.json' --exclude=documents.npy --exclude=sentences.npy "${corpus[@]}" |
            xz -T0 --lzma2=preset=9e,dict=64MiB,lc=3,lp=1,pb=1 >"$packed/ids.part"
        mv "$packed/ids.part" "$packed/ids"
    fi
    tar -c --exclude='*.json' --exclude=tokens.npy "${corpus[@]}" |
        xz --delta=dist=4 --lzma2=preset=9e,lc=0,lp=2,pb=2 >"$packed/starts"
    [[ ! -f $run/baselines.json ]] || corpus+=(baselines.json)
    tar -c --exclude='*.npy' "${corpus[@]}" | xz -9e >"$packed/rest"
    labelled | tar -c -C "$data" -T - >"$packed/texts"
    # `du` fails for files that were deleted from the working tree; they are not sent
    tree=$(git ls-files -coz --exclude-standard | { xargs -0 du -cb 2>/dev/null || true; } |
        awk '$2 == "total" { sum += $1 } END { print sum }')
    room=$((TRANSFER - tree - $(du -sb "$packed/wheels" | cut -f1) - MIB))
    [[ ! $DRY_RUN ]] || room=$(($(cat "$packed"/{ids,starts,rest,texts} | wc -c) / 3 + 1))
    ((room > MIB || DRY_RUN)) || fail "pack: the tree alone has $tree bytes of $TRANSFER"
    rm -rf "$PACK"
    mkdir -p "$PACK"
    tar -c -C "$packed" ids starts rest texts | split -b "$room" -d -a 2 - "$PACK/piece-"
    (cd "$PACK" && sha256sum piece-*) >"$packed/pieces"
    for piece in "$PACK"/piece-*; do
        number=$((number + 1))
        mkdir "$PACK/$number"
        mv "$piece" "$PACK/$number/"
        cp "$packed/pieces" "$PACK/$number/"
    done
    cp -r "$packed/wheels" "$PACK/1/"
    say "pack: the tree has $((tree / MIB)) MiB; send $number folders, one a call:" "$PACK"/*
    du -sm "$packed"/{ids,starts,rest,texts,wheels} >&2
}

stage_receive() {
    local got=$WORK/received
    if [[ -d $WORK/data ]]; then
        say "receive: already done"
        return
    fi
    mkdir -p "$got"
    cp "$PACK"/*/piece* "$got/"
    [[ ! -d $PACK/1/wheels ]] || cp -r "$PACK/1/wheels" "$WORK/"
    (cd "$got" && sha256sum --quiet --ignore-missing -c pieces) || fail "receive: damaged on the way; send it again"
    say "receive: $(find "$got" -name 'piece-*' | wc -l) of $(wc -l <"$got/pieces") pieces are here"
    [[ $(find "$got" -name 'piece-*' | wc -l) == "$(wc -l <"$got/pieces")" ]] || return 0
    cat "$got"/piece-* | tar -x -C "$got"
    mkdir -p "$WORK/gpu" "$got/data"
    tar -x -C "$got/data" -f "$got/texts"
    local part
    for part in ids starts rest; do
        "$PYTHON" -c 'import lzma, shutil, sys
shutil.copyfileobj(lzma.open(sys.argv[1]), sys.stdout.buffer)' "$got/$part" | tar -x -C "$WORK/gpu"
    done
    packages
    "$PYTHON" -c 'import pathlib, sys
from training.corpus.reader import PreparedText
for manifest in pathlib.Path(sys.argv[1]).glob("*/**/manifest.json"):
    text = PreparedText.open(manifest.parent)
    assert all(shard.is_intact(text.folder) for shard in text.shards), manifest' "$WORK/gpu/corpus"
    mv "$got/data" "$WORK/data"
    rm -r "$got"
}

stage_pretrain() {
    training pretrain pretrain "data=$WORK/data"
}

stage_finetune() {
    training finetune finetune,evaluate,export "data=$WORK/data"
}

stage_export() { # NUMBER: the NUMBERth delivery of parts
    local run=$WORK/gpu parts=$WORK/parts number=$1 part
    if [[ ! -d $parts ]]; then
        rm -f "$WORK/finished/export" # there may be more to export than before
        (training export export "data=$WORK/data") || say "export: no model yet; logs only"
        mkdir -p "$parts.part"
        (cd "$run" && { # whatever is there: the time may have ended before some of it was made
            find export {pretrain,finetune/seed-*}/{log.jsonl,recipe.json} finetune/results.json report.* ./*.png \
                -type f 2>/dev/null || true
        } | tar -c -T -) >"$WORK/result.tar"
        [[ ! $DRY_RUN ]] || PART=$(($(wc -c <"$WORK/result.tar") / 6 + 1))
        split -b "$PART" -d -a 2 "$WORK/result.tar" "$parts.part/part-"
        (cd "$parts.part" && sha256sum part-*) >"$WORK/parts.sums"
        mv "$WORK/parts.sums" "$parts.part/sums"
        mv "$parts.part" "$parts"
    fi
    local all=("$parts"/part-*)
    for part in "${all[@]:(number - 1) * PARTS:PARTS}"; do
        cp "$part" "$OUT/"
    done
    cp "$parts/sums" "$OUT/"
    say "export: delivery $number of $(((${#all[@]} + PARTS - 1) / PARTS)); delete $parts to export again"
}

stage_join() {
    local joined=$WORK/joined missing
    mkdir -p "$joined"
    cp "${FROM:-$OUT}"/{part-*,sums} "$joined/"
    missing=$(cut -c67- "$joined/sums" | while read -r part; do [[ -f $joined/$part ]] || echo "$part"; done)
    (cd "$joined" && sha256sum --quiet --ignore-missing -c sums) || fail "join: damaged on the way; export it again"
    if [[ $missing ]]; then
        say "join: still missing:" "${missing//$'\n'/ }"
        return
    fi
    mkdir -p "$WORK/result"
    cat "$joined"/part-* | tar -x -C "$WORK/result"
    say "join: complete; see $WORK/result"
}

stage_test() { # tests that are skipped without a GPU
    local files
    mapfile -t files < <(grep -rl --include='test_*.py' 'mark\.cuda' tests)
    limited test "$PYTHON" -m pytest -q -m cuda -W default -p no:cacheprovider "${files[@]}"
}

stage_bench() {
    local preset=base batch=256
    [[ ! $DRY_RUN ]] || preset=tiny batch=4
    limited bench "$PYTHON" -m training bench "$preset" --length 128 --batch "$batch" --steps 20
    limited bench "$PYTHON" -m benchmarks.ceiling --preset "$preset" --length 128
    limited bench "$PYTHON" -m benchmarks.ceiling --preset "$preset" --length 28 --tokens 28 112 448 --rounds 50
}

rehearse() { # both machines in WORK, one piece per call
    local base=$WORK piece number
    rm -rf "$base"
    WORK=$base/here PACK=$base/pack OUT=$base/out "$0" prepare baselines pack
    for piece in "$base"/pack/*; do
        mkdir "$base/sent"
        cp -r "$piece" "$base/sent/"
        WORK=$base/there PACK=$base/sent OUT=$base/out "$0" receive
        rm -r "$base/sent"
    done
    WORK=$base/there OUT=$base/out "$0" pretrain finetune
    for number in 1 2; do
        rm -r "$base/out"
        WORK=$base/there OUT=$base/out "$0" "export-$number"
        WORK=$base/here FROM=$base/out OUT=$base/out "$0" join
    done
    [[ ${REHEARSE:-all} != all ]] || WORK=$base/there OUT=$base/out "$0" test bench
}

if [[ $# == 0 && $DRY_RUN ]]; then
    rehearse
    exit
fi
(($#)) || { sed -n '2,/^set/s/^# \?//p' "$0" && exit 2; }
mkdir -p "$OUT" "$WORK/finished"
for stage in "$@"; do
    case $stage in
    prepare | baselines | wheels | pack | receive | join) "stage_$stage" ;;
    test | bench | pretrain | finetune)
        on_machine
        "stage_$stage"
        ;;
    export-[1-9])
        on_machine
        stage_export "${stage#export-}"
        ;;
    *) fail "no stage $stage; without one, gpu.sh explains itself" ;;
    esac
done
