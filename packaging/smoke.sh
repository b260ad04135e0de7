#!/bin/sh
# smoke.sh WHEEL PYTHON...: installs a wheel into an empty environment of each Python, and uses it as a user would.
set -eu
wheel=$1
shift
for python in "$@"; do
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    "$python" -m venv "$folder/venv"
    "$folder/venv/bin/pip" install --quiet --disable-pip-version-check "$wheel[server]"
    "$folder/venv/bin/pip" check
    (
        cd "$folder"
        export PATH="$folder/venv/bin:$PATH" RWKV_GPU_DEVICE=cpu
        rwkv-gpu --version
        rwkv-gpu models qwen3.5:4b
        rwkv-gpu chat -n 20 "hello"
        test "$(rwkv-gpu generate -p "Is it? " --regex 'yes|no' | grep -cE '^(yes|no)$')" = 1
        python -c 'import rwkv_gpu; print(rwkv_gpu.LLM(device="cpu").generate("The sea", max_tokens=4).text)'
        python - <<'EOF'
import json, subprocess, urllib.request

server = subprocess.Popen(["rwkv-gpu", "serve", "--port", "0"], stderr=subprocess.PIPE, text=True)
try:
    url = next(line.split()[-1] for line in server.stderr if "serving on" in line)
    body = json.dumps({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}).encode()
    asked = urllib.request.Request(f"{url}/chat/completions", body, {"Content-Type": "application/json"})
    print(json.load(urllib.request.urlopen(asked))["choices"][0]["message"]["content"])
finally:
    server.terminate()
    server.wait()
EOF
    )
    echo "$("$python" --version): the wheel works"
    rm -rf "$folder"
done
