#!/bin/sh
# Everything there is to learn from a GPU in one go: is it right, and how fast. About ten minutes; $1 is the device.
#     benchmarks/gpu_session.sh 0 | tee report.txt
set -eu
cd "$(dirname "$0")/.."
device="${1:-auto}"
python="${PYTHON:-.venv/bin/python}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

section() { printf '\n## %s\n\n' "$1"; }

section devices
"$python" -m rwkv_gpu.cli.main devices --device "$device"
section tests
"$python" -m pytest -x --device "$device" tests/gpu tests/ops/test_ops.py tests/ops/test_self_test.py \
    tests/test_own_golden.py -k "not checked" 2>&1 | tail -3
section dispatch
"$python" -m benchmarks.dispatch --device "$device"
section matrices
"$python" -m benchmarks.linear --device "$device" --out 10240 --width 2560 --rows 1,4,512
section experts
"$python" -m benchmarks.experts --device "$device" || true
for shape in rwkv7-2.9b llama-8b; do
    section "$shape"
    "$python" -m benchmarks.synthetic "$shape" "$work/$shape.gguf"
    "$python" -m benchmarks.model "$work/$shape.gguf" --device "$device" --prompt 1024 \
        --chunks 64,128,256,512,1024 --decode 64 --profile
    rm -f "$work/$shape.gguf"
done
