#!/usr/bin/env bash
# Spends a GPU machine that is lent for 45 or 15 minutes (MINUTES): tests and speeds first, then the networks of the
# recipes `large` and `shipped`. The machine starts bare, gets this tree and ROOM MiB per call, ends a call after LIMIT
# seconds, keeps files that git ignores between calls, and returns at most PARTS files of PART MiB.
#   here   lent_gpu.sh prepare pack   token ids, and packages that the machine lacks, to $PACK/1, $PACK/2, ...
#   there  lent_gpu.sh unpack         once with each folder of $PACK
#   there  lent_gpu.sh next           goes on with the plan, from the first folder on; status 130: call it again
#   there  lent_gpu.sh deliver 1      what is new since the last time; then deliver 2, ... while it names more
#   here   lent_gpu.sh join           with what came back in $OUT; then `python -m training evaluate` and `export`
# With 45 minutes, the student follows its teacher, which takes 20. With 15, a classifier from START comes first.
# CHANGES (there: device=cuda): further arguments of `python -m training`; DATA: texts; WORK: results.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
SELF=experiments/lent_gpu.sh
MINUTES=${MINUTES:-45} DATA=${DATA:-../shared/data} WORK=${WORK:-runs/lent} LIMIT=${LIMIT:-560}
START=${START:-model/weights/pretrained} SIZES=${SIZES:-65536 131072 262144} SERVE=${SERVE:-1 8}
BASE=${BASE:-base --batch 512} RATES=${RATES:-3e-4 1.2e-3} TESTERS=${TESTERS:-8}
PACK=${PACK:-$WORK/pack} OUT=${OUT:-$WORK/out} ROOM=${ROOM:-58} PART=${PART:-15} PARTS=${PARTS:-4}
PYTHON=${PYTHON:-$([[ -x .venv/bin/python ]] && echo .venv/bin/python || echo python3)}
MIB=${MIB:-$((1024 * 1024))} SITE=$(realpath -m "$WORK/site") EXPORT=$WORK/run/export
read -ra changes <<<"${CHANGES:-}"
LACKING=${LACKING-pydantic pydantic_core annotated-types typing-inspection typing_extensions sentencex fastapi
    fastapi-swagger starlette uvicorn httptools opentelemetry-api pytest-asyncio nltk defusedxml hypothesis}
export PYTHONPATH="$PWD/client:$SITE${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export TQDM_MININTERVAL=60

say() { echo "lent_gpu.sh: $*" >&2; }

training() { # RECIPE "COMMAND..." CHANGE...: replaces this process by several commands of `python -m training`
    local commands
    read -ra commands <<<"$2"
    exec "$PYTHON" -c 'import sys
from training.command import main
split = sys.argv.index("--")
for command in sys.argv[1:split]:
    if status := main([command, *sys.argv[split + 1 :]]):
        sys.exit(status)' "${commands[@]}" -- "$1" "run=$WORK" name=run "data=$DATA" "${@:3}" "${changes[@]}"
}

stage_prepare() {
    if ((MINUTES < 45)); then
        "$SELF" training shipped prepare "finetune.pretrained=$START"
        "$SELF" training large "tokenizer prepare" "finetune.train=[]"
    else
        "$SELF" training shipped "tokenizer prepare" # the text of `large`, too
    fi
}

stage_pack() {
    local packed=$WORK/packed platforms=(--platform=manylinux_2_{28,17}_x86_64) number=0 piece
    rm -rf "$PACK" "$packed"
    mkdir -p "$PACK" "$packed/wheels"
    # shellcheck disable=SC2086  # several names
    [[ ! $LACKING ]] || "$PYTHON" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 \
        --implementation cp "${platforms[@]}" -c constraints.txt -d "$packed/wheels" $LACKING
    (cd "$WORK/run" && find stages -maxdepth 1 -name '*-*' | sort) |
        tar -c --exclude=texts.jsonl.gz -C "$WORK/run" -T - file-hashes.json | xz -T0 -8 >"$packed/text.tar.xz"
    tar -c -C "$packed" wheels text.tar.xz | split -b $((ROOM * MIB)) -d -a 2 - "$PACK/piece-"
    (cd "$PACK" && sha256sum piece-*) >"$packed/sums"
    for piece in "$PACK"/piece-*; do
        mkdir "$PACK/$((++number))"
        mv "$piece" "$PACK/$number/"
        cp "$packed/sums" "$PACK/$number/"
    done
    say "send $number folders, one a call:" "$PACK"/*
}

stage_unpack() {
    local got=$WORK/received count
    mkdir -p "$got" "$WORK/run"
    cp "$PACK"/*/{piece-*,sums} "$got/"
    (cd "$got" && sha256sum --quiet --ignore-missing -c sums) || { say "damaged on the way; send it again"; exit 1; }
    count=$(find "$got" -name 'piece-*' | wc -l)
    say "$count of $(wc -l <"$got/sums") pieces are here"
    # The packages are at the beginning, so the first piece is enough for them.
    cat "$got"/piece-* | tar -x -C "$got" 2>/dev/null || true
    if compgen -G "$got/wheels/*.whl" >/dev/null && [[ ! -d $WORK/site ]]; then
        "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --target "$WORK/site" "$got"/wheels/*.whl
    fi
    ((count == $(wc -l <"$got/sums"))) || return 0
    "$PYTHON" -c 'import lzma, shutil, sys
shutil.copyfileobj(lzma.open(sys.argv[1]), sys.stdout.buffer, 1 << 20)' "$got/text.tar.xz" | tar -x -C "$WORK/run"
    rm -r "$got"
}

