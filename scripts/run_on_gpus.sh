#!/usr/bin/env bash
# Runs everything that needs a GPU, from the folder that `./dev gpu-pack` made. Wants a driver and
# Python; compute-sanitizer if it is there. Goes on after a failure and ends with a table.
# --only runs the named steps alone: what is long, such as faults, in a call of its own. It fails if
# one of them is absent.
# Usage: run_on_gpus.sh --out DIR [--commit ID] [--only "STEP ..."]
set -uo pipefail
pack=$(dirname "$(readlink -f "$0")")
out="" commit="" only=""
while (($#)); do
  case $1 in
    --out) out=$2; shift 2 ;;
    --commit) commit=$2; shift 2 ;;
    --only) only=$2; shift 2 ;;
    *) sed -n 's/^# \(Usage.*\)/\1/p' "$0" >&2; exit 2 ;;
  esac
done
[[ -n $out ]] || { echo "run_on_gpus.sh: --out is missing" >&2; exit 2; }
[[ -f $pack/sources.json ]] || { echo "run_on_gpus.sh: run it from the folder of ./dev gpu-pack" >&2; exit 2; }
commit=${commit:-$(<"$pack/commit")}
mkdir -p "$out"
out=$(readlink -f "$out")

# What compute-sanitizer watches of linkspan_conformance and of linkspan_unit: it is slow.
memcheck_filter='*Copies*:*MovesBlocks*:EngineShapes.*'
memcheck_unit_filter='*UnpackOnDevice.*:*OnDevice.Copies*:*GpuCopies.Copies*'
memcheck_unit_filter+=':-CapturedCopy*'  # counts in host memory by atomics, which memcheck refuses there
racecheck_filter='KernelsOnDevice.*:*GpuPages.*:ResidentOnDevice.*'  # the kernels, which use shared memory
unset LINKSPAN_CUDA_LIBRARY
PATH=$PATH:/usr/local/cuda/bin
results=() failed=0 offered=" "

# wanted NAME: notes that there is such a step. Fails if --only leaves it out.
wanted() {
  offered+="$1 "
  [[ -z $only || " $only " == *" $1 "* ]]
}

# step NAME SECONDS COMMAND...
step() {
  local name=$1 seconds=$2 code=0 begin=$SECONDS result=ok
  shift 2
  wanted "$name" || return 0
  echo "== $name: $*"
  timeout --kill-after=10 "$seconds" "$@" || code=$?
  case $code in
    0) ;;
    124 | 137) result="TIMED OUT after $seconds s" ;;
    *) result="FAILED ($code)" ;;
  esac
  [[ $code == 0 ]] || failed=1
  results+=("$(printf '%-14s %4d s  %s' "$name" $((SECONDS - begin)) "$result")")
}

# absent NAME WHY: a failure if --only names the step.
absent() {
  wanted "$1" || return 0
  [[ -z $only ]] || failed=1
  results+=("$(printf '%-14s    -    %s' "$1" "absent: $2")")
}

