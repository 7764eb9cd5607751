#!/usr/bin/env bash
# Installs into a temporary prefix, then builds tests/consumer against it with CMake and with
# pkg-config. Usage: run.sh BUILD_FOLDER
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cmake --install "$1" --prefix "$folder/prefix" >/dev/null
cmake -S "$here" -B "$folder/build" -G Ninja -DCMAKE_PREFIX_PATH="$folder/prefix" >/dev/null
cmake --build "$folder/build"
"$folder/build/consumer"

PKG_CONFIG_PATH=$(dirname "$(find "$folder/prefix" -name linkspan.pc)")
export PKG_CONFIG_PATH
read -ra flags <<<"$(pkg-config --cflags --libs linkspan)"
g++ -std=c++20 "$here/main.cpp" "${flags[@]}" -o "$folder/by_pkg_config"
LD_LIBRARY_PATH=$(dirname "$PKG_CONFIG_PATH") "$folder/by_pkg_config"
