#!/usr/bin/env bash
# Makes an apt of arm64's packages, so that this machine's own stays without a second architecture:
#   apt_arm64.sh FOLDER && APT_CONFIG=FOLDER/apt.conf apt-get download PACKAGE...
set -euo pipefail
mkdir -p "$1"/{parts,lists/partial,archives/partial}
folder=$(readlink -f "$1")
touch "$folder/status"
# Of Debian alone: others may have no arm64. A file may be missing.
{ grep -lE '^(URIs:|deb) .*/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null || true; } |
  xargs -r cp -t "$folder/parts"
cat >"$folder/apt.conf" <<END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
Dir::State "$folder";
Dir::State::status "$folder/status";
Dir::Cache "$folder";
Dir::Etc::SourceList "/dev/null";
Dir::Etc::SourceParts "$folder/parts";
END
APT_CONFIG=$folder/apt.conf apt-get -q update
