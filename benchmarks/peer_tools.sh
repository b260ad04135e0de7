#!/bin/sh
# What ggml's Vulkan backend is built with, where the system's own is too old for its shaders: glslc, the headers of Vulkan
# and SPIR-V, from Debian's newest packages, in a folder, without root.
#     benchmarks/peer_tools.sh FOLDER     then VULKAN_TOOLS=FOLDER benchmarks/build_peer.sh vulkan OUT
# `debian_packages.sh` says what it needs.
set -eu
mkdir -p "$1"
folder="$(cd "$1" && pwd)"
# The C library comes along, as that of the system is older than what glslc was linked with.
"$(dirname "$0")/debian_packages.sh" "$folder" glslc libc6 libvulkan-dev spirv-headers

cat >"$folder/glslc" <<'END'
#!/bin/sh
root="$(dirname "$(readlink -f "$0")")/usr"
libraries="$(echo "$root"/lib/*-linux-gnu)"
for loader in "$libraries"/ld-linux*.so.*; do exec "$loader" --library-path "$libraries" "$root/bin/glslc" "$@"; done
END
chmod +x "$folder/glslc"
"$folder/glslc" --version
