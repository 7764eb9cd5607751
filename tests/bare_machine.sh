#!/usr/bin/env bash
# By hand, as root: does a bare Debian 12 get from `git clone` to the demo and the tests?
# debootstraps a folder, clones this repository's HEAD into it, runs `./dev demo` and `./dev test`
# there as root and as a user with sudo. Needs debootstrap.
# Usage: bare_machine.sh [FOLDER]      (default: a new one under /var/tmp; it is kept)
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/support/debian_root.sh"
find_debian_mirror
repository=$(git -C "$here" rev-parse --show-toplevel)
folder=${1:-$(mktemp -d /var/tmp/linkspan_bare.XXXXXX)}

trap 'unmount_debian_root "$folder"' EXIT
make_debian_root bookworm "$folder"
mount_debian_root "$folder"
rm -f "$folder/etc/apt/sources.list"
copy_into "$folder" "$sources"  # with updates and security
install_in_debian_root "$folder" git sudo
echo 'tester ALL=(ALL) NOPASSWD: ALL' >"$folder/etc/sudoers.d/tester"

for user in root tester; do
  home=$(in_debian_root "$folder" "$user" pwd)
  rm -rf "$folder$home/linkspan"
  git clone -q --no-hardlinks "$repository" "$folder$home/linkspan"
  in_debian_root "$folder" root "chown -R $user: $home/linkspan"
  for verb in demo test; do
    begin=$SECONDS
    in_debian_root "$folder" "$user" "cd linkspan && ./dev $verb </dev/null"
    echo "== $user: ./dev $verb: ok after $((SECONDS - begin)) s"
  done
done
echo "bare machine: ok ($folder)"
