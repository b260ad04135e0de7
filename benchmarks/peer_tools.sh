#!/bin/sh
# What ggml's Vulkan backend is built with, where the system's own is too old for its shaders: glslc, the headers of Vulkan
# and SPIR-V, from Debian's newest packages, in a folder, without root.
#     benchmarks/peer_tools.sh FOLDER     then VULKAN_TOOLS=FOLDER benchmarks/build_peer.sh vulkan OUT
# Needs apt and Debian's keyring (KEYRING); MIRROR and SUITE say where from.
set -eu
mkdir -p "$1"
folder="$(cd "$1" && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/preferences"
: >"$work/status"
cat >"$work/sources.list" <<END
deb [signed-by=${KEYRING:-/usr/share/keyrings/debian-archive-keyring.gpg}] ${MIRROR:-http://deb.debian.org/debian} ${SUITE:-sid} main
END
cat >"$work/apt.conf" <<END
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "-";
Dir::Etc::preferences "-";
Dir::Etc::preferencesparts "$work/preferences";
Dir::State::lists "$work/lists";
Dir::State::status "$work/status";
Dir::Cache "$work";
APT::Sandbox::User "root";
END
export APT_CONFIG="$work/apt.conf"
apt-get -qq update
# The C library comes along, as that of the system is older than what glslc was linked with.
(cd "$work" && apt-get -qq download glslc libshaderc1 libc6 libgcc-s1 libstdc++6 libvulkan-dev spirv-headers)
for package in "$work"/*.deb; do dpkg -x "$package" "$folder"; done

cat >"$folder/glslc" <<'END'
#!/bin/sh
root="$(dirname "$(readlink -f "$0")")/usr"
libraries="$(echo "$root"/lib/*-linux-gnu)"
for loader in "$libraries"/ld-linux*.so.*; do exec "$loader" --library-path "$libraries" "$root/bin/glslc" "$@"; done
END
chmod +x "$folder/glslc"
"$folder/glslc" --version
