#!/usr/bin/env bash
# Installs into a temporary prefix, then builds tests/consumer and, in C, examples/c against it with
# CMake and with pkg-config. Usage: run.sh BUILD_FOLDER
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
example=$(readlink -f "$here/../../examples/c/two_processes.c")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cmake --install "$1" --prefix "$folder/prefix" >/dev/null
cmake -S "$here" -B "$folder/build" -G Ninja -DCMAKE_PREFIX_PATH="$folder/prefix" >/dev/null
cmake --build "$folder/build"
"$folder/build/consumer"
cmake -S "$here/c" -B "$folder/build_c" -G Ninja -DCMAKE_PREFIX_PATH="$folder/prefix" \
  -DEXAMPLE="$example" >/dev/null
cmake --build "$folder/build_c"
"$folder/build_c/consumer_in_c"

PKG_CONFIG_PATH=$(dirname "$(find "$folder/prefix" -name linkspan.pc)")
export PKG_CONFIG_PATH
LD_LIBRARY_PATH=$(dirname "$PKG_CONFIG_PATH")
export LD_LIBRARY_PATH
read -ra flags <<<"$(pkg-config --cflags --libs linkspan)"
read -ra store <<<"$(pkg-config --libs linkspan-store)"
g++ -std=c++20 "$here/main.cpp" "${flags[@]}" "${store[@]}" -o "$folder/by_pkg_config"
"$folder/by_pkg_config"
gcc -std=c99 "$example" "${flags[@]}" -o "$folder/c_by_pkg_config"
"$folder/c_by_pkg_config"
