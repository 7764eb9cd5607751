#!/usr/bin/env python3
"""Runs the tests of the verbs transport over soft-RoCE, in virtual machines without KVM.

    run.py --build out/release            one machine: the suite, Engines, kills and cancels
    run.py --build out/release --two      two machines: a benchmark, and what goes on after a cut
    run.py --build out/release --two --cuts 100     the same, and so many cuts more
    run.py --build out/release --long     both, with more memories and kills, and 100 cuts

Debian's packages of the kernel, QEMU and libibverbs are fetched once into
$XDG_CACHE_HOME/linkspan/rdma_vm and installed nowhere. Exits with 77 where they cannot be had.
Logs are below BUILD/rdma_vm.
"""

import argparse
import contextlib
import os
import pathlib
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
PACKAGES = CACHE / "linkspan/rdma_vm/1"  # the number changes with what is unpacked
LIBRARIES = "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"
FETCH_LIMIT_S, LIMIT_S, LONG_LIMIT_S = 600, 900, 3600
SKIPPED = 77

WANTED = ["busybox-static", "ibverbs-providers", "iproute2", "libibverbs1", "libmnl0", "libnl-3-200",
          "libnl-route-3-200"]  # fmt: skip
# In the order in which they are loaded.
MODULES = ["virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci",
           "failover", "net_failover", "virtio_net", "crc32_generic", "udp_tunnel", "ip6_udp_tunnel",
           "ib_core", "ib_uverbs", "rdma_rxe", "dummy",
           "macvlan"]  # fmt: skip
PROGRAMS = ["linkspan", "linkspan_conformance", "linkspan_faults"]
BESIDE = ["libfake_verbs.so"]  # which the tests load whatever library they use
PROVIDER = "usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so"
# The kernel checks its clocks against each other, which fails where the host is busy.
KERNEL = "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check tsc=reliable nowatchdog"


class Skip(Exception):
    """Why nothing can be run."""


def call(*command, limit_s: float = 60, **more) -> str:
    return subprocess.run(
        [str(each) for each in command],
        check=True,
        timeout=limit_s,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    ).stdout


def fetch() -> pathlib.Path:
    """Returns the folder of the unpacked packages."""
    if PACKAGES.exists():
        return PACKAGES
    if platform.machine() != "x86_64" or shutil.which("apt-get") is None:
        raise Skip("needs x86_64 and apt-get")
    PACKAGES.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=PACKAGES.parent) as name:
            folder = pathlib.Path(name)
            plan = call("apt-get", "-s", "install", "--no-install-recommends", "qemu-system-x86")
            needed = set(re.findall(r"^Inst (\S+)", plan, re.M))
            of_any = call("apt-cache", "depends", "linux-image-amd64")
            kernel = re.search(r"Depends: (linux-image-\S+)", of_any)
            if kernel is None:
                raise Skip("the packages cannot be had: no kernel of Debian's")
            needed |= {kernel[1], *WANTED, "qemu-system-x86", "qemu-system-data", "seabios"}
            print("fetching packages of 90 MB", flush=True)
            call("apt-get", "download", *sorted(needed), cwd=folder, limit_s=FETCH_LIMIT_S)
            for package in sorted(folder.glob("*.deb")):
                unpack(package, folder / "root")
                package.unlink()
            (folder / "root").rename(PACKAGES)
    except (OSError, subprocess.SubprocessError) as error:
        why = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise Skip("the packages cannot be had: " + why[-1]) from error
    return PACKAGES


def unpack(package: pathlib.Path, root: pathlib.Path):
    root.mkdir(exist_ok=True)
    if not package.name.startswith("linux-image"):
        call("dpkg", "-x", package, root, limit_s=300)
        return
    # Unpacks a few of the kernel's 4,000 modules.
    wanted = ["./boot/vmlinuz-*", *(f"*/{module}.ko" for module in MODULES)]
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as tar:
        call("tar", "-x", "-C", root, "--wildcards", *wanted, stdin=tar.stdout, limit_s=300)


def with_libraries(root: pathlib.Path) -> dict[str, str]:
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(str(root / each) for each in LIBRARIES)}


def make_image(root: pathlib.Path, build: pathlib.Path, into: pathlib.Path) -> pathlib.Path:
    """Packs what the machines run: a file system in memory, which is not compressed."""
    image = into / "image"
    for folder in ("bin", "dev", "etc/libibverbs.d", "lib/all", "lib64", "modules", "proc", "sys",
                   "tests", "tmp", pathlib.Path(PROVIDER).parent):  # fmt: skip
        (image / folder).mkdir(parents=True)
    shutil.copy(HERE / "init", image / "init")
    shutil.copytree(HERE / "jobs", image / "jobs")
    shutil.copy(root / "bin/busybox", image / "bin")
    shutil.copy(root / "etc/libibverbs.d/rxe.driver", image / "etc/libibverbs.d")
    shutil.copy(root / PROVIDER, image / PROVIDER)
    rdma = next(each for each in (root / "usr/bin/rdma", root / "bin/rdma") if each.is_file())
    shutil.copy(rdma, image / "bin")
    for name in PROGRAMS + BESIDE:
        call("strip", "-o", image / "tests" / name, build / name)
    for file in [rdma, root / PROVIDER, *(build / name for name in PROGRAMS + BESIDE)]:
        names = call("ldd", file, env=with_libraries(root))
        for library in re.findall(r"(?:=>|^)\s*(/\S+) \(", names, re.M):
            shutil.copy(library, image / ("lib64" if "/ld-linux" in library else "lib/all"))
    for module in MODULES:
        shutil.copy(next(root.glob(f"lib/modules/*/kernel/**/{module}.ko")), image / "modules")
    (image / "modules/order").write_text("".join(f"{module}\n" for module in MODULES))
    files = "\n".join(str(each.relative_to(image)) for each in sorted(image.rglob("*")))
    packed = into / "image.cpio"
    with packed.open("wb") as out:
        subprocess.run(
            [root / "bin/busybox", "cpio", "-o", "-H", "newc"],
            input=files.encode(),
            stdout=out,
            stderr=subprocess.DEVNULL,
            cwd=image,
            check=True,
            timeout=60,
        )
    shutil.rmtree(image)
    return packed


