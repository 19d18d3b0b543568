#!/usr/bin/env bash
# Runs the recipe `gpu` on a GPU machine that is lent for minutes. The machine starts bare, gets this tree and up to
# 64 MiB per call, ends a call after ten minutes, keeps files that git ignores between calls, and returns at most 8
# files of 16 MiB.
#   benchmarks/gpu.sh STAGE...   runs stages one after the other within LIMIT seconds (570). A stage that runs out of
#                                time exits with status 130 and continues in the next call; a finished one is skipped.
#   1  here   gpu.sh prepare wheels pack   token ids, and packages that the machine lacks, to runs/gpu/pack/1, 2, ...
#   2  there  gpu.sh receive trial test    with runs/gpu/pack/1: whether everything runs, and tokens per second
#   3  there  gpu.sh receive               with runs/gpu/pack/2, ...
#   4  there  gpu.sh receive pretrain finetune   with the last piece; repeat while it prints "call again"
#   5  there  gpu.sh export-1              then export-2, ...; `serve bench` in the remaining time
#   6  here   FROM=folder/of/OUT gpu.sh join, after each export; then gpu.sh report
# The machine is lent for 15 minutes including its start and all transfers, so choose a budget by the trial's speed, in
# steps 4 to 6: OVERRIDES="pretrain.tokens=1_000_000_000". Delete model/weights from the working tree before step 1 and
# restore them after step 5: without them, the tree takes 3 of the 64 MiB of each call. Export before the time ends,
# finished or not: everything else on the machine is lost.
# DATA: the texts. WORK: all that is made (runs/gpu/work). PACK: pieces to send (runs/gpu/pack). OUT: what comes back
# (runs/gpu/out). OVERRIDES: more for the recipe. DRY_RUN=1 without a stage rehearses all of it on the CPU in WORK, with
# some hundred documents and seconds of training.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
SELF=$PWD/benchmarks/gpu.sh

DRY_RUN=${DRY_RUN:-}
ROOT=runs/gpu${DRY_RUN:+-rehearsal}
DATA=${DATA:-../shared/data} WORK=${WORK:-$ROOT/work} PACK=${PACK:-$ROOT/pack} OUT=${OUT:-$ROOT/out}
PYTHON=${PYTHON:-$([[ -x .venv/bin/python ]] && echo .venv/bin/python || echo python3)}
TARGET_PYTHON=${TARGET_PYTHON:-3.12}
LACKING=${LACKING:-pydantic pydantic_core annotated-types typing-inspection typing_extensions sentencex fastapi
    fastapi-swagger starlette uvicorn httptools opentelemetry-api pytest-asyncio nltk defusedxml hypothesis}
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
    ((status != 124 && status != 130 && status != 137)) || again "$stage"
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
        sys.exit(status)' "$1" gpu "run=$WORK" "${@:2}" "${CHANGES[@]}" || return
    echo "$asked" >"$finished"
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

prepared() { # RECIPE-CHANGES...: vocabulary, text to pretrain on and labelled text, as `training` prepares them
    "$PYTHON" -c 'import sys
from training.corpus.prepare import prepare, prepare_labelled
from training.corpus.tokenizer import make_tokenizer, open_tokenizer
from training.recipe import load_recipe
if __name__ == "__main__":
    recipe = load_recipe("gpu", sys.argv[1:])
    if recipe.name == "gpu":  # the trial gets a copy
        make_tokenizer(recipe)
    prepare(recipe, open_tokenizer(recipe))
    prepare_labelled(recipe, open_tokenizer(recipe))' "run=$WORK" "$@" "${CHANGES[@]}"
}

