#!/usr/bin/env bash
# Does the NVLink transfer helper keep to what every platform has? Builds nvlink_transfer.dll with
# mingw-w64 from the CMake file of its users, holds its exports against the header, loads it under
# wine where wine is, and has clang read its sources and its header as plain C99 and C++20.
# Usage: check_windows.sh            (into out/windows)
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
header=vcache/native/include/linkspan/nvlink_transfer.h
build=out/windows prefix=x86_64-w64-mingw32
fail() { echo "check_windows.sh: $1" >&2; exit 1; }

cmake --fresh -S vcache/native -B "$build" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/mingw.cmake" \
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >"$build.log" 2>&1 ||
  { cat "$build.log"; fail "no configuration for mingw"; }
cmake --build "$build"
dll=$build/nvlink_transfer.dll
[[ -f $dll ]] || fail "no $dll"

promised=$(sed -nE 's/^NVLINK_TRANSFER_API ([a-z_* ]*[ *])([A-Za-z_]+)\(.*/\2/p' "$header" | sort)
exported=$("$prefix-objdump" -p "$dll" |
  sed -n '/Ordinal\/Name Pointer\] Table/,/^$/s/^\t\[ *[0-9]*\] //p' | sort)
[[ -n $promised ]] || fail "found no names in $header"
diff <(echo "$promised") <(echo "$exported") || fail "< in the header, > exported"

foreign=$("$prefix-objdump" -p "$dll" | sed -n 's/^\tDLL Name: //p' |
  grep -viE '^(kernel32|msvcrt|ucrtbase|advapi32|user32|api-ms-win-.*)(\.dll)?$' || true)
[[ -z $foreign ]] || fail "needs what Windows does not have: $foreign"

# The same sources, without a flag that only GNU compilers take.
mapfile -t files < <(python3 -c '
import json, sys
for entry in json.load(open(sys.argv[1])):
    print(entry["file"])' "$build/compile_commands.json" | grep '\.cpp$')
((${#files[@]})) || fail "no sources in $build/compile_commands.json"
for file in "${files[@]}"; do
  clang++ -fsyntax-only -std=c++20 -pedantic -Wall -Wextra -Werror \
    -I. -Iinclude -Isrc -Ivcache/native/include "$file"
done
for language in c:c99 c++:c++20; do
  clang -fsyntax-only -x "${language%:*}" "-std=${language#*:}" -pedantic -Wall -Wextra -Werror \
    "$header"
done
echo "$dll: $(wc -l <<<"$exported") exports; ${#files[@]} sources and the header are pedantic"

"$prefix-gcc-posix" -std=gnu11 -Wall -Wextra -Werror -Ivcache/native/include -static \
  -o "$build/load.exe" vcache/native/tests/nvlink_transfer_load.c
if command -v wine >/dev/null; then
  WINEDEBUG=-all WINEPREFIX=${WINEPREFIX:-$PWD/$build/wine} timeout --kill-after=10 120 \
    wine "$build/load.exe" "$dll" || fail "the DLL does not load or answer under wine"
else
  echo "wine is not installed: the DLL was not loaded"
fi
