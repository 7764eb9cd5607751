#!/usr/bin/env python3
"""Runs tests on Debian's kernel, in virtual machines without KVM: of the verbs transport over
soft-RoCE, and of all on aarch64.

    run.py --build out/release            one machine: the suite, Engines, kills and cancels
    run.py --build out/release --two      two machines: a benchmark, and what goes on after a cut
    run.py --build out/release --two --cuts 100     the same, and so many cuts more
    run.py --build out/release --long     both, with more memories and kills, and 100 cuts
    run.py --build out/aarch64 --aarch64            the conformance suite, without a GPU
    run.py --build out/aarch64 --aarch64 --long     the same, faults, unit tests, and soft-RoCE

Debian's packages of the kernel, QEMU and libibverbs are fetched once into
$XDG_CACHE_HOME/linkspan/rdma_vm and installed nowhere. Exits with 77 where they cannot be had.
Logs are below BUILD/rdma_vm.
"""

import argparse
import contextlib
import dataclasses
import os
import pathlib
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Mapping

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
PACKAGES = CACHE / "linkspan/rdma_vm/2"  # the number changes with what is unpacked
FETCH_LIMIT_S, LIMIT_S, LONG_LIMIT_S = 600, 1800, 7200
SKIPPED = 77

HOST_WANTED = ["busybox-static", "qemu-system-data", "seabios"]
WANTED = ["busybox-static", "ibverbs-providers", "iproute2", "libbsd0", "libcap2", "libibverbs1",
          "libmd0", "libmnl0", "libnl-3-200", "libnl-route-3-200"]  # fmt: skip
# In the order in which they are loaded.
MODULES = ["virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "failover",
           "net_failover", "virtio_net", "crc32_generic", "udp_tunnel", "ip6_udp_tunnel",
           "ib_core", "ib_uverbs", "rdma_rxe", "dummy",
           "macvlan"]  # fmt: skip
# Lists what a machine gets of the build: programs, and modules that tests load by name.
FILES = ["linkspan", "linkspan_conformance", "linkspan_faults", "libfake_verbs.so"]
KERNEL = "quiet panic=-1 mitigations=off nowatchdog"


@dataclasses.dataclass(frozen=True)
class Processor:
    """What differs between machines of one processor and of another."""

    debian: str
    triplet: str
    package: str
    qemu: list[str]
    kernel: str
    modules: list[str]
    strip: str
    libraries: list[str]  # folders of what the build was linked with
    files: list[str]

    @property
    def host(self) -> pathlib.Path:
        """Has the unpacked packages of what runs here."""
        return PACKAGES / self.debian / "host"

    @property
    def guest(self) -> pathlib.Path:
        """Has those of what runs in a machine."""
        return PACKAGES / self.debian / "guest"


X86_64 = Processor(
    debian="amd64",
    triplet="x86_64-linux-gnu",
    package="qemu-system-x86",
    qemu=["qemu-system-x86_64", "-cpu", "Nehalem", "-m", "1024"],
    # The kernel checks its clocks against each other, which fails where the host is busy.
    kernel="console=ttyS0 no_timer_check tsc=reliable",
    modules=["virtio_ring", "virtio", *MODULES],
    strip="strip",
    libraries=["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"],
    files=FILES,
)
AARCH64 = Processor(
    debian="arm64",
    triplet="aarch64-linux-gnu",
    package="qemu-system-arm",
    qemu=["qemu-system-aarch64", "-machine", "virt", "-cpu", "neoverse-n1", "-m", "2048"],
    # With addresses at random, each system call changes page tables, which costs QEMU the most.
    kernel="console=ttyAMA0 nokaslr",
    modules=MODULES,
    strip="aarch64-linux-gnu-strip",
    libraries=["/usr/aarch64-linux-gnu/lib"],
    files=[*FILES, "linkspan_unit", "libfake_verbs_old.so", "libnccl-net-*.so", "nccl/*.so"],
)


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


