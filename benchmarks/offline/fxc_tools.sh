#!/bin/sh
# Puts FXC, the compiler of DirectX that is a part of Windows, into FOLDER/bin: `sh benchmarks/offline/fxc_tools.sh FOLDER`.
# PyPI has Microsoft's library in the wheel of kivy_deps.angle for Windows, and zig, which builds for Windows. Debian has Wine.
set -eu
folder=$(mkdir -p "$1/bin" "$1/fxc" && cd "$1" && pwd)
offline=$(cd "$(dirname "$0")" && pwd)
SUITE=${WINE_SUITE:-bookworm} "$offline/../debian_packages.sh" "$folder/wine" wine64
programs=$folder/wine/usr/lib/wine libraries=$folder/wine/usr/lib/x86_64-linux-gnu
cp "$programs/wineserver64" "$programs/wineserver"  # Debian's is a script that looks for itself in /usr
cp "$folder/wine/usr/x86_64-w64-mingw32/lib/zlib1.dll" "$libraries/wine/x86_64-windows/"

python3 -m pip download --quiet --no-deps --only-binary :all: --platform win_amd64 --python-version 3.12 -d "$folder/fxc" kivy_deps.angle==0.5.0
python3 - "$folder/fxc" <<'END'
import sys, zipfile
from pathlib import Path
[wheel] = Path(sys.argv[1]).glob("kivy_deps*.whl")
with zipfile.ZipFile(wheel) as file:
    [name] = [name for name in file.namelist() if name.endswith("/d3dcompiler_47.dll")]
    Path(sys.argv[1], "d3dcompiler_47.dll").write_bytes(file.read(name))
END
python3 -m venv "$folder/zig"
"$folder/zig/bin/pip" install --quiet --disable-pip-version-check ziglang
"$folder/zig/bin/python" -m ziglang cc -target x86_64-windows-gnu -O2 -o "$folder/fxc/fxc.exe" "$offline/fxc.c"

cat >"$folder/bin/fxc" <<END
#!/bin/sh
# Microsoft's library, not Wine's own compiler of that name.
export WINEPREFIX=$folder/fxc/prefix WINEARCH=win64 WINEDEBUG=-all WINEDLLOVERRIDES="d3dcompiler_47=n;mscoree,mshtml="
export LD_LIBRARY_PATH=$libraries WINEDLLPATH=$libraries/wine
unset DISPLAY
exec $programs/wine64 $folder/fxc/fxc.exe "\$@"
END
chmod +x "$folder/bin/fxc"
