#!/usr/bin/env python3
"""Makes the wheel linkspan-nixl, which puts the plugin where NIXL's wheels look for it.

    make_wheel.py LINKSPAN_WHEEL FOLDER   takes the plugin of linkspan's wheel; prints the file

After `pip install linkspan_nixl-...whl` NIXL has the backend LINKSPAN, with no variable set.
"""

import base64
import hashlib
import pathlib
import re
import sys
import zipfile

FILE = "libplugin_LINKSPAN.so"
PLUGIN = f"linkspan/nixl/{FILE}"
FOLDERS = [f".nixl_{cuda}.mesonpy.libs/plugins" for cuda in ("cu12", "cu13")]
LICENSE = pathlib.Path(__file__).resolve().parents[3] / "LICENSE.txt"


def make(source: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """SystemExit: the file is no wheel of linkspan with the plugin."""
    named = re.fullmatch(r"linkspan-([^-]+)-[^-]+-[^-]+-([^-]+)\.whl", source.name)
    if named is None:
        sys.exit(f"{source.name} is not named as a wheel of linkspan")
    version, platform = named.groups()
    with zipfile.ZipFile(source) as wheel:
        if PLUGIN not in wheel.namelist():
            sys.exit(f"{source.name} has no {PLUGIN}")
        plugin = wheel.read(PLUGIN)
    info = f"linkspan_nixl-{version}.dist-info"
    tags = "".join(f"Tag: py3-none-{each}\n" for each in platform.split("."))
    files = {f"{place}/{FILE}": plugin for place in FOLDERS} | {
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: linkspan-nixl\nVersion: {version}\n"
            "Summary: NIXL's backend LINKSPAN: NVLink and shared memory within a host, TCP between"
            " hosts\nRequires-Python: >=3.10\nLicense-File: LICENSE.txt\n"
        ).encode(),
        f"{info}/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: linkspan\nRoot-Is-Purelib: false\n{tags}"
        ).encode(),
        f"{info}/LICENSE.txt": LICENSE.read_bytes(),
    }
    record = ""
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    made = folder / f"linkspan_nixl-{version}-py3-none-{platform}.whl"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in files.items():
            member = zipfile.ZipInfo(name)  # of 1980: the same bytes from the same plugin
            member.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(member, content)
    return made


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(make(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])))
