#!/usr/bin/env bash
# Trains a recipe on a GPU machine that is lent for minutes: the prepared text is sent, one command runs there, the export
# comes back. The machine starts bare, gets this tree and ROOM MiB per call, ends a call after LIMIT seconds, keeps files
# that git ignores between calls, and returns at most PARTS files of PART MiB.
#   here   lent_gpu.sh prepare pack   token ids, and packages that the machine lacks, to $PACK/1, $PACK/2, ...
#   there  lent_gpu.sh unpack         once with each folder of $PACK
#   there  lent_gpu.sh test           `pytest -m cuda`, after the first folder, which has the packages
#   there  lent_gpu.sh train          after the last folder; exit status 130: call it again, it goes on
#   there  lent_gpu.sh deliver 1      finished or not, before the time ends; then deliver 2, ... while it names more
#   here   lent_gpu.sh join           with what came back in $OUT; then `python -m training evaluate` and `export`
# RECIPE (shipped) and CHANGES (there: device=cuda): arguments of `python -m training`; DATA: texts; WORK: results.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
SELF=experiments/lent_gpu.sh
RECIPE=${RECIPE:-shipped} DATA=${DATA:-../shared/data} WORK=${WORK:-runs/lent} LIMIT=${LIMIT:-560}
PACK=${PACK:-$WORK/pack} OUT=${OUT:-$WORK/out} ROOM=${ROOM:-58} PART=${PART:-15} PARTS=${PARTS:-4}
PYTHON=${PYTHON:-$([[ -x .venv/bin/python ]] && echo .venv/bin/python || echo python3)}
MIB=${MIB:-$((1024 * 1024))} SITE=$(realpath -m "$WORK/site")
read -ra CHANGES <<<"${CHANGES:-}"
LACKING=${LACKING-pydantic pydantic_core annotated-types typing-inspection typing_extensions sentencex fastapi
    fastapi-swagger starlette uvicorn httptools opentelemetry-api pytest-asyncio nltk defusedxml hypothesis}
export PYTHONPATH="$PWD/client:$SITE${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export TQDM_MININTERVAL=60

say() { echo "lent_gpu.sh: $*" >&2; }

commands() { # COMMAND...: several commands of `python -m training` in one process, which takes the place of this one
    exec "$PYTHON" -c 'import sys
from training.command import main
split = sys.argv.index("--")
for command in sys.argv[1:split]:
    if status := main([command, *sys.argv[split + 1 :]]):
        sys.exit(status)' "$@" -- "$RECIPE" "run=$WORK" name=run "data=$DATA" "${CHANGES[@]}"
}

limited() { # COMMAND...: SIGTERM when the time of this call is over; then its status is 130
    local status=0
    timeout --foreground --kill-after=25 "$LIMIT" "$@" || status=$?
    ((status != 124 && status != 130 && status != 137)) || { say "out of time; call again"; exit 130; }
    return "$status"
}

stage_prepare() {
    CHANGES="${CHANGES[*]}" "$SELF" commands tokenizer prepare
}

stage_pack() {
    local packed=$WORK/packed platforms=(--platform=manylinux_2_{28,17}_x86_64) number=0 piece
    rm -rf "$PACK" "$packed"
    mkdir -p "$PACK" "$packed/wheels"
    # shellcheck disable=SC2086  # several names
    [[ ! $LACKING ]] || "$PYTHON" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 \
        --implementation cp "${platforms[@]}" -c constraints.txt -d "$packed/wheels" $LACKING
    CHANGES="${CHANGES[*]}" "$SELF" commands list |
        sed -nE 's#^done.*/(stages/(tokenizer|corpus|labelled|bag)-.*)#\1#p' |
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

stage_test() {
    # shellcheck disable=SC2046  # several files; the others import what the machine lacks
    limited "$PYTHON" -m pytest -q -n 8 -m cuda -W default -p no:cacheprovider $(grep -rl 'mark\.cuda' tests --include='test_*')
}

stage_train() { # the texts are not on the machine
    DATA=$WORK/nowhere CHANGES="${CHANGES[*]}" limited "$SELF" commands pretrain soft-labels finetune export
}

stage_deliver() { # NUMBER: that many times PARTS files
    local parts=$WORK/parts number=$1 all
    if ((number == 1)); then
        rm -rf "$parts" "$OUT"
        mkdir -p "$parts"
        (cd "$WORK/run" && find . -type f \( -path './export/*' -o -path './stages/[pft]*' \) ! -name '*.pt' |
            tar -c -T -) | split -b $((PART * MIB)) -d -a 3 - "$parts/part-"
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
    say "the export is in $WORK/run/export"
}

(($#)) || { sed -n '2,/^set/s/^# \?//p' "$SELF"; exit 2; }
case $1 in
commands) commands "${@:2}" ;;
deliver) stage_deliver "${2:-1}" ;;
*) for stage in "$@"; do "stage_$stage"; done ;;
esac