stage_prepare() {
    [[ -d $WORK/sample ]] || sample "$DATA" "$WORK/sample"
    [[ ! $DRY_RUN ]] || DATA=$WORK/sample
    prepared "data=$DATA"
    mkdir -p "$WORK/trial"
    rm -rf "$WORK/trial/tokenizer"
    cp -r "$WORK/gpu/tokenizer" "$WORK/trial/"
    prepared name=trial "data=$WORK/sample"
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

id_files() { # RUN PART: files of ids; part 2 has the labelled texts and the sources that they are from
    "$PYTHON" -c 'import pathlib, sys
from training.corpus.reader import PreparedText
run, part = pathlib.Path(sys.argv[1]), int(sys.argv[2])
labelled = {shard.source for shard in PreparedText.open(run / "labelled/train").shards}
shards = PreparedText.open(run / "corpus/train").shards
first = next(i for i, shard in enumerate(shards) if shard.source in labelled)
shards = shards[:first] if part == 1 else shards[first:]
chosen = [run / "corpus/train" / shard.name / "tokens.npy" for shard in shards]
others = run.glob("corpus/heldout/**/tokens.npy") if part == 1 else run.glob("labelled/**/tokens.npy")
print(*(file.relative_to(run) for file in [*chosen, *sorted(others)]), sep="\n")' "$@"
}

packed_ids() { # PART DICTIONARY
    id_files "$WORK/gpu" "$1" | tar -c -C "$WORK/gpu" -T - | xz -T1 --lzma2="preset=9,dict=$2,lc=3,lp=1,pb=1"
}

stage_pack() {
    local run=$WORK/gpu packed=$WORK/packed tree room piece number=0
    [[ -f $run/labelled/manifest.json ]] || fail "pack: run prepare first"
    mkdir -p "$packed/wheels"
    local corpus=(-C "$run" corpus labelled tokenizer file-hashes.json) first
    # Ids have two bytes, starts have four and grow slowly: each gets its own compression. Labelled texts are in the
    # corpus too, so they are packed with its last sources, in a dictionary that holds all of these. Takes 12 minutes.
    if [[ ! $packed/ids-2 -nt $run/labelled/manifest.json || ! $packed/ids-2 -nt $run/corpus/manifest.json ]]; then
        local packing
        packed_ids 1 64MiB >"$packed/ids-1" &
        packing=$!
        packed_ids 2 256MiB >"$packed/ids.part"
        wait "$packing"
        mv "$packed/ids.part" "$packed/ids-2"
    fi
    tar -c --exclude='*.json' --exclude=tokens.npy "${corpus[@]}" |
        xz --delta=dist=4 --lzma2=preset=9e,lc=0,lp=2,pb=2 >"$packed/starts"
    tar -c --exclude='*.npy' "${corpus[@]}" | xz -9e >"$packed/rest"
    tar -c -C "$WORK" trial | xz -9e >"$packed/trial"
    # `du` fails for files that were deleted from the working tree; they are not sent
    tree=$(git ls-files -coz --exclude-standard | { xargs -0 du -cb 2>/dev/null || true; } |
        awk '$2 == "total" { sum += $1 } END { print sum }')
    room=$((TRANSFER - tree - MIB))
    [[ ! $DRY_RUN ]] || room=$(($(cat "$packed"/{ids-1,ids-2,starts,rest} | wc -c) / 3 + 1))
    first=$((room - $(du -sb "$packed/wheels" | cut -f1) - $(stat -c %s "$packed/trial")))
    [[ ! $DRY_RUN ]] || first=$room
    ((first > 0)) || fail "pack: the tree alone has $tree bytes of $TRANSFER"
    rm -rf "$PACK"
    mkdir -p "$PACK"
    tar -c -C "$packed" ids-1 ids-2 starts rest >"$packed/all"
    head -c "$first" "$packed/all" >"$PACK/piece-00"
    tail -c +$((first + 1)) "$packed/all" | split -b "$room" --numeric-suffixes=1 -a 2 - "$PACK/piece-"
    (cd "$PACK" && sha256sum piece-*) >"$packed/pieces"
    for piece in "$PACK"/piece-*; do
        number=$((number + 1))
        mkdir "$PACK/$number"
        mv "$piece" "$PACK/$number/"
        cp "$packed/pieces" "$PACK/$number/"
    done
    cp -r "$packed"/{wheels,trial} "$PACK/1/"
    say "pack: the tree has $((tree / MIB)) MiB; send $number folders, one a call:" "$PACK"/*
    du -sm "$packed"/{ids-1,ids-2,starts,rest,trial,wheels} >&2
}

stage_receive() {
    local got=$WORK/received
    if [[ -d $WORK/data ]]; then
        say "receive: already done"
        return
    fi
    mkdir -p "$got"
    local piece
    for piece in "$PACK"/*/piece*; do
        cp "$piece" "$got/"
    done
    if [[ -d $PACK/1/wheels ]]; then
        cp -r "$PACK/1/wheels" "$WORK/"
        unpacked "$PACK/1/trial" "$WORK"
        stand_ins trial sample
    fi
    (cd "$got" && sha256sum --quiet --ignore-missing -c pieces) || fail "receive: damaged on the way; send it again"
    say "receive: $(find "$got" -name 'piece-*' | wc -l) of $(wc -l <"$got/pieces") pieces are here"
    [[ $(find "$got" -name 'piece-*' | wc -l) == "$(wc -l <"$got/pieces")" ]] || return 0
    cat "$got"/piece-* | tar -x -C "$got"
    mkdir -p "$WORK/gpu"
    local part
    for part in ids-1 ids-2 starts rest; do
        unpacked "$got/$part" "$WORK/gpu"
    done
    packages
    "$PYTHON" -c 'import pathlib, sys
from training.corpus.reader import PreparedText
manifests = list(pathlib.Path(sys.argv[1]).glob("*/*/**/manifest.json"))
assert manifests
for manifest in manifests:
    text = PreparedText.open(manifest.parent)
    assert all(shard.is_intact(text.folder) for shard in text.shards), manifest' "$WORK/gpu"
    stand_ins gpu data
    rm -r "$got"
}

unpacked() { # FILE FOLDER: a compressed archive; the machine may lack xz
    "$PYTHON" -c 'import lzma, shutil, sys
shutil.copyfileobj(lzma.open(sys.argv[1]), sys.stdout.buffer, 1 << 20)' "$1" | tar -x -C "$2"
}

stand_ins() { # RUN FOLDER: files of zeros with the size and time of the texts, which `finetune` compares with its record
    "$PYTHON" -c 'import json, os, pathlib, sys
for name, (size, changed, _) in json.loads(pathlib.Path(sys.argv[1], "file-hashes.json").read_text()).items():
    file = pathlib.Path(sys.argv[2], name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    os.truncate(file, size)
    os.utime(file, ns=(changed, changed))' "$WORK/$1" "$WORK/$2"
}

stage_trial() { # every step of the recipe, in two minutes
    local -a CHANGES=("${CHANGES[@]}")
    [[ $DRY_RUN ]] || CHANGES+=(pretrain.tokens=60_000_000 'finetune.seeds=[1]' finetune.epochs=2)
    training trial pretrain,finetune,export name=trial "data=$WORK/sample"
}

stage_pretrain() {
    training pretrain pretrain "data=$WORK/data"
}

stage_finetune() {
    training finetune finetune,export "data=$WORK/data"
}

stage_export() { # NUMBER: the NUMBERth delivery of parts
    local run=$WORK/gpu parts=$WORK/parts number=$1 part
    if [[ ! -d $parts ]]; then
        rm -f "$WORK/finished/export" # there may be more to export than before
        (training export export "data=$WORK/data") || say "export: no model yet; logs only"
        mkdir -p "$parts.part"
        (cd "$run" && { # whatever is there: the time may have ended before some of it was made
            find export {pretrain,finetune/seed-*}/{log.jsonl,recipe.json} finetune/{results,labelled}.json -type f \
                2>/dev/null || true
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
    local joined=$WORK/joined missing name
    mkdir -p "$joined"
    cp "${FROM:-$OUT}"/{part-*,sums} "$joined/"
    missing=$(cut -c67- "$joined/sums" | while read -r part; do [[ -f $joined/$part ]] || echo "$part"; done)
    (cd "$joined" && sha256sum --quiet --ignore-missing -c sums) || fail "join: damaged on the way; export it again"
    if [[ $missing ]]; then
        say "join: still missing:" "${missing//$'\n'/ }"
        return
    fi
    cat "$joined"/part-* | tar -x -C "$WORK/gpu"
    for name in pretrained sentiment; do
        [[ ! -d $WORK/gpu/export/$name ]] || cp -r "$WORK/gpu/export/$name" "$WORK/gpu/"
    done
    say "join: complete; next: report"
}

stage_report() { # takes half an hour on a CPU; what the machine trained is evaluated and gets its model cards
    CHANGES+=(device=auto)
    DEADLINE=$((SECONDS + ${LIMIT:-7200}))
    training report evaluate,export "data=$DATA"
}

stage_test() { # tests that are skipped without a GPU
    local files
    mapfile -t files < <(grep -rl --include='test_*.py' 'mark\.cuda' tests)
    limited test "$PYTHON" -m pytest -q -n 8 -m cuda -W default -p no:cacheprovider "${files[@]}"
}

stage_bench() {
    local preset=small large=base batch=512
    [[ ! $DRY_RUN ]] || preset=tiny large=tiny batch=4
    limited ceiling "$PYTHON" -m benchmarks.ceiling --preset "$preset" --length 28 --tokens 28 448 4096 16384
    limited ceiling-base "$PYTHON" -m benchmarks.ceiling --preset "$large" --length 128
    limited bench "$PYTHON" -m training bench "$preset" --length 128 --batch "$batch" --steps 20
}

ask() { # URL BODY
    "$PYTHON" -c 'import sys, urllib.request as web
request = web.Request(sys.argv[1], sys.argv[2].encode() or None, {"Content-Type": "application/json"})
print(web.urlopen(request).read().decode())' "$@"
}

stage_serve() { # over HTTP, with what was trained
    local port=8321 server i scenario
    BERT_DEVICE=$([[ $DRY_RUN ]] && echo cpu || echo cuda) BERT_LOG_LEVEL=warning \
        BERT_PRETRAINED=$WORK/gpu/export/pretrained BERT_SENTIMENT=$WORK/gpu/export/sentiment \
        "$PYTHON" -m app --port $port &
    server=$!
    # shellcheck disable=SC2064  # of this server
    trap "kill $server 2>/dev/null || true" EXIT
    for i in {1..60}; do
        ask "http://127.0.0.1:$port/health/ready" "" >/dev/null 2>&1 && break
        if ((i == 60)) || ! kill -0 $server 2>/dev/null; then
            fail "serve: the service does not start"
        fi
        sleep 1
    done
    ask "http://127.0.0.1:$port/fill-mask" '{"inputs": "The capital of France is [MASK]."}' | tee "$OUT/serve.log"
    ask "http://127.0.0.1:$port/sentiment" '{"inputs": "I loved every minute of it."}' | tee -a "$OUT/serve.log"
    for scenario in "64 1" "8 32" "64 32" "1 1"; do
        echo "connections and sentences in a request: $scenario" | tee -a "$OUT/serve.log"
        "$PYTHON" -m benchmarks.load "http://127.0.0.1:$port/sentiment" --connections "${scenario% *}" \
            --inputs "${scenario#* }" --seconds 5 | tee -a "$OUT/serve.log"
    done
    kill $server
    wait $server || true
}

rehearse() { # both machines in WORK, one piece per call
    local base=$WORK piece number
    rm -rf "$base"
    WORK=$base/here PACK=$base/pack OUT=$base/out "$SELF" prepare pack
    for piece in "$base"/pack/*; do
        mkdir "$base/sent"
        cp -r "$piece" "$base/sent/"
        WORK=$base/there PACK=$base/sent OUT=$base/out "$SELF" receive trial
        rm -r "$base/sent"
    done
    WORK=$base/there OUT=$base/out "$SELF" pretrain finetune
    for number in 1 2; do
        rm -r "$base/out"
        WORK=$base/there OUT=$base/out "$SELF" "export-$number"
        WORK=$base/here FROM=$base/out OUT=$base/out "$SELF" join
    done
    WORK=$base/here OUT=$base/out DATA=$base/here/sample "$SELF" report
    [[ ${REHEARSE:-all} != all ]] || WORK=$base/there OUT=$base/out "$SELF" test serve bench
}

if [[ $# == 0 && $DRY_RUN ]]; then
    rehearse
    exit
fi
(($#)) || { sed -n '2,/^set/s/^# \?//p' "$SELF"; exit 2; }
mkdir -p "$OUT" "$WORK/finished"
for stage in "$@"; do
    case $stage in
    prepare | wheels | pack | receive | join | report) "stage_$stage" ;;
    trial | test | bench | serve | pretrain | finetune)
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
