#!/usr/bin/env bash
# The commands of the seeds' documents as a user types them: from the folder that they name, with
# the exit code and the line that they promise. Works in a copy, so that the tree stays clean.
#
# Usage: seed_commands.sh MODE [--library FILE] [--shim FILE] [--python PATH] [--tcpx FOLDER]
#        [--simple-write FILE] [--build] [--only SEED]
#   MODE       cpu: no driver. simulated: LINKSPAN_CUDA_LIBRARY names the simulated driver.
#              gpu: the machine's own driver and two GPUs.
#   --library  a built libnvlink_transfer.so, for a machine without a compiler: nothing is built
#   --shim     libdriver_shim.so, which makes copies wrong; cpu does without
#   --python   PYTHONPATH with the package linkspan, for seed 001; left out without it
#   --tcpx     where p2p/tcpx's programs and the test plugin are built, for seeds 002 and 003; left
#              out without it
#   --simple-write  the built program of seed 004, whose commands are left out without it
#   --build    build and install all as seed 004 does, which takes minutes
#   --only     the commands of one seed: 000, 001, 002, 004, 004_build
# Exit codes: 0 every row as expected, 1 some row not, 2 the arguments are wrong.
set -uo pipefail
here=$(dirname "$(readlink -f "$0")")

usage() { echo "seed_commands.sh: $1" >&2; sed -n 's/^# \(Usage.*\)/\1/p' "$0" >&2; exit 2; }
mode=${1:-} library="" shim="" python="" simple_write="" tcpx="" build="" only=""
(($# == 0)) || shift
while (($#)); do
  if [[ $1 == --build ]]; then
    build=yes
    shift
    continue
  fi
  (($# > 1)) || usage "$1 wants a value"
  case $1 in
    --python) python=$2 ;;
    --library) library=$(readlink -f "$2") ;;
    --shim) shim=$(readlink -f "$2") ;;
    --simple-write) simple_write=$(readlink -f "$2") ;;
    --tcpx) tcpx=$(readlink -f "$2") ;;
    --only) only=$2 ;;
    *) usage "what is $1?" ;;
  esac
  shift 2
done
case $mode in
  cpu) export LINKSPAN_CUDA_LIBRARY=/nonexistent/libcuda.so.1 ;;
  simulated) [[ -n ${LINKSPAN_CUDA_LIBRARY:-} ]] || usage "simulated wants LINKSPAN_CUDA_LIBRARY" ;;
  gpu) unset LINKSPAN_CUDA_LIBRARY ;;
  *) usage "no such mode: ${mode:-none was given}" ;;
esac
[[ $mode == cpu || -f $shim ]] || usage "$mode wants --shim"
[[ -z $library || -f $library ]] || usage "no such file: $library"
unset NVLINK_TRANSFER_LIBRARY
unset PYTHONUNBUFFERED  # with it print() writes a line in two pieces, between which others write

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/bin"
ln -s "$(command -v python3)" "$scratch/bin/python"  # Debian has no `python`
PATH=$scratch/bin:$PATH
mkdir "$scratch/dies"  # first on PYTHONPATH it kills each process that multiprocessing spawns
cat >"$scratch/dies/sitecustomize.py" <<'END'
import os
if b"--multiprocessing-fork" in open("/proc/self/cmdline", "rb").read():
    os.kill(os.getpid(), 9)
END
ran=0 failed=0

# row MODES SECONDS FOLDER EXIT_CODE LINE COMMAND: runs COMMAND in FOLDER of the tree, when the
# mode is one of MODES, and wants that exit code and a line of output that matches LINE.
row() {
  local modes=$1 seconds=$2 folder=$3 wanted=$4 line=$5 command=$6 code=0 why=""
  [[ " $modes " == *" $mode "* ]] || return 0
  timeout --kill-after=10 "$seconds" bash -c "cd '$tree/$folder' && $command" \
    </dev/null >"$scratch/output" 2>&1 || code=$?
  ran=$((ran + 1))
  [[ $code == "$wanted" ]] || why="exit code $code instead of $wanted"
  grep -qE -- "$line" "$scratch/output" || why="${why:+$why, }no line like: $line"
  if [[ -z $why ]]; then
    printf 'ok    %d  %s\n' "$code" "$command"
  else
    failed=$((failed + 1))
    printf 'FAIL     %s\n         in %s: %s\n' "$command" "./$folder" "$why"
    sed 's/^/         | /' "$scratch/output"
  fi
}

