"""The command `linkspan nccl`: where NCCL's network plugin LINKSPAN is, and whether it works here.

Importing this loads neither NCCL nor the plugin.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import pathlib
import sys
import time

__all__ = ["plugin", "check"]

_FILE = "libnccl-net-linkspan.so"
_BESIDE_NCCL = "nvidia/nccl/lib"
_CHECK_S, _CHECK_BYTES = 20, 8 << 20


def plugin() -> str:
    """Returns the file of the plugin, for NCCL_NET_PLUGIN. FileNotFoundError: it is not installed."""
    folders = [pathlib.Path(__file__).parent, *(pathlib.Path(e, _BESIDE_NCCL) for e in sys.path)]
    for each in folders:
        if (each / _FILE).is_file():
            return str((each / _FILE).absolute())
    raise FileNotFoundError(f"there is no {_FILE} for {sys.executable}: pip install linkspan-nccl")


def check() -> list[str]:
    """Moves 8 MiB between two ends in this process, with the settings of its environment. Returns
    what was found, line by line. RuntimeError: what does not work."""
    from ._rank import Rank

    here, there = (Rank(plugin()) for _ in range(2))
    found = [here.said, _nccl()]
    handle, until = there.listen(), time.monotonic() + _CHECK_S
    connected = accepted = False
    while not (connected and accepted):
        connected = connected or here.connect(handle)
        accepted = accepted or there.accept()
        if time.monotonic() > until:
            raise RuntimeError(f"the plugin does not meet itself in {_CHECK_S} s")
    for rank, seed in ((here, 1), (there, 2)):
        rank.register(_CHECK_BYTES, seed)
    there.receive(_CHECK_BYTES)
    here.send(_CHECK_BYTES)
    left = [here, there]
    while left:
        left = [rank for rank in left if rank.test(0.01)[0] is None]
        if time.monotonic() > until:
            raise RuntimeError(f"a message of 8 MiB does not come in {_CHECK_S} s")
    if there.differs(1, _CHECK_BYTES) is not None:
        raise RuntimeError("a message of 8 MiB came with other bytes")
    return [*found, "8 MiB moved and verified"]


def _nccl() -> str:
    """Says which NCCL of NVIDIA's wheels is installed, and how it finds the plugin."""
    for cuda in ("cu12", "cu13"):
        try:
            version = importlib.metadata.version(f"nvidia-nccl-{cuda}")
        except importlib.metadata.PackageNotFoundError:
            continue
        beside = pathlib.Path(plugin()).parent.match(_BESIDE_NCCL)
        return f"NCCL {version}: NCCL_NET_PLUGIN={'linkspan' if beside else plugin()}"
    return f"no nvidia-nccl wheel is installed; any NCCL: NCCL_NET_PLUGIN={plugin()}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "linkspan nccl", description="Prints the file of NCCL's network plugin, for NCCL_NET_PLUGIN."
    )
    parser.add_argument(
        "--check", action="store_true", help="move 8 MiB through the plugin within this process"
    )
    options = parser.parse_args(arguments)
    try:
        print("\n".join(check()) if options.check else plugin())
    except (OSError, RuntimeError) as error:
        print(f"linkspan nccl: {error}", file=sys.stderr)
        return 1
    return 0
