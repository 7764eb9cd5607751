#!/usr/bin/env python3
"""linkspan beside NIXL, Mooncake, UCX, NCCL and NVSHMEM on this machine: a table, and bars.

compare.py [--build DIR] [--out DIR] [--turns N] [--wheels DIR] [--cache DIR] [--nvshmem PROGRAM]

`./dev bench --peers` builds what this runs: run.py beside this file, bench/nccl/run.py with a GPU,
bench_device with two. Others' wheels come from PyPI once, into the cache. DIR of --out gets
peers.json, peers.svg and peers.log, which has what the programs said. Each step has a time limit.
Exit: 0 linkspan has all rows that this machine can measure; 1 not.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "docs" / "site"), str(ROOT / "scripts"), str(HERE.parent), str(HERE)]

import evidence  # noqa: E402
import figures  # noqa: E402
import wheels  # noqa: E402
from gpus import gpus  # noqa: E402
from table import BARE, OURS, rows_of_device, rows_of_nccl, table, without_bars  # noqa: E402

OF_PYPI = ["nixl", "mooncake", "ucx"]
NEEDS_GPU = "needs a GPU"
LIMITS_S = {"peers": 900.0, "nccl": 300.0, "nvshmem": 120.0, "device": 120.0, "torch": 60.0}

class Failed(Exception):
    """Says which step gave nothing, why, and what helps."""


class Steps:
    def __init__(self, args: argparse.Namespace, folder: pathlib.Path) -> None:
        self.args, self.folder, self.gpu_count = args, folder, gpus()
        self.log = args.out / "peers.log"
        self.log.write_bytes(b"")
        self.rows: list[dict[str, Any]] = []
        self.absent: list[dict[str, str]] = []
        self.failed: list[str] = []  # what linkspan should have shown here

    def step(self, name: str, *command: Any, **more: str) -> dict[str, Any]:
        """Runs it with these variables, and kills it and its processes at its limit. Failed: how it
        ended. Returns the JSON that it wrote."""
        limit, code = LIMITS_S[name], None
        print(f"== {name}: at most {limit:.0f} s", flush=True)
        with self.log.open("ab+") as said:
            begin = said.tell()
            try:
                process = subprocess.Popen(
                    [str(each) for each in command],
                    env={**os.environ, **more},
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise Failed(f"{name}: {error}") from None
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                pass
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            said.seek(begin)
            words = " ".join(said.read()[-300:].decode(errors="replace").split())
        if code != 0:
            how = f"not done after {limit:.0f} s" if code is None else f"exit code {code}"
            raise Failed(f"{name}: {how}; {self.log} has all that it said, at the end: {words}")
        return self.written(name)

    def written(self, name: str) -> dict[str, Any]:
        file = self.folder / f"{name}.json"
        return json.loads(file.read_text()) if file.exists() else {"rows": []}

    def lacks(self, id: str, why: str) -> None:
        self.absent.append({"id": id, "why": why})

    def run(self) -> None:
        why = ""  # the rows of a GPU are absent
        if self.gpu_count == 0:
            why = NEEDS_GPU
        else:
            try:
                self.step("torch", sys.executable, "-c", "import torch; torch.zeros(1).cuda()")
            except Failed as error:
                why = f"needs torch with CUDA and numpy in the environment that is active: {error}"
        self.peers(why)
        self.nccl(why)
        self.device()

    def peers(self, no_gpu: str) -> None:
        command = [sys.executable, HERE / "run.py", "--json", self.folder / "peers.json"]
        command += ["--turns", self.args.turns]
        try:
            command += ["--wheels", self.args.wheels or fetched(self.args.cache)]
        except Failed as error:
            self.lacks(", ".join(OF_PYPI), str(error))
            command += ["--sides", BARE, OURS]
        before = os.environ.get("PYTHONPATH", "")
        more = {"PYTHONPATH": f"{self.args.build.resolve() / 'python'}:{before}".rstrip(":")}
        if no_gpu:
            more["CUDA_VISIBLE_DEVICES"] = ""
        ended = ""
        try:
            self.step("peers", *command, **more)
        except Failed as error:
            ended = str(error)
        content = self.written("peers")
        self.rows += content["rows"]
        ours = []
        for each in content.get("absent", []):
            if each["why"] == NEEDS_GPU:
                each["why"] = no_gpu
            elif each["id"].rpartition(".")[2] not in (*OF_PYPI, BARE):
                ours.append(f"{each['id']}: {each['why']}")
            self.lacks(each["id"], each["why"])
        if ended or not content["rows"]:
            self.failed += ours or [ended or "peers: no rows"]

    def nccl(self, no_gpu: str) -> None:
        plugin = self.args.build / "nccl" / "libnccl-net-linkspan.so"
        sockets = self.args.build / "bench_tcp_transfer"
        if no_gpu or not plugin.exists():
            self.lacks("nccl", no_gpu or f"no {plugin}: build the target linkspan_nccl")
            return
        command = [sys.executable, HERE.parent / "nccl" / "run.py", "--plugin", plugin]
        if sockets.exists():
            command += ["--sockets", sockets]
        ended = ""
        try:
            self.step("nccl", *command, "--json", self.folder / "nccl.json")
        except Failed as error:
            ended = str(error)
        content = self.written("nccl")
        self.rows += rows_of_nccl(content["rows"])
        absent = {each["id"]: each["why"] for each in content.get("absent", [])}
        for side, why in absent.items():
            self.lacks(f"nccl.{side}", why)
        if ended and (not absent or (OURS in absent and "default" not in absent)):
            self.failed.append(ended)  # else it is NCCL that does not run here

    def device(self) -> None:
        program, nvshmem = self.args.build / "bench" / "device" / "bench_device", self.args.nvshmem
        if self.gpu_count < 2 or not program.exists():
            why = "needs two GPUs" if self.gpu_count < 2 else f"no {program}: it needs nvcc"
            self.lacks("device, nvshmem", why)
            return
        command, theirs = [program, "--json", self.folder / "device.json"], self.folder / "nvshmem"
        try:
            if nvshmem is None or not nvshmem.exists():
                raise Failed("not built: it needs nvcc and nvidia-nvshmem-cu13 of PyPI")
            libraries = str(nvshmem.resolve().parent / "nvidia" / "nvshmem" / "lib")
            words = ["bash", "-c", 'exec "$0" >"$1"', nvshmem.resolve(), theirs]
            self.step("nvshmem", *words, LD_LIBRARY_PATH=libraries)
            command += ["--nvshmem", theirs]
        except Failed as error:
            self.lacks("nvshmem", str(error))
        try:
            self.rows += rows_of_device(self.step("device", *command)["rows"])
        except Failed as error:
            self.lacks("device", str(error))
            self.failed.append(str(error))

    def save(self) -> None:
        content = {
            "what": "linkspan beside NIXL, Mooncake, UCX, NCCL and NVSHMEM on one machine",
            "command": " ".join(["compare.py", *sys.argv[1:]]),
            "date": datetime.date.today().isoformat(),
            "machine": evidence.machine(),
            "rows": without_bars(self.rows),
            "absent": self.absent,
        }
        print(f"\n{content['what']}: {figures.where(content['machine'])}\n")
        print(table(content["rows"], self.absent))
        evidence.write(self.args.out / "peers.json", content)
        drawing = self.args.out / "peers.svg"
        drawing.write_text(figures.file(content))
        print(f"\nwritten: {self.args.out / 'peers.json'}, {drawing}, {self.log}")


def fetched(cache: pathlib.Path) -> pathlib.Path:
    """Failed: they cannot be had. Returns the folder of others' libraries for this Python."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder, pins = cache / python, "\n".join(wheels.PACKAGES)
    if (folder / "pins").exists() and (folder / "pins").read_text() == pins:
        return folder
    if platform.machine() != "x86_64":
        raise Failed(f"their wheels are fetched for x86_64, and this is {platform.machine()}")
    print(f"== fetching {', '.join(wheels.PACKAGES)} into {folder}", flush=True)
    new = cache / f"{python}.new"
    try:
        for old in (new, folder):
            shutil.rmtree(old, ignore_errors=True)
        wheels.download(new, python)
        (new / "pins").write_text(pins)
        new.rename(folder)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        helps = "run again where PyPI is reached, or give --wheels what `run.py --fetch` wrote"
        raise Failed(f"not fetched: {str(error).strip()}; {helps}") from None
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    folder = pathlib.Path
    parser.add_argument("--build", type=folder, default=ROOT / "out" / "release", metavar="DIR")
    parser.add_argument("--out", type=folder, default=ROOT / "out", metavar="DIR")
    parser.add_argument("--turns", type=int, default=5, help="of each library, after the warm-up")
    parser.add_argument("--wheels", type=folder, metavar="DIR", help="what run.py --fetch wrote")
    cache = folder(os.environ.get("XDG_CACHE_HOME") or folder.home() / ".cache")
    parser.add_argument("--cache", type=folder, default=cache / "linkspan" / "peers", metavar="DIR")
    parser.add_argument("--nvshmem", type=folder, metavar="PROGRAM", help="nvshmem_put_signal")
    args = parser.parse_args()
    package = args.build / "python" / "linkspan"
    if not list(package.glob("_core.*")):
        sys.exit(f"compare.py: --build: no _core in {package}; `./dev bench --peers` builds it")
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        steps = Steps(args, pathlib.Path(name))
        steps.run()
    steps.save()
    for each in steps.failed:
        print(f"compare.py: linkspan has no figure: {each}", file=sys.stderr)
    return int(bool(steps.failed))


if __name__ == "__main__":
    sys.exit(main())
