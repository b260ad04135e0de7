#!/bin/sh
# Builds Mesa's stand-in for Intel's kernel driver, which does nothing, into LIBRARY: `intel_shim.sh LIBRARY WORK`.
# Only that library is built, of the sources of Debian stable. Needs a C compiler, ninja, pkg-config, zlib and expat.
set -eu
library=$1
work=$(mkdir -p "$2" && cd "$2" && pwd)
offline=$(cd "$(dirname "$0")" && pwd)
VERSION=${MESA_VERSION:-25.0.7}

SUITE=trixie "$offline/../debian_packages.sh" "$work/root" libdrm-dev flex bison m4
mirror=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -1)}
/usr/lib/apt/apt-helper download-file "${mirror%/}/pool/main/m/mesa/mesa_$VERSION.orig.tar.xz" "$work/mesa.tar.xz" >/dev/null
tar xJf "$work/mesa.tar.xz" -C "$work"
python3 -m venv "$work/python"
"$work/python/bin/pip" install --quiet --disable-pip-version-check meson mako pyyaml packaging

usr=$work/root/usr
sed -i "s#^prefix=.*#prefix=$usr#" "$usr"/lib/x86_64-linux-gnu/pkgconfig/*.pc
for tool in flex bison m4; do  # of that Debian, by its own loader
    printf '#!/bin/sh\nexec %s --library-path %s %s "$@"\n' "$usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2" \
        "$usr/lib/x86_64-linux-gnu" "$usr/bin/$tool" >"$work/python/bin/$tool"
    chmod +x "$work/python/bin/$tool"
done
export PATH="$work/python/bin:$PATH" PKG_CONFIG_PATH="$usr/lib/x86_64-linux-gnu/pkgconfig"
export BISON_PKGDATADIR="$usr/share/bison" M4="$work/python/bin/m4"
meson setup "$work/build" "$work/mesa-$VERSION" --buildtype=release -Dtools=drm-shim,intel -Dbuild-tests=false \
    -Dgallium-drivers= -Dvulkan-drivers= -Dplatforms= -Dvideo-codecs= -Dopengl=false -Dxmlconfig=disabled \
    -Dglx=disabled -Degl=disabled -Dgbm=disabled -Dgles1=disabled -Dgles2=disabled -Dllvm=disabled -Dzstd=disabled \
    -Dlmsensors=disabled -Dlibunwind=disabled -Dvalgrind=disabled >"$work/meson.log"
ninja -C "$work/build" src/intel/tools/libintel_noop_drm_shim.so >"$work/ninja.log"
cp "$work/build/src/intel/tools/libintel_noop_drm_shim.so" "$library/"
