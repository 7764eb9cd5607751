#!/usr/bin/env bash
# By hand, as root: do the wheels run in a Debian where nothing of ours is installed?
# In bookworm, trixie and sid pip installs linkspan into a new venv, and doctor, demo and the
# package's own tests run, by a user who is not root. bullseye's Python is too old for the wheel: there
# it is unpacked, and the tool, the C interface and the plugins run. Needs debootstrap. Roots and logs
# are kept, so that a second run is quick; remove a root to get a newer one.
# With --aarch64 the roots are of arm64, and QEMU's user mode runs them, on the host's kernel and in the
# host's order of memory: what needs a weaker order stays untried. Needs qemu-user-static, too.
# Usage: clean_roots.sh [FOLDER_OF_WHEELS] [--aarch64] [--roots FOLDER] [--only ROOT...]
#   default: out/wheels, /var/tmp/linkspan_roots (with --aarch64 its aarch64), all four
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/support/debian_root.sh"
known=(bookworm trixie sid bullseye)
home=/home/tester
suite="" architecture="" processor=$(uname -m) patience=1
# Tests of what QEMU's user mode has not: process_vm_readv(), in the same process too; TCP_INFO;
# MADV_POPULATE_READ; a process' start time, by which two Engines know that they share one; the end of
# a thread before its join.
beyond_qemu=('*Verbs*' 'CopyWithin.*' CpuCopierTest.{CopiesSmallSealed,LeavesASmall,ReadsAndWrites,NamesThe,SaysThat}'*'
  LocalEndpointTest.{ExecutesWhatIsPermitted,ANumberThatIsAnother,OffersAreOnce,AnswersLater}'*'
  'TcpInflight.*' 'TcpCancels.*' 'TcpConnectionSet.SumsTheTraffic*' 'TcpDataSocket.CountsItsTraffic*'
  'PageAccessTest.SeesPagesBehindTheEndOfAFile' 'CApiPair.NamesKindsAndReports'
  'Messages.Arrive_WhicheverSideIsFirst' 'WithoutMemory.CpuCopiesGoOn')

refuse() {
  echo "clean_roots.sh: $*" >&2
  exit 2
}

say() { echo "$suite: $*"; }

# step NAME SECONDS COMMAND [USER]: runs it in the root, as tester by default; shows the last line of
# what it printed.
step() {
  local log="$roots/logs/$suite.${1// /_}" code=0 begin=$SECONDS last limit=$(($2 * patience))
  in_debian_root "$root" "${4:-tester}" "timeout -k 10 $limit bash -c $(printf %q "set -e; $3")" \
    </dev/null >"$log" 2>&1 || code=$?
  last=$(tail -n1 "$log" | sed -E 's/^=+ | =+$//g' | cut -c1-160)
  if ((code == 0)); then
    say "$1: ok${last:+ ($last)}"
    return 0
  fi
  ((code != 124 && code != 137)) || code="$code, after $((SECONDS - begin)) of $limit s"
  fail "$1" "exit code $code" "$log"
}

fail() {  # fail NAME REASON [LOG]
  say "$1: FAILED: $2${3:+; $3 ends with:}"
  [[ -z ${3:-} ]] || tail -n 25 "$3" | sed 's/^/    /'
  failed+=("$suite $1")
  return 1
}

# fill_root PACKAGE...: the root $suite with these packages and the wheels.
fill_root() {
  make_debian_root "$suite" "$root" "$architecture" && mount_debian_root "$root" || return
  in_debian_root "$root" root "id tester && dpkg -s ca-certificates $*" ||
    install_in_debian_root "$root" "$@" || return
  rm -rf "${root:?}$home/wheels" && install -d "$root$home/wheels" &&
    install -m644 "$wheels"/linkspan*.whl "$root$home/wheels"
}

prepare() {  # prepare PACKAGE...
  local log="$roots/logs/$suite.root"
  fill_root "$@" >"$log" 2>&1 </dev/null ||
    fail root "debootstrap, mount or apt-get" "$log" || return
  step root 60 "echo \$(python3 --version), \$(getconf GNU_LIBC_VERSION)"
}

try_with_pip() {
  prepare python3 python3-venv || return 0
  # The last line shows which of the wheels pip chose.
  step "pip install" 300 "rm -rf venv; python3 -m venv venv
    venv/bin/pip install --no-index --find-links wheels --no-deps linkspan
    venv/bin/pip install pytest
    grep -h ^Tag: venv/lib/python3*/site-packages/linkspan-*.dist-info/WHEEL | tail -n1" || return 0
  step doctor 120 "venv/bin/linkspan doctor" || true
  step demo 120 "venv/bin/linkspan demo" || true
  step pytest 300 "venv/bin/python -m pytest -p no:cacheprovider --pyargs linkspan" || true
  try_libraries venv/lib/python3*/site-packages/linkspan
}

# try_libraries FOLDER: of the package linkspan, which the root's Python calls by ctypes.
try_libraries() {
  install -m644 "$here/support/unpacked_wheel.py" "$root$home"
  step "C interface" 60 "python3 unpacked_wheel.py c-interface $1" || true
  step "NIXL plugin" 60 "python3 unpacked_wheel.py nixl-plugin $1/nixl/libplugin_LINKSPAN.so" || true
}

