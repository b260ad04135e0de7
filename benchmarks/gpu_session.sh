#!/bin/sh
# Measures a GPU in under ten minutes: well-known models first, then the tests of kernels, then what a dispatch and a matrix product take.
#     benchmarks/gpu_session.sh DEVICE [FOLDER] | tee report.txt
# FOLDER keeps the logs. `peer_session.sh` compares with llama.cpp.
# MODELS in the environment narrows what is measured, LIMIT is the seconds of all. A part that hangs is ended at its own limit.
set -u
cd "$(dirname "$0")/.."
device="${1:-auto}"
folder="${2:-$(mktemp -d)}"
python="${PYTHON:-.venv/bin/python}"
mkdir -p "$folder"
start="$(date +%s)"

section() { printf '\n## %s (at %s s)\n\n' "$1" "$(($(date +%s) - start))"; }

part() {  # SECONDS COMMAND...
    limit="$1"; shift
    left=$((${LIMIT:-580} - $(date +%s) + start))
    if [ "$left" -lt 5 ]; then echo "(no time left: $*)"; return; fi
    if [ "$left" -lt "$limit" ]; then limit="$left"; fi
    timeout -k 5 "$limit" "$@" || echo "(ended with $? within $limit s: $*)"
}

bench() {  # SECONDS MODEL OPTIONS...
    limit="$1"; model="$2"; shift 2
    case " ${MODELS:-$model} " in *" $model "*) ;; *) return ;; esac
    section "$model"
    part "$limit" "$python" -m rwkv_gpu.cli.main bench --synthetic "$model" --device "$device" -o md "$@" \
        2>"$folder/$model.log"
    tail -40 "$folder/$model.log"
}

section devices
part 30 "$python" -m rwkv_gpu.cli.main devices --device "$device"
bench 80 rwkv7-2.9b-q4_k_m -p 1024 -n 128 -b 1,2,4,8,16,32 --chunk-size 64,128,256,512,1024 -r 3
bench 80 llama-8b-q4_k_m -p 512 -n 64 -d 0,4096 -b 1,16 --chunk-size 512 -r 3
bench 90 rwkv7-7.2b-f16 -p 512 -n 64 -b 1 --chunk-size 512 -r 3
bench 110 qwen3-30b-a3b-q4_k_m -p 512 -n 64 -b 1,4,16 --chunk-size 512 -r 3
bench 30 rwkv7-0.1b-q4_k_m -p 512 -n 128 -b 1 --chunk-size 512 -r 3
section tests
part 90 "$python" -m pytest -x --device "$device" tests/gpu tests/ops/test_ops.py tests/ops/test_self_test.py \
    tests/test_own_golden.py -k "not checked" 2>&1 | tail -3
section dispatch
part 20 "$python" -m benchmarks.dispatch --device "$device"
section matrices
part 60 "$python" -m benchmarks.linear --device "$device" --out 10240 --width 2560 --rows 1,4,512
section end
