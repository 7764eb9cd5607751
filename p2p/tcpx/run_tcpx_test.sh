#!/usr/bin/env bash
# Runs a program of this folder with the environment that a TCPX plugin needs.
#
# Usage: run_tcpx_test.sh transfer|connection server|SERVER_IP [options of the program]
# What is set already stays as it is. Interfaces that the machine lacks are replaced by its own.
# Exit codes: the program's; 2 the arguments are wrong or nothing is built.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")

usage() { echo "run_tcpx_test.sh: $1" >&2; sed -n 's/^# \(Usage.*\)/\1/p' "$0" >&2; exit 2; }
(($# >= 2)) || usage "which test, and server or the server's address?"
case $1 in
  transfer) program=$here/tests/test_tcpx_transfer ;;
  connection) program=$here/tests/test_connection ;;
  *) usage "there is no test \"$1\": transfer or connection" ;;
esac
[[ -x $program ]] || { echo "run_tcpx_test.sh: $program is not built: run \`make\` in $here" >&2; exit 2; }
if [[ $2 == server ]]; then side=(server); else side=(client "$2"); fi
shift 2

# those of NAMES that are interfaces of this machine, by comma
present() {
  local each found=""
  for each in "$@"; do [[ -e /sys/class/net/$each ]] && found+=${found:+,}$each; done
  echo "$found"
}
# the first interface that is up and no loopback; else lo
own() {
  local each
  for each in /sys/class/net/*; do
    each=${each##*/}
    [[ $each != lo && $(cat "/sys/class/net/$each/operstate" 2>/dev/null) == up ]] && { echo "$each"; return; }
  done
  echo lo
}
# setting NAME VALUE: unless it is set; prints what holds
setting() {
  export "$1=${!1:-$2}"
  echo "$1=${!1}"
}

control=$(present eth0)
data=$(present eth1 eth2 eth3 eth4)
control=${control:-$(own)}
setting NCCL_SOCKET_IFNAME "$control"
setting NCCL_GPUDIRECTTCPX_CTRL_DEV "$NCCL_SOCKET_IFNAME"
setting NCCL_GPUDIRECTTCPX_SOCKET_IFNAME "${data:-$control}"
setting NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX /run/tcpx
setting NCCL_TCPX_RXMEM_IMPORT_USE_GPU_PCI_CLIENT 1
setting NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS 50000
setting NCCL_NSOCKS_PERTHREAD 4
setting NCCL_SOCKET_NTHREADS 1
setting NCCL_DYNAMIC_CHUNK_SIZE 524288
if [[ -d /usr/local/tcpx/lib64 ]]; then
  export LD_LIBRARY_PATH=/usr/local/tcpx/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  echo "LD_LIBRARY_PATH=$LD_LIBRARY_PATH"
fi
exec "$program" "${side[@]}" "$@"
