#!/usr/bin/env python3
"""Evidence: what a run on real hardware leaves in the repository, one file a topic.

evidence.py sources              git tree hashes of the source folders, for a pack
evidence.py stamp DIR COMMIT     on the GPU machine: what ran where, in DIR/stamp.json
evidence.py merge DIR [MORE...]  DIR's results -> evidence/*.json, and drawings of them; what further
                                 runs of its commit counted as faults is added
evidence.py check                warns where the code has changed since; exits 1 if a document has
                                 other figures than the rows that it sums up
"""

import datetime
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
EVIDENCE = ROOT / "evidence"

ENGINE = [
    f"src/{room}" for room in ("base", "net", "cuda", "memory", "copy", "transport", "control", "engine")
]
# topic -> the programs' own JSON with rows (of two with one id the later counts), gtest suites, the
# folders it speaks of
TOPICS = {
    "foundation": {
        "what": "one host: ceilings, latency and correctness of the engine",
        "rows": ["demo", "bench", "driver_calls", "faults"],
        "suites": ["unit", "conformance", "driver_calls", "one_gpu", "faults", "memcheck"],
        "sources": ENGINE,
    },
    "host": {
        "what": "one host: shapes and kinds of memory against the bare ceiling",
        "rows": ["host"],
        "suites": ["racecheck"],
        "sources": ENGINE,
    },
    "faults": {
        "what": "what goes wrong beside an Engine, and what it makes of it",
        "rows": ["faults"],
        "suites": ["faults", "driver_errors"],
        "sources": ENGINE,
    },
    "driver_facts": {
        "what": "how the driver behaves where we lean on it",
        "rows": ["driver_facts"],
        "suites": ["driver_facts"],
        "sources": ["src/cuda"],
    },
    "device": {
        "what": "kernels that write to a peer and raise a signal there",
        "rows": ["device"],
        "suites": [],
        "sources": ["include/linkspan/device"],
    },
    "tcpx": {
        "what": "fragments of a bounce pool into their place; transfers by a network plugin",
        "rows": ["tcpx_unpack", "nccl_net_bench"],
        "suites": [],
        "sources": ["src/transport", "src/copy"],
    },
    "tcp": {
        "what": "transfers by TCP over loopback beside bare sockets and UCX",
        "rows": ["tcp_bench", "ucx_tcp"],
        "suites": ["conformance", "faults"],
        "sources": ["src/transport", "src/copy", "src/control", "src/net"],
    },
    "python": {
        "what": "what Python adds to the library",
        "rows": ["python"],
        "suites": ["python_tests"],
        "sources": [*ENGINE, "python/core", "python/linkspan"],
    },
    "peers": {
        "what": "linkspan beside NIXL, Mooncake and UCX in one run",
        "rows": ["peers"],
        "suites": [],
        "sources": [*ENGINE, "python/core", "python/linkspan", "bench/peers"],
    },
    "nixl": {
        "what": "NIXL's Python API over linkspan's plugin and over its own UCX in one run",
        "rows": ["nixl"],
        "suites": [],
        "sources": [*ENGINE, "integrations/nixl", "bench/peers"],
    },
    "nccl": {
        "what": "NCCL over linkspan's network plugin and over its own sockets in one run",
        "rows": ["nccl", "nccl_exchange", "nccl_releases"],
        "suites": [],
        "sources": [*ENGINE, "integrations/nccl", "bench/nccl"],
    },
    "many_gpus": {
        "what": "all GPUs of a host at once, beside the driver's own copies in one process",
        "rows": ["many_gpus"],
        "suites": [],
        "sources": [*ENGINE, "python/core", "python/linkspan", "bench/many_gpus"],
    },
    "topo": {
        "what": "a transfer from each GPU and kind of memory of one process to each of another",
        "rows": ["topo"],
        "suites": [],
        "sources": ENGINE,
    },
    "nvlink_transfer": {
        "what": "libnvlink_transfer beside the driver's own calls",
        "rows": ["nvlink_bench"],
        "suites": ["nvlink_tests"],
        "sources": ["vcache/native", "src/cuda"],
    },
}


