#!/bin/bash
# Trains on a machine without network that is there for a limited time.  README.md says how.
#
#   detached.sh receive DIR              keeps parts (pack.py) that were copied to the machine
#   detached.sh start SECONDS [UNTIL]    unpacks and trains in the background
#   detached.sh watch SECONDS [OUT]      waits so long, or until the training ends, says how it is, and
#                                        puts the newest weights into OUT: the machine may be gone soon
#   detached.sh finish OUT               keeps the weights, measures them, and keeps the figures
#   detached.sh answers OUT LENGTH [N]   asks N contexts (300) of each task, all devices some of them
#   detached.sh twins OUT                trains and measures the three twins, all at once
#
# DIR names the folder for everything (/tmp/training), SETTINGS the settings (quire-31m), PYTHON the
# interpreter; PROBE=1 measures the speed at each row length first, for a second each.  A checkpoint
# that is received as light.pt is gone on from, at the progress RESUME_AT if that is set.  WORKERS
# processes make rows (all cores but two).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=${DIR:-/tmp/training} settings=${SETTINGS:-quire-31m} python=${PYTHON:-python3}
contexts=${CONTEXTS:-300}
corpus=$dir/corpus run=$dir/runs/$settings
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4} TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1

n_devices() { nvidia-smi -L 2>/dev/null | wc -l || true; }

train() { # settings, and options for train.py
    local name=$1 devices=${DEVICES:-$(n_devices)}
    shift
    local -a command=("$python")
    if [ "$devices" -gt 1 ]; then
        command=("$python" -m torch.distributed.run --standalone --nproc-per-node "$devices")
    fi
    "${command[@]}" "$here/train.py" --settings "$here/settings/$name.json" --corpus "$corpus" \
        --out "$dir/runs/$name" "$@"
}

receive() {
    mkdir -p "$dir/parts" "$run"
    cp -r "$1"/. "$dir/parts/"
    if [ -f "$dir/parts/light.pt" ]; then mv "$dir/parts/light.pt" "$run/light.pt"; fi
    du -sm "$dir/parts"
}

unpack() {
    [ -f "$corpus/books.txt" ] || "$python" pack.py unpack --out "$corpus" "$dir/parts"
}

work() { # what `start` runs in the background
    cd "$here"
    unpack
    if [ -n "${PROBE:-}" ]; then train "$settings" --probe "$PROBE"; fi
    train "$settings" --seconds "$1" --until "${2:-1.0}" ${RESUME_AT:+--resume-at "$RESUME_AT"} \
        ${WORKERS:+--workers "$WORKERS"}
}

start() {
    mkdir -p "$run"
    rm -f "$run/ended"
    setsid bash -c '"$0" work "$@"; echo $? >"'"$run"'/ended"' "$here/detached.sh" "$@" \
        >"$run/output" 2>&1 </dev/null &
    echo "started; $run/output"
}

watch() {
    local until=$((SECONDS + $1))
    while [ $SECONDS -lt $until ] && [ ! -f "$run/ended" ]; do sleep 2; done
    tail -n 25 "$run/output"
    if [ -f "$run/ended" ]; then echo "ended with status $(cat "$run/ended")"; fi
    if [ $# -gt 1 ] && [ -f "$run/light.pt" ]; then keep "$2"; fi
}

keep() { # the weights, in pieces, and the log
    mkdir -p "$1"
    "$python" "$here/pack.py" pack --plain --piece-mib 15 --part-mib 63 --out "$1" "$run/light.pt"
    cp "$run/log.csv" "$1/"
}

measure() { # settings, name of the results, and options for evaluate.py
    local name=$1 results=$2 checkpoint=$dir/runs/$1/checkpoint.pt
    shift 2
    [ -f "$checkpoint" ] || checkpoint=$dir/runs/$name/light.pt
    "$python" evaluate.py --checkpoint "$checkpoint" --corpus "$corpus" \
        --out "$dir/runs/$name/$results.json" "$@"
}

finish() {
    cd "$here"
    keep "$1" # first: what is measured can be measured again, what is lost cannot
    # The longest contexts take as long as all else: the first device's, and the last one's.
    local -a asked=(--contexts "$contexts" --questions 1)
    CUDA_VISIBLE_DEVICES=0 measure "$settings" long --parts answers --answer-lengths 32768 \
        "${asked[@]}" &
    CUDA_VISIBLE_DEVICES=$(($(n_devices) - 1)) measure "$settings" results \
        --answer-lengths 1024 4096 16384 "${asked[@]}" || true
    wait
    cp "$run/results.json" "$run/long.json" "$1/"
}

answers() { # OUT, the length, how many contexts
    cd "$here"
    mkdir -p "$1"
    local -a asked=(--parts answers --answer-lengths "$2" --questions 1 --family-contexts 0)
    local devices share device
    devices=$(n_devices)
    devices=$((devices > 0 ? devices : 1))
    share=$(((${3:-$contexts} + devices - 1) / devices))
    unpack
    for ((device = 0; device < devices; device++)); do
        CUDA_VISIBLE_DEVICES=$device measure "$settings" "answers-$2-$device" "${asked[@]}" \
            --first-context $((device * share)) --contexts "$share" &
    done
    wait
    cp "$run/answers-$2"-*.json "$1/"
}

twin() { # its name, a device
    export CUDA_VISIBLE_DEVICES=$2 DEVICES=1
    train "twin-$1" --workers "${WORKERS:-9}"
    measure "twin-$1" results --window 1024 --lengths 1024 --parts perplexity sinks through_windows
}

twins() {
    cd "$here"
    mkdir -p "$1"
    unpack
    local twin device=0 devices
    devices=$(n_devices)
    for twin in vanilla zero-sink learnable-sink; do
        (twin "$twin" "$device") >"$dir/twin-$twin.output" 2>&1 &
        device=$(((device + 1) % (devices > 0 ? devices : 1)))
    done
    wait
    for twin in vanilla zero-sink learnable-sink; do
        tail -n 12 "$dir/twin-$twin.output"
        cp "$dir/runs/twin-$twin/results.json" "$1/twin-$twin.json"
    done
}

case ${1:-} in
receive | start | watch | finish | answers | twins | work) "$@" ;;
*) sed -n '2,16p' "$0" >&2 && exit 2 ;;
esac
