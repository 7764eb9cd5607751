#!/usr/bin/env python3
"""Keeps out the names that were replaced: one noun, one meaning, and the field's own noun.

Reads src, include/linkspan without device/, tools, python, vcache/native/src and the plugins of
integrations, code and comments.
Prints `file:line: what is wrong` and exits 1 if there is anything to print.
"""

import pathlib
import re
import sys

ROOTS = ("src", "include/linkspan", "tools", "python", "vcache/native/src", "integrations/nixl/src",
         "integrations/nccl/src")
DEVICE = "include/linkspan/device"  # whose words are CUDA's own
SUFFIXES = {".hpp", ".cpp", ".h", ".py"}
# Each name that is out, and the one that takes its place.
NAMES = {
    "Answering": "EchoResponder",
    "AsioControl": "AsioControlPlane",
    "Bay": "BounceBuffer",
    "Closings": "DeferredDestroyer",
    "Contender": "Contestant",
    "Conversation": "TextChannel",
    "Core": "EngineImpl",
    "Crossing": "BouncedBatch",
    "DataConnectionSink": "Endpoint::on_data_connection",
    "DataConnectionTaker": "Endpoint::on_data_connection",
    "ExchangeKind": "MessageKind",
    "ExchangeObserver": "MessageObserver",
    "Exported": "ExportedRegion",
    "FarMemories": "TargetMemories",
    "FarSide": "RemoteTarget",
    "FdParcel": "FdBundle",
    "Flavour": "Kind",
    "Flow": "WorkQueue",
    "FlowThread": "PluginThread",
    "Gate": "StreamBlocker",
    "GatePool": "StreamBlockerPool",
    "Hold": "CloseBlocker",
    "HostSide": "RemoteHost",
    "KeptTransfer": "PyTransfer",
    "Lane": "CopyQueue",
    "Lease": "RegionLiveness",
    "LeaseTable": "RegionLivenessTable",
    "LeaseView": "RegionLivenessView",
    "Loan": "TemporaryRegistration",
    "LooseMemory": "UnregisteredBuffers",
    "Meeting": "PeerMatchState",
    "MemoryLease": "OwnedMemory",
    "NextLook": "PollHint",
    "OperatorCall": "IntrospectionCall",
    "OperatorOp": "IntrospectionOp",
    "OperatorSocket": "IntrospectionSocket",
    "Operators": "IntrospectionServer",
    "OwnedPages": "PyPages",
    "OwnedRegion": "PyRegion",
    "PeerLife": "PeerIdentity",
    "PreparedOn": "PyPrepared",
    "PublishedTable": "WireRegionTable",
    "ReceiveFlow": "ReceiveQueue",
    "SealKey": "MacKey",
    "SealKeys": "MacKeys",
    "SealedSocket": "AuthenticatedSocket",
    "Sealer": "FrameAuthenticator",
    "SendFlow": "SendQueue",
    "SessionStreams": "SessionDataConnections",
    "Sides": "TransferEndpoints",
    "Slot": "InflightBatch",
    "StagingLanes": "StagingStreams",
    "StreamHello": "DataConnectionHello",
    "StreamLinks": "StreamDependencies",
    "StreamOffer": "DataConnectionOffer",
    "StreamOpener": "DataConnectionOpener",
    "StreamPlace": "ResolvedStreams",
    "StreamTaker": "Endpoint::on_data_connection",
    "StreamThread": "DataConnectionThread",
    "StreamWay": "DataConnectionRoute",
    "Tally": "CompletionFlags",
    "TallyView": "CompletionFlagsView",
    "TaskThread": "Executor",
    "WaitingRoom": "PendingHandshakes",
    "Watcher": "ProgressThread",
    "WindowSides": "WindowRegions",
    "Wire": "ConnectionGroup",
    "WireOptions": "ConnectionGroupOptions",
    "Wishes": "TransferHints",
    "Worker": "PeerScheduler",
    "abort_word": "abort_flag",
    "flavour": "kind",
    "give_back": "release",
    "hold_stream": "block_user_stream",
    "holds_up_its_end": "blocks_close",
    "is_held_up": "is_close_blocked",
    "kSealBytes": "kMacTagBytes",
    "letting_go": "unmapping",
    "next_look": "poll_hint",
    "pair_up": "match_all",
    "put_of": "find_or_create_put",
    "serve_no_more": "stop_serving",
    "still_there": "validate_allocation",
    "store_word": "store_u64",
    "take_turn": "lock_connection",
    "tell_who_waits": "notify_set_waiters",
    "unmatch": "rollback_match",
    "untold_": "unreported_",
    "wants_looks": "wants_polling",
    "wishes_of": "hints_of",
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