# (document, its words, topic, rows, field): the lowest and the highest figure of these rows.
FIGURES = [
    ("README.md", "at {:.1f} to {:.1f} of as many bare sockets", "tcp", r"(host|gpu)_(host|gpu)\.1GiB", "ratio"),
    ("docs/tcp.md", "takes {:.1f} to {:.1f} GB/s between all kinds", "tcp", r"(host|gpu)_(host|gpu)\.1GiB", "value"),
    ("docs/tcp.md", "{:.2f} to {:.2f} of as many bare sockets", "tcp", r"(host|gpu)_(host|gpu)\.1GiB", "ratio"),
    ("docs/tcp.md", "between GPUs {:.1f} times UCX", "tcp", r"gpu_gpu\.1GiB\.beside_ucx", "ratio"),
    ("docs/tcp.md", "take {:.1f} GB/s between GPUs, {:.1f} between host memories", "tcp", r"pages\.8192x4KiB(\.host)?", "value"),
    ("docs/tcp.md", "8 bytes with a notification take {:.1f} us", "tcp", r"notify\.8B\.half_rtt\.p50", "value"),
]

UCX_BAR = 5  # times as fast as UCX over TCP


def git(*args: str) -> str:
    return subprocess.run(
        ["git", *args], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def tree_hashes() -> dict[str, str]:
    """Of HEAD. A line of ls-tree is `mode type hash<TAB>path`."""
    hashes = {}
    for line in git(
        "ls-tree", "-d", "HEAD", "include/", "include/linkspan/", "src/", "bench/", "tools/", "python/",
        "vcache/", "integrations/",
    ).splitlines():
        meta, path = line.split("\t")
        hashes[path] = meta.split()[2]
    return hashes


def nvidia_smi() -> tuple[list[str], str, str]:
    try:
        ask = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        rows = [line.split(", ") for line in subprocess.check_output(ask, text=True).splitlines()]
        cuda = re.search(
            r"CUDA Version: ([\d.]+)", subprocess.check_output(["nvidia-smi"], text=True)
        )
        return [row[0] for row in rows], rows[0][1], cuda[1] if cuda else ""
    except (OSError, subprocess.CalledProcessError, IndexError):
        return [], "", ""


def machine() -> dict:
    gpus, driver, cuda = nvidia_smi()
    return {
        "gpus": gpus,
        "driver": driver,
        "cuda": cuda,
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
    }


def stamp(folder: pathlib.Path, commit: str) -> None:
    write(
        folder / "stamp.json",
        {
            "commit": commit,
            "sources": json.loads((HERE / "sources.json").read_text()),
            "date": datetime.date.today().isoformat(),
            "machine": machine(),
        },
    )


def write(file: pathlib.Path, value: object) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def suite_of(file: pathlib.Path) -> dict:
    import check_skips  # beside this file

    ran, skips, failed = check_skips.read_results(file)
    return {
        "name": file.stem,
        "passed": len(ran) - len(failed),
        "failed": len(failed),
        "skipped": len(skips),
        "skips": skips,
    }


def add_up(runs: list[dict]) -> dict:
    """Faults of several runs: counts are sums, times the longest. What had to be none, or was
    asked of each run, holds if it held in all; of kills all together must be as many as the bar.
    A run that the driver contained has no row but the one that says so."""
    rows = []
    by_id: dict[str, list[dict]] = {}
    for row in (row for run in runs for row in run["rows"]):
        by_id.setdefault(row["id"], []).append(row)
    for same in by_id.values():
        first = same[0]
        values = [row["value"] for row in same]
        total = {**first, "value": max(values) if first["unit"] == "ms" else sum(values)}
        if first["id"] == "kills":
            each = all(row["pass"] for row in by_id["kill_rounds"])
            total["pass"] = each and total["value"] >= first["bar"]
        elif "pass" in first:
            total["pass"] = all(row["pass"] for row in same)
        rows.append(total)
    return {**runs[0], "command": "; ".join(run["command"] for run in runs), "rows": rows}


def beside_ucx(rows: dict[str, dict]) -> dict[str, dict]:
    """Ours beside the faster of UCX's tests of the same run, and how many times as fast it is."""
    beside = {}
    for name, ours in rows.items():
        theirs = [row for other, row in rows.items() if other.startswith(f"ucx.{name}.")]
        if not theirs:
            continue
        best = max(theirs, key=lambda row: row["value"])
        ratio = ours["value"] / best["value"]
        beside[f"{name}.beside_ucx"] = {
            "id": f"{name}.beside_ucx",
            "value": ours["value"],
            "unit": ours["unit"],
            "ceiling": best["value"],
            "ceiling_how": f"{best['how']}, bytes not verified",
            "ratio": round(ratio, 3),
            "runs": ours.get("runs", 1),
            "verified": ours.get("verified", False),
            "bar": UCX_BAR,
            "pass": ratio >= UCX_BAR,
        }
    return beside


# Rows of host.json that peers.json has, and their names there.
CPP_ROWS = {
    "pages.122x67.sets": "pages.122x67.sets.cpp",
    "pages.122x67.triples": "pages.122x67.triples.cpp",
    "pages.8192x4KiB": "pages.8192x4KiB.cpp",
    "captured_post.8192x4KiB": "captured_post",
}


def of_cpp(host: pathlib.Path) -> dict:
    """The rows of the host suite that peers.json has too, under their names there."""
    rows = json.loads(host.read_text())["rows"] if host.exists() else []
    return {"rows": [{**r, "id": CPP_ROWS[r["id"]]} for r in rows if r["id"] in CPP_ROWS]}


def merge(folder: pathlib.Path, more: list[pathlib.Path]) -> None:
    stamped = json.loads((folder / "stamp.json").read_text())
    for other in more:
        commit = json.loads((other / "stamp.json").read_text())["commit"]
        if commit != stamped["commit"]:
            sys.exit(f"{other} is a run of {commit}, {folder} of {stamped['commit']}")
    if stamped["commit"].endswith("-dirty"):
        print(f"warning: the run was packed from uncommitted changes ({stamped['commit']})")
    for topic, about in TOPICS.items():
        results = [
            json.loads((folder / f"{name}.json").read_text())
            for name in about["rows"]
            if (folder / f"{name}.json").exists()
        ]
        if topic == "faults" and results:
            others = [json.loads((other / "faults.json").read_text()) for other in more]
            results = [add_up([*results, *others])]
        if topic == "peers" and results:
            results.append(of_cpp(folder / "host.json"))
        folders = [folder, *more] if topic == "faults" else [folder]
        suites = [
            suite_of(each / f"{name}.xml")
            for each in folders
            for name in about["suites"]
            if (each / f"{name}.xml").exists()
        ]
        # Suites, or what another topic shares, would take the place of what was measured.
        if not (folder / f"{about['rows'][0]}.json").exists():
            continue
        # Without the folders of the machine that ran it.
        commands = [re.sub(r"\S+/", "", r["command"]) for r in results if "command" in r]
        rows = {row["id"]: row for result in results for row in result.get("rows", [])}
        rows |= beside_ucx(rows)
        value = {
            "what": results[0].get("what", about["what"]) if len(results) == 1 else about["what"],
            "command": "; ".join(commands) or "scripts/run_on_gpus.sh",
            "commit": stamped["commit"],
            "sources": {path: stamped["sources"].get(path, "") for path in about["sources"]},
            "date": stamped["date"],
            "machine": stamped["machine"],
            "rows": list(rows.values()),
            "suites": suites,
        }
        if absent := [row for result in results for row in result.get("absent", [])]:
            value["absent"] = absent  # what the machine could not measure, and why
        write(EVIDENCE / f"{topic}.json", value)
        if (drawing := folder / f"{topic}.svg").exists():
            shutil.copyfile(drawing, EVIDENCE / drawing.name)
        print(f"evidence/{topic}.json: {len(value['rows'])} rows, {len(suites)} suites")


def check_figures(root: pathlib.Path) -> list[str]:
    faults = []
    for document, words, topic, rows, field in FIGURES:
        found = json.loads((root / f"evidence/{topic}.json").read_text())["rows"]
        figures = [row[field] for row in found if re.fullmatch(rows, row["id"])]
        if not figures:
            faults.append(f"evidence/{topic}.json: no row {rows}, which {document} sums up")
        elif (text := words.format(min(figures), max(figures))) not in (root / document).read_text():
            faults.append(f"{document}: not as in evidence/{topic}.json, which gives {text!r}")
    return faults


def check() -> None:
    if faults := check_figures(ROOT):
        sys.exit("\n".join(faults))
    try:
        today = tree_hashes()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"evidence: not compared, git cannot tell the trees ({error})")
        return
    files = sorted(EVIDENCE.glob("*.json"))
    for file in files:
        content = json.loads(file.read_text())
        changed = [path for path, tree in content["sources"].items() if today.get(path) != tree]
        if changed:
            print(
                f"warning: {file.relative_to(ROOT)} is of {content['commit'][:12]}; changed since: "
                f"{', '.join(changed)}"
            )
    print(f"evidence: {len(files)} files compared")


def main() -> int:
    match sys.argv[1:]:
        case ["sources"]:
            print(json.dumps(tree_hashes(), indent=2))
        case ["stamp", folder, commit]:
            stamp(pathlib.Path(folder), commit)
        case ["merge", folder, *more]:
            merge(pathlib.Path(folder), [pathlib.Path(other) for other in more])
        case ["check"]:
            check()
        case _:
            sys.exit(__doc__)
    return 0


if __name__ == "__main__":
    sys.exit(main())
