#!/usr/bin/env bash
# Did anything get slower? Runs `linkspan bench` of two builds in turns, on the same pinned CPUs.
# Usage: ab.sh OLD NEW [--turns N] [--out FOLDER] [-- BENCH_OPTION...]
# OLD and NEW are linkspan programs or revisions, which are built here. Each turn (6) runs OLD, NEW
# and OLD again, the first two in alternating order; the first of a turn may be faster, so take an
# even number of turns. --suite host is what runs if no option of bench is given. Ends with 1 if a
# row is slower (scripts/ab_report.py tells when), with 2 if there is nothing to compare.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
usage() { sed -n 's/^# Usage: //p' "$0" >&2; exit 2; }
(($# >= 2)) || usage
sides=("$1" "$2")
shift 2
turns=6 out=out/ab options=(--suite host)
while (($#)); do
  case $1 in
    --turns) turns=${2:?--turns needs a number}; shift 2 ;;
    --out) out=${2:?--out needs a folder}; shift 2 ;;
    --) shift; options=("$@"); break ;;
    *) usage ;;
  esac
done
mkdir -p "$out"

# program NAME: prints the path of a linkspan program; NAME is one, or a revision.
program() {
  if [[ -f $1 && -x $1 ]]; then
    readlink -f "$1"
    return
  fi
  local commit tree
  commit=$(git rev-parse --verify --quiet "$1^{commit}") ||
    { echo "ab.sh: $1 is neither a program nor a revision" >&2; return 2; }
  tree=$out/$commit
  [[ -d $tree ]] || git worktree add --detach "$tree" "$commit" >&2
  (cd "$tree" && CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 cmake --preset release >&2 &&
    cmake --build out/release -j"$(nproc)" --target linkspan_tool >&2) &&
    [[ -x $tree/out/release/linkspan ]] || { echo "ab.sh: $1 could not be built" >&2; return 2; }
  readlink -f "$tree/out/release/linkspan"
}

old=$(program "${sides[0]}")
new=$(program "${sides[1]}")
# Eight CPUs beside each other: with all of 32, a run was one of two kinds, 15 % apart.
cpus=$(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0))[:8], sep=",")')

# run SIDE TURN PROGRAM: a run that breaks off leaves no file, and its turn does not count.
run() {
  echo "turn $2: $1" >&2
  taskset -c "$cpus" "$3" bench "${options[@]}" --json "$out/$1.$2.json" >"$out/$1.$2.log" 2>&1 ||
    echo "ab.sh: $3 ended with $?: $out/$1.$2.log" >&2
}
rm -f "$out"/{old,new,again}.*.json
for turn in $(seq "$turns"); do
  if ((turn % 2)); then
    run old "$turn" "$old"
    run new "$turn" "$new"
  else
    run new "$turn" "$new"
    run old "$turn" "$old"
  fi
  run again "$turn" "$old"
done
exec scripts/ab_report.py "$out"