class Machine:
    """A virtual machine, and what it has printed."""

    SHOWN = re.compile(
        r"^== |^\[={10}\]|^\[  (PASSED|FAILED|SKIPPED) |^\d+ FAILED|: Failure$|panic|"
        r"^pair |^batches |^cuts: |->.*MiB|->.*KiB|->.*8B? |rows, "
    )

    def __init__(self, name: str, root: pathlib.Path, image: pathlib.Path, log: pathlib.Path,
                 settings: str = "", network: tuple[str, ...] = ()):  # fmt: skip
        self.name, self.log = name, log
        self.codes: dict[str, int] = {}
        self.done = False
        qemu = [
            root / "usr/bin/qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "Nehalem",
            "-m", "1024", "-smp", "2", "-nodefaults", "-display", "none", "-no-reboot",
            "-serial", "stdio", "-L", root / "usr/share/qemu", "-L", root / "usr/share/seabios",
            "-kernel", next(root.glob("boot/vmlinuz-*")), "-initrd", image,
            "-append", f"{KERNEL} machine={name} {settings}", *network,
        ]  # fmt: skip
        self.process = subprocess.Popen(
            [str(each) for each in qemu],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=with_libraries(root),
        )
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        with self.log.open("w") as log:
            for raw in self.process.stdout:
                line = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1bc", "", raw.decode(errors="replace")).rstrip()
                log.write(line + "\n")
                log.flush()
                if ended := re.match(r"== (.*) ended with (\d+) after", line):
                    self.codes[ended[1]] = int(ended[2])
                self.done |= line == f"== machine {self.name} is done"
                if self.SHOWN.search(line):
                    print(f"{self.name}: {line.removeprefix('== ')}", flush=True)

    def wait(self, until: float):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.1, until - time.monotonic()))

    def end(self):
        self.process.kill()
        self.process.wait()
        self.reader.join()

    def failures(self) -> list[str]:
        out = [f"{name} ended with {code}" for name, code in self.codes.items() if code != 0]
        if not self.done:
            out.append("it did not come to its end in time")
        return [f"{self.name}: {each}: {self.log}" for each in out]


def nics(number: int, folder: pathlib.Path) -> tuple[str, ...]:
    """Two cables between the machines: soft-RoCE alone, and the rest. Number 1 makes the sockets."""
    out = []
    for cable in range(2):
        server = "on" if number == 1 else "off"
        out += [
            "-netdev",
            f"stream,id=n{cable},server={server},addr.type=unix,addr.path={folder}/cable{cable}",
            "-device",
            f"virtio-net-pci,netdev=n{cable},mac=52:54:00:00:0{cable}:0{number},romfile=",
        ]
    return tuple(out)


def run(names: tuple[str, ...], root: pathlib.Path, image: pathlib.Path, logs: pathlib.Path,
        until: float, settings: str = "") -> list[str]:  # fmt: skip
    """Runs machines side by side. Returns what failed."""
    machines: list[Machine] = []
    folder = image.parent
    try:
        for number, name in enumerate(names, 1):
            network = nics(number, folder) if len(names) > 1 else ()
            machines.append(Machine(name, root, image, logs / f"{name}.log", settings, network))
            sockets = [folder / "cable0", folder / "cable1"]
            while network and number == 1 and not all(each.exists() for each in sockets):
                if machines[0].process.poll() is not None or time.monotonic() > until:
                    return machines[0].failures()
                time.sleep(0.05)
        for machine in machines:
            machine.wait(until)
    finally:
        for machine in machines:
            machine.end()
    return [each for machine in machines for each in machine.failures()]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--two", action="store_true")
    parser.add_argument("--cuts", type=int, help="of the cable between two machines, at random")
    parser.add_argument("--limit", type=float, help="seconds, for all machines")
    arguments = parser.parse_args()
    missing = [each for each in PROGRAMS + BESIDE if not (arguments.build / each).is_file()]
    if missing:
        print(f"{arguments.build} lacks {', '.join(missing)}: build it first")
        return 2
    try:
        root = fetch()
    except Skip as why:
        print(f"skipped: {why}")
        return SKIPPED
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the machines too
    begin = time.monotonic()
    until = begin + (arguments.limit or (LONG_LIMIT_S if arguments.long else LIMIT_S))
    logs = arguments.build / "rdma_vm"
    logs.mkdir(exist_ok=True)
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        image = make_image(root, arguments.build, pathlib.Path(folder))
        if arguments.long or not arguments.two:
            settings = "long=1" if arguments.long else ""
            failures += run(("one",), root, image, logs, until, settings)
        if arguments.long or arguments.two:
            cuts = arguments.cuts or (100 if arguments.long else 0)
            settings = f"cuts={cuts}" if cuts else ""
            failures += run(("far", "near"), root, image, logs, until, settings)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(*(f"FAILED: {each}" for each in failures), sep="\n", end="\n" if failures else "")
    print(f"{'failed' if failures else 'ok'}: {time.monotonic() - begin:.0f} s, "
          f"{used.ru_utime + used.ru_stime:.0f} s of CPU time")  # fmt: skip
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