# also MODES LINES...: the output of the row before has a line like each of these.
also() {
  local line
  [[ " $1 " == *" $mode "* ]] || return 0
  for line in "${@:2}"; do
    if grep -qE -- "$line" "$scratch/output"; then continue; fi
    failed=$((failed + 1))
    printf 'FAIL     no line like: %s\n' "$line"
  done
}

# seed NUMBER FOLDERS...: a fresh copy of what that seed's commands touch. False: not asked for.
seed() {
  local folder
  [[ -z $only || $only == "$1" ]] || return 1
  tree=$scratch/$1
  mkdir "$tree"
  for folder in "${@:2}"; do
    mkdir -p "$tree/$(dirname "$folder")"
    cp -r "$here/../$folder" "$tree/$folder" || exit 1
  done
  rm -rf "$tree/vcache/native/build"  # the user's own
}

# ---- seed 000: the NVLink transfer helper ------------------------------------------------------
seed_000() {
  local example=vcache/native/examples/remote_to_local_example.py
  local offset_test='vcache/native/examples/run_remote_to_local_offset_test.py'
  local all='cpu simulated gpu' devices='simulated gpu'
  local verified='another process -> GPU [01]: [0-9]+ bytes.*, verified'
  local wrong="LINKSPAN_SHIM_FLIP=1 LINKSPAN_CUDA_LIBRARY='$shim'"
  [[ $mode == gpu ]] || wrong+=" LINKSPAN_SHIM_DRIVER='${LINKSPAN_CUDA_LIBRARY:-}'"

  row "$all" 60 . 3 'no native library' "python $example"
  row "$all" 60 . 3 'no native library' "python $offset_test"
  if [[ -n $library ]]; then
    mkdir -p "$tree/vcache/native/build"
    cp "$library" "$tree/vcache/native/build/libnvlink_transfer.so"
  else
    row "$all" 300 vcache/native 0 'Built target|Linking' \
      'mkdir build && cd build && cmake .. && cmake --build . --config Release'
    row "$all" 10 vcache/native/build 0 'libnvlink_transfer.so' 'ls'
  fi

  row cpu 60 . 2 'no CUDA driver' "python $example"
  row cpu 60 . 2 'no CUDA driver' \
    "python $offset_test --src 0 --dst 1 --total 1048576 --offset 65536 --len 1024"
  row "$devices" 60 . 0 "$verified" "python $example"
  row "$devices" 60 . 0 '1024 bytes from 65536 of 1048576, verified' \
    "python $offset_test --src 0 --dst 1 --total 1048576 --offset 65536 --len 1024"
  row "$devices" 60 . 0 '1024 bytes from 65536 of 1048576, verified' "python $offset_test"
  row "$devices" 60 . 0 '1 bytes from 1048575 of' "python $offset_test --offset 1048575 --len 1"
  row "$devices" 60 . 0 "$verified" "python $offset_test --src 1 --dst 0 --offset 65537 --len 4097"

  row "$devices" 60 . 1 'answered 1: perform_direct_transfer: ' \
    "python $offset_test --offset 1073741824 --len 1"
  row "$devices" 60 . 1 'exporter: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY' \
    "python $offset_test --total 1099511627776"
  row "$all" 60 . 1 'unrecognized arguments: --ofset' "python $offset_test --ofset 1"
  row "$devices" 60 . 1 'the other process died' "PYTHONPATH='$scratch/dies' python $example"
  row "$devices" 60 . 1 'not those that were sent' "$wrong python $example"
  row "$devices" 60 . 1 '1 wrong bytes, the first at 0 of 1024' "$wrong python $offset_test"

  row "$devices" 60 . 2 'needs 2 GPUs that this process sees, and it sees 1' \
    "CUDA_VISIBLE_DEVICES=0 python $example"
  row "$devices" 60 . 2 'needs 2 GPUs that this process sees, and it sees 1' \
    "CUDA_VISIBLE_DEVICES=0 python $offset_test"
  row "$devices" 60 . 2 'CUDA_ERROR_NO_DEVICE' "CUDA_VISIBLE_DEVICES= python $example"
  row "$devices" 60 . 0 "$verified" "CUDA_VISIBLE_DEVICES=0 python $example --src 0 --dst 0"
  row "$devices" 60 . 0 "$verified" "CUDA_VISIBLE_DEVICES=0 python $offset_test --src 0 --dst 0"
}

