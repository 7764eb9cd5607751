#!/usr/bin/env python3
"""Fails when a shared object exports anything but linkspan:: and linkspan_*.

Usage: check_exports.py FILE
"""

import re
import subprocess
import sys

OURS = re.compile(
    r"(?:(?:vtable|VTT|typeinfo|typeinfo name) for |guard variable for )?linkspan(?:::|_)\w*"
)

lines = subprocess.run(
    ["nm", "-DC", "--defined-only", sys.argv[1]], check=True, capture_output=True, text=True
).stdout.splitlines()
names = [line.split(maxsplit=2)[2] for line in lines]
foreign = [name for name in names if not OURS.match(name)]
for name in foreign:
    print(f"exported but not ours: {name}")
print(f"{len(names)} symbols exported, {len(foreign)} of them foreign")
sys.exit(1 if foreign or not names else 0)
