#!/usr/bin/env python3
"""Makes the wheel linkspan-nccl, which puts the plugin beside the libnccl of NVIDIA's wheels.

    make_wheel.py LINKSPAN_WHEEL PLUGIN FOLDER   version and platform are the wheel's; prints the file

STRIP names the strip of another processor's programs.

After `pip install linkspan_nccl-...whl` torch's NCCL finds it by NCCL_NET_PLUGIN=linkspan, and any
other by NCCL_NET_PLUGIN=$(linkspan nccl).
"""

import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "scripts"))

import plugin_wheel  # noqa: E402

PLUGIN = "nvidia/nccl/lib/libnccl-net-linkspan.so"
SUMMARY = "NCCL's network plugin LINKSPAN: collectives over linkspan's TCP connections"


def make(source: pathlib.Path, plugin: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """SystemExit: `source` is no wheel of linkspan."""
    with tempfile.NamedTemporaryFile() as stripped:
        subprocess.run([os.environ.get("STRIP", "strip"), "-o", stripped.name, plugin], check=True)
        content = pathlib.Path(stripped.name).read_bytes()
    return plugin_wheel.write("linkspan-nccl", SUMMARY, {PLUGIN: content}, source, folder)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    print(make(*map(pathlib.Path, sys.argv[1:])))
