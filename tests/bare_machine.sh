#!/usr/bin/env bash
# By hand, as root: does a bare Debian 12 get from `git clone` to the demo and the tests?
# debootstraps a folder, clones this repository's HEAD into it, runs `./dev demo` and `./dev test`
# there as root and as a user with sudo. Needs debootstrap.
# Usage: bare_machine.sh [FOLDER]      (default: a new one under /var/tmp; it is kept)
set -euo pipefail
[[ $EUID == 0 ]] || { echo "run as root: chroot and mount need it" >&2; exit 2; }
command -v debootstrap >/dev/null || { echo "apt-get install debootstrap first" >&2; exit 2; }
repository=$(git -C "$(dirname "$(readlink -f "$0")")" rev-parse --show-toplevel)
folder=${1:-$(mktemp -d /var/tmp/linkspan_bare.XXXXXX)}

# The mirror that this machine uses, in either of apt's formats.
uri='s/^(URIs:|deb( +\[[^]]*\])?) +([^ ]+\/debian)\/?( .*)?$/\3/p'
sources=$(grep -lE '^(URIs:|deb) .*/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -1 || true)
[[ -n $sources ]] || { echo "no Debian mirror in apt's sources" >&2; exit 2; }
mirror=$(sed -nE "$uri" "$sources" | head -1)

unmount() {
  local place
  for place in dev sys proc; do
    if mountpoint -q "$folder/$place"; then umount -R "$folder/$place" || umount -Rl "$folder/$place"; fi
  done
}
trap unmount EXIT

[[ -x $folder/usr/bin/apt-get ]] || debootstrap --variant=minbase bookworm "$folder" "$mirror"
chmod 755 "$folder"  # it is "/" in there, which other users pass
mount -t proc proc "$folder/proc"
for place in sys dev; do mount --rbind --make-rslave "/$place" "$folder/$place"; done
mountpoint -q "$folder/dev/shm" || mount -t tmpfs tmpfs "$folder/dev/shm"

# How this machine reaches the network: resolver, certificates, apt, pip.
copy() { if [[ -e $1 ]]; then install -D -m644 "$(readlink -f "$1")" "$folder$1"; fi; }
rm -f "$folder/etc/apt/sources.list"
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf "$sources" /etc/apt/apt.conf.d/*; do copy "$file"; done
for name in "${!PIP_@}"; do printf 'export %s=%q\n' "$name" "${!name}"; done >"$folder/etc/profile.d/pip.sh"

inside() {  # inside USER COMMAND
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb LANG=C.UTF-8 chroot "$folder" su - "$1" -c "$2"
}
inside root "apt-get -q update && apt-get -q install -y --no-install-recommends git ca-certificates sudo"
copy /etc/ssl/certs/ca-certificates.crt  # after the package, which writes its own
inside root "id tester >/dev/null 2>&1 || useradd -m -s /bin/bash tester
             echo 'tester ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/tester"

for user in root tester; do
  home=$(inside "$user" pwd)
  rm -rf "$folder$home/linkspan"
  git clone -q --no-hardlinks "$repository" "$folder$home/linkspan"
  inside root "chown -R $user: $home/linkspan"
  for verb in demo test; do
    begin=$SECONDS
    inside "$user" "cd linkspan && ./dev $verb </dev/null"
    echo "== $user: ./dev $verb: ok after $((SECONDS - begin)) s"
  done
done
echo "bare machine: ok ($folder)"
