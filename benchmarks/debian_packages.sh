#!/bin/sh
# Unpacks Debian's newest packages, and all that they need, into a folder, without root. Nothing of the system changes.
#     benchmarks/debian_packages.sh FOLDER PACKAGE...
# Needs apt and Debian's keyring (KEYRING). MIRROR is that of the system's own packages by default, SUITE is sid.
set -eu
mkdir -p "$1"
folder="$(cd "$1" && pwd)"
shift
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

mirror="${MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -1)}"
mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/preferences"
: >"$work/status"
cat >"$work/sources.list" <<END
deb [signed-by=${KEYRING:-/usr/share/keyrings/debian-archive-keyring.gpg}] $mirror ${SUITE:-sid} main
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
APT::Install-Recommends "false";
Debug::NoLocking "1";
END
export APT_CONFIG="$work/apt.conf"
apt-get -qq update
apt-get -qq -y --download-only install "$@" >/dev/null
for package in "$work"/archives/*.deb; do dpkg -x "$package" "$folder"; done