def fetch(processor: Processor):
    """Unpacks Debian's packages, unless they are there."""
    packages = PACKAGES / processor.debian
    if packages.exists():
        return
    if platform.machine() != "x86_64" or shutil.which("apt-get") is None:
        raise Skip("needs x86_64 and apt-get")
    packages.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=packages.parent) as name:
            folder = pathlib.Path(name)
            of_guest = dict(os.environ)
            if processor is AARCH64:
                call(ROOT / "scripts/apt_arm64.sh", folder / "apt", limit_s=FETCH_LIMIT_S)
                of_guest["APT_CONFIG"] = str(folder / "apt/apt.conf")
            plan = call("apt-get", "-s", "install", "--no-install-recommends", processor.package)
            needed = set(re.findall(r"^Inst (\S+)", plan, re.M))
            of_any = call("apt-cache", "depends", f"linux-image-{processor.debian}", env=of_guest)
            kernel = re.search(r"Depends: (linux-image-\S+)", of_any)
            if kernel is None:
                raise Skip("the packages cannot be had: no kernel of Debian's")
            print("fetching packages of 90 MB", flush=True)
            needed |= {processor.package, *HOST_WANTED}
            get(needed, folder / "root/host", [], os.environ)
            get({kernel[1], *WANTED}, folder / "root/guest", processor.modules, of_guest)
            (folder / "root").rename(packages)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        why = (said if isinstance(said, str) else said.decode()).strip().splitlines()
        raise Skip("the packages cannot be had: " + why[-1]) from error


def get(names: set[str], into: pathlib.Path, modules: list[str], environment: Mapping[str, str]):
    """Downloads packages and unpacks them."""
    into.mkdir(parents=True)
    call("apt-get", "download", *sorted(names), cwd=into, env=environment, limit_s=FETCH_LIMIT_S)
    for package in sorted(into.glob("*.deb")):
        unpack(package, into, modules)
        package.unlink()


def unpack(package: pathlib.Path, into: pathlib.Path, modules: list[str]):
    if not package.name.startswith("linux-image"):
        call("dpkg", "-x", package, into, limit_s=300)
        return
    # Unpacks a few of the kernel's 4,000 modules.
    wanted = ["./boot/vmlinuz-*", *(f"*/{module}.ko" for module in modules)]
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as tar:
        call("tar", "-x", "-C", into, "--wildcards", *wanted, stdin=tar.stdout, limit_s=300)


def libraries(processor: Processor, files: list[pathlib.Path]) -> list[pathlib.Path]:
    """Returns what the loader loads with the files, and the loader."""
    own = [processor.guest / each / processor.triplet for each in ("lib", "usr/lib")]
    found: dict[str, pathlib.Path] = {}
    unread = files
    while unread:
        names = set(re.findall(r"\(NEEDED\).*\[(.+)\]", call("readelf", "-d", *unread)))
        unread = []
        for name in names - set(found):
            places = [pathlib.Path(folder, name) for folder in [*own, *processor.libraries]]
            found[name] = next((each for each in places if each.is_file()), pathlib.Path())
            if not found[name].is_file():
                raise SystemExit(f"{name} is none of {', '.join(map(str, places))}")
            unread.append(found[name])
    return list(found.values())


def make_image(processor: Processor, build: pathlib.Path, into: pathlib.Path) -> pathlib.Path:
    """Packs what the machines run: a file system in memory, which is not compressed."""
    image, guest = into / "image", processor.guest
    provider = f"usr/lib/{processor.triplet}/libibverbs/librxe-rdmav34.so"
    for folder in ("bin", "dev", "etc/libibverbs.d", "lib/all", "lib64", "modules", "proc", "sys",
                   "tests/nccl", "tmp", pathlib.Path(provider).parent):  # fmt: skip
        (image / folder).mkdir(parents=True)
    shutil.copy(HERE / "init", image / "init")
    shutil.copytree(HERE / "jobs", image / "jobs")
    shutil.copy(guest / "bin/busybox", image / "bin")
    shutil.copy(guest / "etc/libibverbs.d/rxe.driver", image / "etc/libibverbs.d")
    shutil.copy(guest / provider, image / provider)
    rdma = next(each for each in (guest / "usr/bin/rdma", guest / "bin/rdma") if each.is_file())
    shutil.copy(rdma, image / "bin")
    files = [file for each in processor.files for file in sorted(build.glob(each))]
    for file in files:
        call(processor.strip, "-o", image / "tests" / file.relative_to(build), file)
    for library in libraries(processor, [rdma, guest / provider, *files]):
        shutil.copy(library, image / "lib/all")
    loader = re.search(r"interpreter: /(\S+)\]", call("readelf", "-l", rdma))[1]
    shutil.copy(image / "lib/all" / pathlib.Path(loader).name, image / loader)
    for module in processor.modules:
        shutil.copy(next(guest.glob(f"lib/modules/*/kernel/**/{module}.ko")), image / "modules")
    (image / "modules/order").write_text("".join(f"{module}\n" for module in processor.modules))
    listed = "\n".join(str(each.relative_to(image)) for each in sorted(image.rglob("*")))
    packed = into / "image.cpio"
    with packed.open("wb") as out:
        subprocess.run(
            [processor.host / "bin/busybox", "cpio", "-o", "-H", "newc"],
            input=listed.encode(),
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
        r"^== |^\[={10}\]|^\[  (PASSED|FAILED) |^\[  SKIPPED \] \d|^\d+ FAILED|: Failure$|panic|"
        r"^pair |^batches |^cuts: |->.*MiB|->.*KiB|->.*8B? |rows, "
    )

    def __init__(self, name: str, processor: Processor, image: pathlib.Path, log: pathlib.Path,
                 settings: str, devices: list[str]):  # fmt: skip
        self.name, self.log = name, log
        self.codes: dict[str, int] = {}
        self.done = False
        host, guest = processor.host, processor.guest
        program, *kind = processor.qemu
        own = [str(host / each / X86_64.triplet) for each in ("lib", "usr/lib")]
        qemu = [
            host / "usr/bin" / program, *kind, "-accel", "tcg,thread=multi",
            "-smp", "2", "-nodefaults", "-display", "none", "-no-reboot",
            "-serial", "stdio", "-L", host / "usr/share/qemu", "-L", host / "usr/share/seabios",
            "-kernel", next(guest.glob("boot/vmlinuz-*")), "-initrd", image,
            "-append", f"{KERNEL} {processor.kernel} machine={name} {settings}", *devices,
        ]  # fmt: skip
        self.process = subprocess.Popen(
            [str(each) for each in qemu],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "LD_LIBRARY_PATH": ":".join(own)},
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


