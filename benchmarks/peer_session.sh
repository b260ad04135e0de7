#!/bin/sh
# Compares llama.cpp with us on a GPU, one model after another, in under nine minutes: a table per model, most important rows first.
#     PEERS="CUDA=python3:/tmp/cuda Vulkan=python3:/tmp/vulkan" benchmarks/peer_session.sh DEVICE [FOLDER] | tee report.md
# FOLDER keeps the tables and the logs. MATRIX_UNITS="on off" measures us with matrix units and without.
# MODELS narrows what is measured, LIMIT is the seconds of all, REPEATS the passes of a test. TMPDIR holds the file that all read, one at a time: the largest has 18.9 GB. A part that hangs is
# ended at its own limit, and its rows until then stay.
set -u
cd "$(dirname "$0")/.."
device="${1:-auto}"
folder="${2:-$(mktemp -d)}"
python="${PYTHON:-.venv/bin/python}"
mkdir -p "$folder"
start="$(date +%s)"

peers=""
for one in ${PEERS:?NAME=PYTHON:FOLDER of each build of llama.cpp}; do peers="$peers --peer $one"; done
for one in ${MATRIX_UNITS:-auto}; do peers="$peers --matrix-units $one"; done

compare() {  # SECONDS MODEL TESTS...
    limit="$1"; model="$2"; shift 2
    case " ${MODELS:-$model} " in *" $model "*) ;; *) return ;; esac
    began="$(date +%s)"
    left=$((${LIMIT:-530} - began + start))
    if [ "$left" -lt 30 ]; then printf '\n(no time left for %s)\n' "$model"; return; fi
    if [ "$left" -lt "$limit" ]; then limit="$left"; fi
    printf '\n## '
    # shellcheck disable=SC2086
    timeout -k 5 "$limit" "$python" -m benchmarks.peers "$model" $peers --device "$device" -r "${REPEATS:-3}" \
        --patience 60 --seconds "$((limit - 15))" "$@" 2>"$folder/$model.log" | tee "$folder/$model.md"
    printf '\n(%s s)\n' "$(($(date +%s) - began))"
    tail -8 "$folder/$model.log"
}

transformer() {  # SECONDS MODEL
    compare "$@" -t tg32 -t tg16x16 -t pp512 -t tg32@4096 -t tg16@4096x16 -t pp64,2048 -t tg32@512 -t tg16@512x16 -t tg16x2,4,8
}

transformer 150 qwen3-30b-a3b-q4_k_m
compare 80 rwkv7-2.9b-q4_k_m -t tg128 -t tg32x16 -t pp512,2048,64,1024 -t tg32x2,4,8 -t tg64@512,4096
transformer 110 llama-8b-q4_k_m
transformer 90 tinyllama-1.1b-q4_k_m
transformer 90 qwen3-0.6b-q8_0
for model in glm-4.7-flash-30b gpt-oss-20b gemma3-12b phi4-14.7b ministral3-8.5b; do
    compare 100 "$model-q4_k_m" -t tg32 -t tg16x16 -t tg16@4096x1,16 -t tg16@32768 -t pp512,2048 -t tg8@32768x16
done