# suite NAME PROGRAM SECONDS [COMMAND BEFORE THE PROGRAM...] [-- OPTIONS]
suite() {
  local name=$1 program=$2 seconds=$3 before=() options=()
  shift 3
  while (($#)) && [[ $1 != -- ]]; do before+=("$1"); shift; done
  (($#)) && options=("${@:2}")
  [[ -x $pack/$program ]] || { absent "$name" "$program was not packed"; return; }
  step "$name" "$seconds" python3 "$pack/check_skips.py" --allowed "$pack/allowed_skips.txt" --mode gpu \
    --xml "$out/$name.xml" --run "${before[@]}" "$pack/$program" "${options[@]}"
}

# program NAME FILE SECONDS [ARGUMENTS...]
program() {
  local name=$1 file=$2 seconds=$3 python=()
  shift 3
  [[ -e $pack/$file ]] || { absent "$name" "$file was not packed"; return; }
  [[ $file != *.py ]] || python=(python3)
  step "$name" "$seconds" "${python[@]}" "$pack/$file" "$@"
}

# Two processes as clients of a daemon of MPS, which is ended again.
mps() {
  wanted mps || return 0
  command -v nvidia-cuda-mps-control >/dev/null || { absent mps "no nvidia-cuda-mps-control"; return; }
  local only=${only:+mps mps_was_used mps_ends}  # all of the steps in here
  local -x CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY=$out/mps
  CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d) && mkdir -p "$CUDA_MPS_LOG_DIRECTORY"
  nvidia-cuda-mps-control -d || { absent mps "its daemon does not start"; return; }
  suite mps linkspan_conformance 120 -- '--gtest_filter=*EnginePairs.Moves*device*:*Captured*'
  # Its servers, one for a user who was a client.
  step mps_was_used 30 bash -c 'nvidia-cuda-mps-control <<<get_server_list | grep .'
  step mps_ends 30 bash -c 'nvidia-cuda-mps-control <<<"quit -t 10"'
}

# The tests of the plugin in GPU memory, with NIXL from the parts in the folder $1.
nixl_tests() {
  wanted nixl_tests || return 0  # it would unpack 250 MB
  local folder unpacked libraries
  folder=$(mktemp -d)
  if read -r unpacked libraries < <(cd "$pack/bench/peers" && python3 -c '
import pathlib, sys, wheels
site = wheels.unpack(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]) / "site")
print(site, wheels.library_paths(site))' "$(readlink -f "$1")" "$folder"); then
    step nixl_tests 400 env LINKSPAN_NIXL_MEMORY=VRAM "PYTHONPATH=$PYTHONPATH:$unpacked" \
      "LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$libraries" \
      python3 "$pack/check_skips.py" --allowed "$pack/allowed_skips.txt" --mode gpu \
      --xml "$out/nixl_tests.xml" --pytest --run python3 -m pytest -q -p no:cacheprovider \
      "$pack/integrations/nixl/tests/nixl_transfers_test.py" \
      "$pack/integrations/nixl/tests/nixl_faults_test.py"
  else
    absent nixl_tests "the parts of NIXL could not be unpacked"
  fi
  rm -rf "$folder"
}

# The wheel, beside the machine's own torch and numpy.
python_steps() {
  local wheels=("$pack"/*.whl) site=$out/site
  [[ -e ${wheels[0]} ]] || { absent python_tests "no wheel was packed"; return; }
  python3 -m zipfile -e "${wheels[0]}" "$site" && chmod +x "$site/linkspan/bin/linkspan"
  local -x PYTHONPATH=$site:$pack/pytest
  step python_tests 300 python3 "$pack/check_skips.py" --allowed "$pack/allowed_skips.txt" --mode gpu \
    --xml "$out/python_tests.xml" --pytest --run python3 -m pytest -q -p no:cacheprovider \
    -o 'python_files=*_test.py test_*.py' "$pack/tests/python" "$site/linkspan/tests" \
    "$pack/integrations/mooncake/tests"
  step seed_001 300 "$pack/tests/seed_commands.sh" gpu --shim "$pack/libdriver_shim.so" \
    --python "$PYTHONPATH" --only 001
  step python_bench 120 python3 "$pack/bench/python_overhead.py" --json "$out/python.json"
  step many_gpus 300 python3 "$pack/bench/many_gpus/run.py" --json "$out/many_gpus.json"
  # Others' libraries, in the parts of `bench/peers/run.py --fetch`. Without them their rows are absent.
  local peers=${LINKSPAN_PEERS:-$pack/peers} wheels_of_peers=()
  [[ ! -d $peers ]] || wheels_of_peers=(--wheels "$peers")
  step peers 540 python3 "$pack/bench/peers/run.py" "${wheels_of_peers[@]}" --json "$out/peers.json"
  if [[ -d $site/linkspan/nixl && -d $peers ]]; then
    step nixl 300 python3 "$pack/bench/peers/run.py" --nixl "$site/linkspan/nixl" \
      "${wheels_of_peers[@]}" --json "$out/nixl.json"
    nixl_tests "$peers"
  else
    absent nixl "no plugin in the wheel, or no parts of NIXL"
    absent nixl_tests "the same"
  fi
  local example
  for example in kv_pages weights offload; do
    step "example_$example" 120 python3 "$pack/examples/python/$example.py"
  done
  step example_connector 120 python3 "$pack/examples/kv_connector/main.py"
  step example_connector_tcp 120 python3 "$pack/examples/kv_connector/main.py" --tcp 127.0.0.1
}

run_all() {
  echo "linkspan $commit on $(uname -n), $(date -u +%FT%TZ)"
  nvidia-smi -L || echo "no nvidia-smi"
  python3 "$pack/evidence.py" stamp "$out" "$commit"
  cd "$out" || return 1
  if [[ -x $pack/linkspan ]]; then
    step doctor 60 "$pack/linkspan" doctor --gpu --json "$out/doctor.json"
    step demo 120 "$pack/linkspan" demo --json "$out/demo.json"
    step topo 160 "$pack/linkspan" topo --json "$out/topo.json" --svg "$out/topo.svg"
    step bench 120 "$pack/linkspan" bench --suite foundation --with-ceiling --json "$out/bench.json"
    step bench_host 480 "$pack/linkspan" bench --suite host --with-ceiling \
      --json "$out/host.json" --svg "$out/host.svg"
  else
    absent demo "linkspan was not packed"
  fi
  suite driver_facts linkspan_driver_facts 120 env "LINKSPAN_FACTS_OUT=$out/driver_facts.json"
  suite unit linkspan_unit 150
  suite conformance linkspan_conformance 420
  suite driver_calls linkspan_conformance 120 env "LINKSPAN_CUDA_LIBRARY=$pack/libdriver_shim.so" \
    "LINKSPAN_ROWS_OUT=$out/driver_calls.json" -- '--gtest_filter=*DriverCallsOf*'
  suite one_gpu linkspan_conformance 300 env CUDA_VISIBLE_DEVICES=0
  mps
  # Over the shim, which keeps account; what fails at each call of the driver is a step of its own.
  suite faults linkspan_faults 400 env "LINKSPAN_CUDA_LIBRARY=$pack/libdriver_shim.so" "LINKSPAN_KILL_ROUNDS=${LINKSPAN_KILL_ROUNDS:-200}" "LINKSPAN_FAULTS_OUT=$out/faults.json"
  # A larger sample than that of `faults`: there are thousands of calls, and a process takes seconds.
  suite driver_errors linkspan_faults 300 env "LINKSPAN_CUDA_LIBRARY=$pack/libdriver_shim.so" LINKSPAN_LONG=1 \
    -- '--gtest_filter=DriverErrors.*'
  suite hostile linkspan_hostile 300
  suite nvlink_tests linkspan_nvlink_transfer 400
  program nvlink_bench bench_nvlink_transfer 120 --json "$out/nvlink_bench.json"
  program tcpx_unpack bench_tcpx_unpack 120 --json "$out/tcpx_unpack.json"
  program nccl_net_bench bench_nccl_net_transfer 240 --plugins "$pack" --json "$out/nccl_net_bench.json"
  program tcp_bench bench_tcp_transfer 240 --json "$out/tcp_bench.json"
  step nccl_exchange 120 env NCCL_SOCKET_IFNAME=lo "$pack/bench_nccl_exchange" \
    --plugin "$pack/nccl/libnccl-net-linkspan.so" --json "$out/nccl_exchange.json"
  program nccl bench/nccl/run.py 300 --plugin "$pack/nccl/libnccl-net-linkspan.so" \
    --sockets "$pack/bench_tcp_transfer" --json "$out/nccl.json"
  # Other releases of NCCL, that releases.py --fetch wrote.
  local releases=${LINKSPAN_NCCL_RELEASES:-}
  program nccl_releases bench/nccl/releases.py 300 ${releases:+--libraries "$releases"} \
    --plugin "$pack/nccl/libnccl-net-linkspan.so" --json "$out/nccl_releases.json"
  if [[ -e $pack/ucx.tar.xz ]]; then
    program ucx_tcp bench/peers/ucx_tcp.py 65 --ucx "$pack/ucx.tar.xz" --json "$out/ucx_tcp.json"
  else
    absent ucx_tcp "UCX was not packed"
  fi
  program nvlink_engine vcache/native/tests/nvlink_engine_test.py 300 "$pack/libnvlink_transfer.so" gpu
  program nvlink_async vcache/native/tests/nvlink_engine_async_test.py 300 "$pack/libnvlink_transfer.so" gpu
  program seed_commands tests/seed_commands.sh 300 gpu --library "$pack/libnvlink_transfer.so" \
    --shim "$pack/libdriver_shim.so" --simple-write "$pack/simple_write" --tcpx "$pack"
  program simple_write tests/simple_write_test.py 300 "$pack/simple_write" gpu
  program unified simple_write_unified 60 1048576 0 0  # on one GPU, where its kernels wait for each other
  program tcpx tests/tcpx_test.py 300 "$pack" gpu
  program store_torch tests/store_torch_test.py 200 --need-torch --tool "$pack/linkspan"
  program device_patterns device_patterns 120
  # Beside NVSHMEM of this machine's Python packages, if it comes up.
  local nvshmem
  nvshmem=$(python3 -c 'import nvidia.nvshmem as n; print(list(n.__path__)[0] + "/lib")' 2>/dev/null || true)
  if [[ -n $nvshmem && -x $pack/nvshmem_put_signal ]]; then
    step nvshmem 120 env "LD_LIBRARY_PATH=$nvshmem" bash -c "$pack/nvshmem_put_signal >$out/nvshmem.txt"
  else
    absent nvshmem "not packed, or not on this machine"
  fi
  program bench_device bench_device 120 --json "$out/device.json" --nvshmem "$out/nvshmem.txt"
  python_steps
  if command -v compute-sanitizer >/dev/null; then
    suite memcheck linkspan_conformance 150 compute-sanitizer --tool memcheck --target-processes all \
      --report-api-errors no --error-exitcode 9 -- "--gtest_filter=$memcheck_filter"
    suite memcheck_unit linkspan_unit 150 compute-sanitizer --tool memcheck --target-processes all \
      --report-api-errors no --error-exitcode 9 -- "--gtest_filter=$memcheck_unit_filter"
    local watched="compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9"
    [[ ! -x $pack/device_patterns ]] || step memcheck_device 150 $watched "$pack/device_patterns" 20
    [[ ! -x $pack/simple_write ]] || step memcheck_simple 200 env "SIMPLE_WRITE_UNDER=$watched" \
      python3 "$pack/tests/simple_write_test.py" "$pack/simple_write" gpu \
      TwoProcesses.test_sizes TwoProcesses.test_proxy TwoProcesses.test_one_gpu
    suite racecheck linkspan_unit 150 compute-sanitizer --tool racecheck --error-exitcode 9 \
      -- "--gtest_filter=$racecheck_filter"
  else
    absent memcheck "no compute-sanitizer on this machine"
    absent memcheck_unit "the same"
    absent racecheck "the same"
  fi
  local name
  for name in $only; do
    [[ $offered != *" $name "* ]] || continue
    failed=1
    results+=("$(printf '%-14s    -    %s' "$name" "FAILED: this run has no such step")")
  done
  echo "== summary of $commit"
  printf '%s\n' "${results[@]}"
  return "$failed"
}

run_all 2>&1 | tee "$out/log.txt"
exit "${PIPESTATUS[0]}"
