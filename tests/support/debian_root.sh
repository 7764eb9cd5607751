# Sourced by scripts that try linkspan in a Debian of its own: makes a root, mounts it, enters it.
# They run as root and set -euo pipefail. Needs debootstrap.

# Fails if roots cannot be made here; sets `mirror` and `sources`, the file of apt that names it.
find_debian_mirror() {
  [[ $EUID == 0 ]] || { echo "run as root: chroot and mount need it" >&2; return 2; }
  command -v debootstrap >/dev/null || { echo "apt-get install debootstrap first" >&2; return 2; }
  # In either of apt's formats.
  local uri='s/^(URIs:|deb( +\[[^]]*\])?) +([^ ]+\/debian)\/?( .*)?$/\3/p'
  sources=$(grep -lE '^(URIs:|deb) .*/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -1 || true)
  [[ -n $sources ]] || { echo "no Debian mirror in apt's sources" >&2; return 2; }
  mirror=$(sed -nE "$uri" "$sources" | head -1)
}

# Lets this machine run programs of aarch64 by Debian's QEMU, for all users, until stop_emulating.
emulate_aarch64() {
  local known=/usr/lib/binfmt.d/qemu-aarch64.conf
  [[ ! -e $emulated && $(uname -m) != aarch64 ]] || return 0
  [[ -f $known ]] || { echo "apt-get install qemu-user-static first" >&2; return 2; }
  mountpoint -q "${emulated%/*}" || mount -t binfmt_misc binfmt_misc "${emulated%/*}" || return
  cat "$known" >"${emulated%/*}/register"
  is_emulating=1
}
emulated=/proc/sys/fs/binfmt_misc/qemu-aarch64
is_emulating=""

stop_emulating() {
  if [[ -n $is_emulating ]]; then echo -1 >"$emulated"; fi
}

# make_debian_root SUITE ROOT [ARCHITECTURE]: debootstraps it unless that was done.
make_debian_root() {
  [[ -x $2/usr/bin/apt-get && ! -d $2/debootstrap ]] ||  # debootstrap removes that folder last
    debootstrap --variant=minbase ${3:+--arch="$3"} "$1" "$2" "$mirror" || return
  chmod 755 "$2"  # it is "/" in there, which other users pass
}

mount_debian_root() {  # mount_debian_root ROOT
  local place
  mountpoint -q "$1/proc" || mount -t proc proc "$1/proc" || return
  for place in sys dev; do
    mountpoint -q "$1/$place" || mount --rbind --make-rslave "/$place" "$1/$place" || return
  done
  mountpoint -q "$1/dev/shm" || mount -t tmpfs tmpfs "$1/dev/shm"
}

unmount_debian_root() {  # unmount_debian_root ROOT
  local place
  for place in dev sys proc; do
    if mountpoint -q "$1/$place"; then umount -R "$1/$place" || umount -Rl "$1/$place"; fi
  done
}

# copy_into ROOT FILE...: at the same place, if this machine has it.
copy_into() {
  local file
  for file in "${@:2}"; do
    if [[ -e $file ]]; then install -D -m644 "$(readlink -f "$file")" "$1$file" || return; fi
  done
}

# install_in_debian_root ROOT PACKAGE...: those and ca-certificates, over the network as this machine
# reaches it: resolver, certificates, apt, pip.
install_in_debian_root() {
  local name
  copy_into "$1" /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/apt/apt.conf.d/* || return
  for name in "${!PIP_@}"; do printf 'export %s=%q\n' "$name" "${!name}"; done >"$1/etc/profile.d/pip.sh"
  in_debian_root "$1" root "apt-get -q update &&
    apt-get -q install -y --no-install-recommends ca-certificates ${*:2}" || return
  copy_into "$1" /etc/ssl/certs/ca-certificates.crt  # after the package, which writes its own
  in_debian_root "$1" root "id tester >/dev/null 2>&1 || useradd -m -s /bin/bash tester"
}

# in_debian_root ROOT USER COMMAND: with ROOT as "/" of a mount namespace, as processes of a chroot may
# make no user namespace and bind no mount.
in_debian_root() {
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb LANG=C.UTF-8 unshare --mount sh -ec '
    mount --rbind "$1" "$1" && cd "$1" && pivot_root . . && umount -l .
    cd / && exec su - "$2" -c "$3"' sh "$@"
}