def nics(number: int, folder: pathlib.Path) -> list[str]:
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
    return out


def results_to(file: pathlib.Path) -> list[str]:
    """A serial line, /dev/ttyS0 of a machine of aarch64."""
    return ["-chardev", f"file,id=results,path={file}", "-device", "pci-serial,chardev=results"]


def check_results(packed: pathlib.Path, into: pathlib.Path) -> list[str]:
    """Shows what ran and what was skipped. Returns what is wrong with it."""
    try:
        with tarfile.open(packed) as results:
            files = [into / each for each in results.getnames() if each.endswith(".xml")]
            results.extractall(into)
    except (OSError, tarfile.TarError):
        files = []
    if not files:
        return [f"{packed} has no results"]
    check = ROOT / "scripts/check_skips.py"
    subprocess.run([check, "--report", *files], check=True)
    wrong = [each for each in files if subprocess.run([check, "--xml", each]).returncode != 0]
    return [f"{each}: what it skips" for each in wrong]


def run(names: tuple[str, ...], processor: Processor, image: pathlib.Path, logs: pathlib.Path,
        until: float, settings: str = "") -> list[str]:  # fmt: skip
    """Runs machines side by side. Returns what failed."""
    machines: list[Machine] = []
    folder = image.parent
    try:
        for number, name in enumerate(names, 1):
            devices = nics(number, folder) if len(names) > 1 else []
            if name == "cpu":
                devices = results_to(logs / "cpu.tar")
            machines.append(Machine(name, processor, image, logs / f"{name}.log", settings, devices))
            sockets = [folder / "cable0", folder / "cable1"]
            while len(names) > 1 and number == 1 and not all(each.exists() for each in sockets):
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
    parser.add_argument("--aarch64", action="store_true", help="machines of that processor")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--two", action="store_true")
    parser.add_argument("--cuts", type=int, help="of the cable between two machines, at random")
    parser.add_argument("--limit", type=float, help="seconds, for all machines")
    arguments = parser.parse_args()
    processor = AARCH64 if arguments.aarch64 else X86_64
    missing = [each for each in processor.files if not any(arguments.build.glob(each))]
    if missing:
        print(f"{arguments.build} lacks {', '.join(missing)}: build it first")
        return 2
    try:
        fetch(processor)
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
        image = make_image(processor, arguments.build, pathlib.Path(folder))
        long = "long=1" if arguments.long else ""
        if arguments.aarch64 and not arguments.two:
            failures += run(("cpu",), processor, image, logs, until, long)
            failures += check_results(logs / "cpu.tar", arguments.build / "gtest")
        if arguments.long or not (arguments.two or arguments.aarch64):
            failures += run(("one",), processor, image, logs, until, long)
        if arguments.two or (arguments.long and not arguments.aarch64):
            cuts = arguments.cuts or (100 if arguments.long else 0)
            settings = f"cuts={cuts}" if cuts else ""
            failures += run(("far", "near"), processor, image, logs, until, settings)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(*(f"FAILED: {each}" for each in failures), sep="\n", end="\n" if failures else "")
    print(f"{'failed' if failures else 'ok'}: {time.monotonic() - begin:.0f} s, "
          f"{used.ru_utime + used.ru_stime:.0f} s of CPU time")  # fmt: skip
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