# try_unit: linkspan_unit, crossed, but for tests of what QEMU's user mode lacks; as root, whom some
# need.
try_unit() {
  local build file
  build=$(dirname "$here")/out/aarch64
  if [[ ! -x $build/linkspan_unit ]]; then
    say "unit: not tried: ./dev build aarch64 linkspan_unit"
    return 0
  fi
  rm -rf "$root$home/unit" && install -d -o "$(stat -c %u "$root$home")" "$root$home/unit" &&
    install -m644 "$here/allowed_skips.txt" "$(dirname "$here")/scripts/check_skips.py" "$root$home/unit"
  for file in linkspan_unit nccl/libnccl-net-linkspan.so $(cd "$build" && echo *.so); do
    install -D "$build/$file" "$root$home/unit/$file"
  done
  step unit 120 "cd $home/unit; LINKSPAN_CUDA_LIBRARY=/nonexistent/libcuda.so.1 python3 check_skips.py \
    --allowed allowed_skips.txt --xml unit.xml \
    --run ./linkspan_unit --gtest_brief=1 --gtest_filter='-$(IFS=:; echo "${beyond_qemu[*]}")'" root || true
}

# newest_wheel NAME MINOR: the newest of the package that runs with glibc 2.MINOR, by its name.
newest_wheel() {
  local each needs
  while read -r each; do
    needs=$(grep -oE 'manylinux_2_[0-9]+' <<<"${each##*/}" | sed 's/.*_//' | sort -n | head -n1 || true)
    if [[ -n $needs ]] && ((needs <= $2)); then
      echo "${each##*/}"
      return 0
    fi
  done < <(ls -t "$wheels/$1"-*_"$processor".whl 2>/dev/null)
  return 1
}

try_unpacked() {
  local wheel chosen=() package glibc
  prepare python3 || return 0
  glibc=$(in_debian_root "$root" root "getconf GNU_LIBC_VERSION")
  for package in linkspan linkspan_nccl; do
    if wheel=$(newest_wheel "$package" "${glibc##*.}"); then chosen+=("$wheel"); fi
  done
  if [[ ${chosen[0]:-} != linkspan-* ]]; then
    fail unpack "no linkspan wheel of $wheels is for $glibc: ./dev wheel --old-glibc" || return 0
  fi
  # zipfile restores no mode.
  step unpack 60 "rm -rf unpacked
    for wheel in ${chosen[*]}; do python3 -m zipfile -e wheels/\$wheel unpacked; done
    chmod +x unpacked/linkspan/bin/linkspan; echo ${chosen[*]}" || return 0
  step doctor 120 "unpacked/linkspan/bin/linkspan doctor" || true
  step demo 120 "unpacked/linkspan/bin/linkspan demo" || true
  try_libraries unpacked/linkspan
  if [[ ${chosen[*]} == *linkspan_nccl-* ]]; then
    step "NCCL plugin" 60 \
      "python3 unpacked_wheel.py nccl-plugin unpacked/nvidia/nccl/lib/libnccl-net-linkspan.so" || true
  else
    say "NCCL plugin: not tried: $wheels has no wheel linkspan_nccl for $glibc"
  fi
  # The one Python package of the wheel that takes a Python this old.
  step "nvlink_transfer_engine" 60 "cd unpacked; python3 -c '
from nvlink_transfer_engine import NvlinkTransferEngine
with NvlinkTransferEngine() as engine: print(engine.library_path, engine.library_version)'" || true
}

wheels="" roots="" only=()
while (($#)); do
  case $1 in
    --aarch64) architecture=arm64 processor=aarch64 patience=10 && shift ;;
    --roots)
      [[ -n ${2:-} && $2 != --* ]] || refuse "--roots needs a folder"
      roots=$2 && shift 2
      ;;
    --only)
      shift
      while (($#)) && [[ $1 != --* ]]; do
        [[ " ${known[*]} " == *" $1 "* ]] || refuse "--only $1: a root is one of ${known[*]}"
        only+=("$1") && shift
      done
      ((${#only[@]})) || refuse "--only needs a root, one of ${known[*]}"
      ;;
    -*) refuse "$1 is none of --aarch64, --roots and --only" ;;
    *)
      [[ -z $wheels ]] || refuse "$1: $wheels is the folder of wheels already"
      wheels=$1 && shift
      ;;
  esac
done
wheels=${wheels:-$(dirname "$here")/out/wheels}
[[ -d $wheels ]] || refuse "$wheels is no folder: ./dev wheel --old-glibc PYTHON... makes out/wheels"
wheels=$(readlink -f "$wheels")
compgen -G "$wheels/linkspan-*_$processor.whl" >/dev/null ||
  refuse "$wheels has no linkspan-*_$processor.whl: ./dev wheel --old-glibc${architecture:+ --aarch64} PYTHON... makes them"
roots=${roots:-/var/tmp/linkspan_roots${architecture:+/$processor}}
find_debian_mirror
mkdir -p "$roots/logs"
roots=$(readlink -f "$roots")
exec {lock}>"$roots/lock"
flock -n "$lock" || refuse "another run uses $roots"

((${#only[@]})) || only=("${known[@]}")
failed=()
root=""
trap '[[ -z $root ]] || unmount_debian_root "$root"; stop_emulating' EXIT
[[ -z $architecture ]] || emulate_aarch64
for suite in "${only[@]}"; do
  root=$roots/$suite
  if [[ $suite == bullseye ]]; then try_unpacked; else try_with_pip; fi
  [[ $suite != bookworm || -z $architecture ]] || try_unit  # of its libraries
  unmount_debian_root "$root"
done
if ((${#failed[@]})); then
  printf -v list ', %s' "${failed[@]}"
  echo "clean roots: FAILED: ${list:2}"
  exit 1
fi
echo "clean roots: ok"