native=(vcache/native/examples)
[[ -n $library ]] || native=(vcache/native src include)
if seed 000 "${native[@]}"; then seed_000; fi

# ---- seed 001: CPU and GPU over IPC --------------------------------------------------------------
seed_001() {
  local all='cpu simulated gpu' devices='simulated gpu' test=tests/test_ipc_cpu_gpu.py
  export PYTHONPATH=$python
  row "$all" 60 p2p 0 '^OK$' "python3 -c \"from uccl import p2p; print('OK')\""
  row "$all" 300 p2p 0 ' passed, 0 failed$' "UCCL_P2P_LOG_LEVEL=INFO python3 $test"
  also "$all" '^\[INFO\] \[send_ipc\] conn_id=[0-9]+ size=[0-9]+ sender_mem=CPU$' \
    '^\[INFO\] \[recv_ipc\] conn_id=[0-9]+ size=[0-9]+ receiver_mem=CPU$'
  also "$devices" '^\[INFO\] \[send_ipc\] conn_id=[0-9]+ size=[0-9]+ sender_mem=GPU dev=[01]$' \
    '^\[INFO\] \[send_ipc\] Memory negotiation complete: GPU -> CPU$' \
    '^\[INFO\] \[send_ipc\] Using PULL model \(receiver reads from sender.s GPU\)$' \
    '^\[INFO\] \[send_ipc\] PULL model transfer completed successfully$' \
    '^\[INFO\] \[recv_ipc\] Memory negotiation complete: GPU -> CPU$' \
    '^\[INFO\] \[recv_ipc\] Using PULL model \(receiver reads from sender.s GPU\)$' \
    '^\[INFO\] \[recv_ipc\] Copying GPU->CPU using DeviceToHost$' \
    '^\[INFO\] \[recv_ipc\] PULL model transfer completed successfully$' \
    '^\[INFO\] \[send_ipc\] Memory negotiation complete: CPU -> GPU$' \
    '^\[INFO\] \[send_ipc\] Using PUSH model \(sender writes to receiver.s GPU\)$' \
    '^\[INFO\] \[send_ipc\] Copy kind: HostToDevice$' \
    '^\[INFO\] \[send_ipc\] Using 1 stream\(s\) for transfer$' \
    '^\[INFO\] \[send_ipc\] PUSH model transfer completed successfully$'
  local from to
  for from in CPU 'pinned CPU' GPU; do
    for to in CPU 'pinned CPU' GPU; do also "$devices" "^ok $from -> $to,"; done
  done
  row 'cpu gpu' 300 p2p 0 '1 passed' "python3 -m pytest -q -p no:cacheprovider $test"
  # torch is of several GB: a machine without GPUs need not have it.
  if [[ $mode == gpu ]] || command -v torchrun >/dev/null; then
    row "$all" 300 p2p 0 ' passed, 0 failed$' "torchrun --nproc_per_node=2 $test"
  fi
  unset PYTHONPATH
}

if [[ -n $python ]] && seed 001 p2p tests/support; then seed_001; fi

