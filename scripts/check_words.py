#!/usr/bin/env python3
"""Keeps out the names that were replaced: one noun, one meaning, and the field's own noun.

Reads src, include/linkspan without device/, tools, python and vcache/native/src, code and comments.
Prints `file:line: what is wrong` and exits 1 if there is anything to print.
"""

import pathlib
import re
import sys

ROOTS = ("src", "include/linkspan", "tools", "python", "vcache/native/src")
DEVICE = "include/linkspan/device"  # whose words are CUDA's own
SUFFIXES = {".hpp", ".cpp", ".h", ".py"}
# Each name that is out, and the one that takes its place.
NAMES = {
    "Bay": "BounceBuffer",
    "Closings": "DeferredDestroyer",
    "Core": "EngineImpl",
    "Crossing": "BouncedBatch",
    "Gate": "StreamBlocker",
    "GatePool": "StreamBlockerPool",
    "Lease": "RegionLiveness",
    "LeaseTable": "RegionLivenessTable",
    "LeaseView": "RegionLivenessView",
    "Loan": "TemporaryRegistration",
    "LooseMemory": "UnregisteredBuffers",
    "Meeting": "PeerMatchState",
    "NextLook": "PollHint",
    "SessionStreams": "SessionDataConnections",
    "Sides": "TransferEndpoints",
    "StagingLanes": "StagingStreams",
    "StreamHello": "DataConnectionHello",
    "StreamLinks": "StreamDependencies",
    "StreamOffer": "DataConnectionOffer",
    "StreamOpener": "DataConnectionOpener",
    "StreamPlace": "ResolvedStreams",
    "StreamTaker": "DataConnectionTaker",
    "StreamThread": "DataConnectionThread",
    "StreamWay": "DataConnectionRoute",
    "Tally": "CompletionFlags",
    "TallyView": "CompletionFlagsView",
    "Watcher": "ProgressThread",
    "Wishes": "TransferHints",
    "Worker": "TransferScheduler",
    "give_back": "release",
    "next_look": "poll_hint",
}
OUT = re.compile(r"\b(" + "|".join(NAMES) + r")\b")
PREFIXES = {"kMost": "kMax", "kLeast": "kMin"}
PREFIX = re.compile(r"\b(" + "|".join(PREFIXES) + r")[A-Z]?\w*")


def check(root: pathlib.Path) -> list[str]:
    faults = []
    for top in ROOTS:
        for file in sorted((root / top).rglob("*")):
            path = file.relative_to(root).as_posix()
            if file.suffix not in SUFFIXES or path.startswith(DEVICE):
                continue
            for number, line in enumerate(file.read_text().splitlines(), 1):
                at = f"{path}:{number}"
                faults += [f"{at}: {name} is out: {NAMES[name]}" for name in OUT.findall(line)]
                faults += [f"{at}: {name}... is out: {PREFIXES[name]}..." for name in PREFIX.findall(line)]
    return faults


if __name__ == "__main__":
    found = check(pathlib.Path(__file__).resolve().parent.parent)
    print("\n".join(found) if found else "words: ok")
    sys.exit(1 if found else 0)