job() { # NAME SECONDS COMMAND...: once. With 0 seconds, the next call continues it
    local name=$1 limit=$2 left=$((LIMIT - SECONDS)) log=$WORK/run/logs/$1.txt status=0
    [[ ! -e $WORK/done/$name ]] || return 0
    ((left > limit)) || { say "no time for $name; call again"; exit 130; }
    mkdir -p "$WORK/done" "$WORK/run/logs"
    say "$name"
    timeout --foreground --kill-after=25 "$((limit ? limit : left))" "${@:3}" 2>&1 | tee -a "$log" || status=$?
    [[ $limit != 0 || $status != @(124|130|137) ]] || { say "out of time; call again"; exit 130; }
    ((status == 0)) || say "$name failed with status $status; the plan goes on"
    echo "$status" >"$WORK/done/$name"
}

stage_next() {
    local graphs size rate start=() student=("export.folder=$EXPORT/shipped")
    local alone=(soft_labels.weight=0 finetune.bag_weight=0 "finetune.seeds=[1]")
    export DATA=$WORK/nowhere # the texts are not on the machine
    # shellcheck disable=SC2046,SC2086  # several files, and numbers; other tests import what the machine lacks
    job cuda-tests 150 "$PYTHON" -m pytest -q -n "$TESTERS" -m cuda -W default -p no:cacheprovider \
        $(grep -rl 'mark\.cuda' tests --include='test_*')
    # shellcheck disable=SC2086
    job serving 120 "$PYTHON" -m benchmarks.replicas $SERVE
    [[ -d $WORK/run/stages ]] || { say "the next jobs need the other folders of text"; exit 130; }
    ((MINUTES >= 45)) || start=("finetune.pretrained=$START")
    mkdir -p "$WORK/steps/stages"
    ln -sfn "$(realpath "$WORK")"/run/stages/{tokenizer,corpus,labelled}-* "$WORK/steps/stages/"
    cp "$WORK/run/file-hashes.json" "$WORK/steps/"
    for graphs in false true; do
        for size in $SIZES; do # 20 steps of both stages
            job "steps-$size-$graphs" 75 "$SELF" training large "pretrain finetune" name=steps "${start[@]}" \
                model.num_hidden_layers=4 "micro_batch_tokens=$size" "pretrain.batch_tokens=$size" \
                "pretrain.tokens=$((20 * size))" "finetune.batch_tokens=$size" "${alone[@]}" \
                "finetune.passes=$(awk "BEGIN { print 20 * $size / 28e6 }")" "cuda_graphs=$graphs"
        done
    done
    if ((MINUTES >= 45)); then
        student+=("pretrain.teacher=$EXPORT/large/pretrained")
        job teacher 0 "$SELF" training large "pretrain export" "export.folder=$EXPORT/large" "finetune.train=[]"
        job student 0 "$SELF" training shipped "pretrain export" "${student[@]}"
    fi
    job classifier 0 "$SELF" training shipped "soft-labels finetune export" "${student[@]}" "${start[@]}"
    job teacher 0 "$SELF" training large "pretrain export" "export.folder=$EXPORT/large" "finetune.train=[]"
    # shellcheck disable=SC2086
    job transformers 200 "$PYTHON" -m benchmarks.training_step $BASE --steps 20
    for rate in $RATES; do
        job "rate-$rate" 0 "$SELF" training shipped finetune "${student[@]}" "${start[@]}" "${alone[@]}" \
            "finetune.learning_rate=$rate"
    done
}

stage_deliver() { # NUMBER: the first PARTS files, the second PARTS files, ...
    local parts=$WORK/parts number=$1 all newer=()
    if ((number == 1)); then
        [[ ! -e $WORK/delivered ]] || newer=(-newer "$(realpath "$WORK/delivered")")
        rm -rf "$parts" "$OUT"
        mkdir -p "$parts"
        touch "$WORK/delivering"
        (cd "$WORK/run" && find . -type f \( -path './export/*' -o -path './logs/*' -o -path './stages/[pf]*' \) \
            ! -name '*.pt' "${newer[@]}" | tar -c -T -) | split -b $((PART * MIB)) -d -a 3 - "$parts/part-"
        mv "$WORK/delivering" "$WORK/delivered"
        (cd "$parts" && sha256sum part-*) >"$parts/sums"
    fi
    mkdir -p "$OUT"
    all=("$parts"/part-*)
    cp "$parts/sums" "${all[@]:(number - 1) * PARTS:PARTS}" "$OUT/"
    say "delivery $number of $(((${#all[@]} + PARTS - 1) / PARTS))"
}

stage_join() {
    (cd "$OUT" && sha256sum --quiet -c sums) || { say "parts are missing or damaged; deliver them again"; exit 1; }
    cat "$OUT"/part-* | tar -x -C "$WORK/run"
    say "the exports are in $EXPORT"
}

(($#)) || { sed -n '2,/^set/s/^# \?//p' "$SELF"; exit 2; }
case $1 in
training) training "${@:2}" ;;
deliver) stage_deliver "${2:-1}" ;;
*) for stage in "$@"; do "stage_$stage"; done ;;
esac