# ---- seeds 002 and 003: GPU memory through a network plugin --------------------------------------
seed_002() {
  local devices='simulated gpu' unpack script=./run_tcpx_test.sh
  export LINKSPAN_NCCL_NET_PLUGIN=$tcpx/libnccl-net-linkspan-test.so
  row 'cpu simulated' 120 p2p/tcpx 0 'build.*--target test_tcpx_transfer' "make clean && make BUILD='$tcpx'"
  [[ $mode != gpu ]] || ln -s "$tcpx"/test_* "$tree/p2p/tcpx/tests/"
  # Two terminals: the client's end is the server's too.
  local both="{ $script %s server >first & $script %s 127.0.0.1 || exit 9; wait \$! || exit 8; cat first; }"
  row "cpu $devices" 60 p2p/tcpx 0 '✓ Connection test PASSED' "$(printf "$both" connection connection)"
  for unpack in d2d host kernel; do
    row "$devices" 60 p2p/tcpx 0 '^\[DEBUG\] Device unpack completed successfully$' \
      "export UCCL_TCPX_UNPACK_IMPL=$unpack; $(printf "$both" transfer transfer)"
  done
  local program=./tests/test_tcpx_transfer
  row "$devices" 60 p2p/tcpx 0 '^\[DEBUG\] Received data matches expected payload$' \
    "{ $program server >first & $program client 127.0.0.1 || exit 9; wait \$! || exit 8; cat first; }"
  row "cpu $devices" 60 p2p/tcpx 0 '\[  PASSED  \]' ./tests/test_rx_cmsg_parser
  row "cpu $devices" 60 p2p/tcpx 0 '\[  PASSED  \]' ./tests/test_rx_descriptor
  row "cpu $devices" 20 p2p/tcpx 2 'transfer or connection' "$script both server"
  row "cpu $devices" 20 p2p/tcpx 2 '^usage: .*client SERVER_IP' "$program client"
}

if [[ -n $tcpx ]] && seed 002 p2p/tcpx; then seed_002; fi

# ---- seed 004: kernels that write to a peer ----------------------------------------------------
seed_004() {
  local program=./build/examples/device/2proc/simple_write devices='simulated gpu' all='cpu simulated gpu'
  local prefix='export UCX_POSIX_USE_PROC_LINK=n; '  # the seed's; nothing here needs it
  mkdir -p "$tree/build/examples/device/2proc"
  # A link, so that the program finds the library beside itself.
  ln -s "$simple_write" "$tree/$program"

  row "$all" 20 . 0 '--mode initiator.target' "$program --help"
  row "$all" 20 . 2 'what is --frob' "$program --frob"
  row "$all" 20 . 2 '--mode is "both"' "$program --mode both"
  row cpu 20 . 2 'no CUDA device' "CUDA_VISIBLE_DEVICES= $program --mode initiator"
  # Two terminals, in either order. The second one's end is the first one's too.
  local both="{ $program --mode %s >first & sleep 0.5; $program --mode %s || exit 9; wait \$! || exit 8; cat first; }"
  row "$devices" 120 . 0 '1048576 +[0-9]+ .* ok' "$prefix$(printf "$both" initiator target)"
  row "$devices" 120 . 0 '1048576 +[0-9]+ .* ok' "$(printf "$both" target initiator)"
  row "$devices" 120 . 0 '  4097 +[0-9]+ .* ok' \
    "$(printf "$both" 'initiator --size 4097' 'target --size 4097')"
}

if [[ -n $simple_write ]] && seed 004; then seed_004; fi

# Its build, of all that is not a test. The folders that CMakeLists.txt names.
seed_004_build() {
  local all='cpu simulated gpu' root=$tree/root
  export CCACHE_BASEDIR=$tree CCACHE_NOHASHDIR=1
  row "$all" 120 . 0 'Build files have been written' 'cmake -G Ninja -B build'
  row "$all" 1200 . 0 'Linking' 'ninja -C build'
  row "$all" 60 . 0 'liblinkspan\.so\.0' "DESTDIR='$root' ninja -C build install"
  row "$all" 20 . 0 'liblinkspan\.so\.0 -> ' "/sbin/ldconfig -v -n '$root'/usr/local/lib"
  row "$all" 20 . 0 'lib/liblinkspan\.so$' "find '$root' -name 'liblinkspan.so'"
  row "$all" 20 . 0 'linkspan\.pc$' "find '$root' -name linkspan.pc"
  row "$all" 20 . 0 '--mode initiator.target' './build/examples/device/2proc/simple_write --help'
}

if [[ -n $build ]] && seed 004_build CMakeLists.txt cmake include src p2p tools bench scripts python examples \
  vcache integrations; then
  seed_004_build
fi

echo "$ran commands, $failed not as expected"
((ran > 0 && failed == 0))
