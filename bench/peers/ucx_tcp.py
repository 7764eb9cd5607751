#!/usr/bin/env python3
"""UCX between two processes over TCP on loopback, from one GPU's memory to another's (or the same
GPU's), by its own ucx_perftest: what bench_tcp_transfer stands beside.

ucx_perftest does not verify what arrives, so its rows are not `verified`. What could not be
measured is told under `absent`. Exit: 0 all tests gave a figure; 1 not.
"""

import argparse
import csv
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time

MIB = 1 << 20
# suffix of the row's id, test of ucx_perftest
TESTS = [("put", "ucp_put_bw"), ("tag", "tag_bw")]
# name, bytes, iterations that count, iterations before
SIZES = [("64MiB", 64 * MIB, 10, 2), ("1GiB", 1024 * MIB, 2, 1)]


def free_port() -> int:
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return some.getsockname()[1]


def listens(port: int) -> bool:
    """proc(5): state 0A is TCP_LISTEN. To connect and look would be the client that it waits for."""
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state = line.split()[:4]
        if state == "0A" and int(local.split(":")[1], 16) == port:
            return True
    return False


def end(process: subprocess.Popen) -> str:
    """Kills the process if it runs, and returns its output, once."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    return "" if process.stdout.closed else process.communicate()[0]


def gb_per_s(said: str) -> float:
    """From -v: a line of names and one of figures. UCX's MB are MiB."""
    lines = [line for line in said.splitlines() if "," in line and not line.startswith("[")]
    row = list(csv.DictReader(lines))[-1]
    return float(row["overall_bw"]) * MIB / 1e9


def measure(perftest: list[str], environments: list[dict], arguments: list[str], limit: float) -> float:
    """RuntimeError: why there is no figure."""
    stop = time.monotonic() + limit
    port = str(free_port())
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    server = subprocess.Popen([*perftest, "-p", port], env=environments[0], **pipes)
    client = None
    try:
        while not listens(int(port)):
            if server.poll() is not None or time.monotonic() > stop:
                raise RuntimeError(f"the server does not listen: {end(server)[-400:]}")
            time.sleep(0.02)
        client = subprocess.Popen(
            [*perftest, "-p", port, "127.0.0.1", "-v", *arguments], env=environments[1], **pipes
        )
        said = client.communicate(timeout=max(0.1, stop - time.monotonic()))[0]
        if client.returncode != 0:
            raise RuntimeError(f"exit code {client.returncode}: {said[-400:]}")
        try:
            return gb_per_s(said)
        except (IndexError, KeyError, TypeError, ValueError):
            raise RuntimeError(f"no figure in: {said[-400:]}") from None
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not done after {limit:.0f} s") from None
    finally:
        for process in (client, server):
            if process:
                end(process)


def unpacked(ucx: pathlib.Path, into: str) -> pathlib.Path:
    """A folder with bin and lib, or an archive of them."""
    if ucx.is_dir():
        return ucx
    with tarfile.open(ucx) as archive:
        archive.extractall(into)
    return pathlib.Path(into)


def gpus() -> list[str]:
    try:
        lines = subprocess.check_output(["nvidia-smi", "-L"], text=True).splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []
    return [str(i) for i in range(sum(line.startswith("GPU ") for line in lines))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ucx", type=pathlib.Path, required=True, help="folder or archive with bin and lib")
    parser.add_argument("--memory", choices=["cuda", "host"], default="cuda")
    parser.add_argument("--limit", type=float, default=14, help="seconds for each of the four tests")
    parser.add_argument("--json", type=pathlib.Path, help="also write rows as evidence/ keeps them")
    args = parser.parse_args()
    if not args.ucx.exists():
        sys.exit(f"ucx_tcp.py: --ucx {args.ucx} does not exist: name what ./dev gpu-pack unpacked")
    tls = "tcp,cuda_copy" if args.memory == "cuda" else "tcp"
    # Of one GPU both have the same, of more one each.
    devices = (gpus() or ["0"])[:2]
    route = "gpu_gpu" if args.memory == "cuda" else "host_host"
    rows, absent = [], []
    with tempfile.TemporaryDirectory() as folder:
        home = unpacked(args.ucx, folder)
        libraries = f"{home / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")
        environments = [
            {
                **os.environ,
                "LD_LIBRARY_PATH": libraries,
                "UCX_TLS": tls,
                "CUDA_VISIBLE_DEVICES": device,
            }
            for device in (devices[-1], devices[0])  # the server's, the client's
        ]
        for size, bytes_, runs, before in SIZES:
            for suffix, test in TESTS:
                name = f"ucx.{route}.{size}.{suffix}"
                shape = ["-t", test, "-m", args.memory, "-s", str(bytes_), "-n", str(runs)]
                how = f"UCX_TLS={tls} ucx_perftest {' '.join(shape)}"
                try:
                    value = measure(
                        [str(home / "bin/ucx_perftest")],
                        environments,
                        [*shape, "-w", str(before)],
                        args.limit,
                    )
                except (OSError, RuntimeError) as error:
                    absent.append({"id": name, "why": str(error)})
                    print(f"{name}: absent, {error}", flush=True)
                    continue
                rows.append(
                    {
                        "id": name,
                        "value": round(value, 3),
                        "unit": "GB/s",
                        "how": how,
                        "gpus": len(devices) if args.memory == "cuda" else 0,
                        "runs": runs,
                        "verified": False,  # ucx_perftest does not look at what arrives
                    }
                )
                print(f"{name}: {value:.3f} GB/s, bytes not verified", flush=True)
    if args.json:
        content = {
            "what": "UCX over TCP on loopback",
            "command": " ".join(["ucx_tcp.py", *sys.argv[1:]]),
            "rows": rows,
            "absent": absent,
        }
        args.json.write_text(json.dumps(content, indent=2) + "\n")
    return 1 if absent else 0


if __name__ == "__main__":
    sys.exit(main())
