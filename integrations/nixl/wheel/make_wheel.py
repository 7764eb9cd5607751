#!/usr/bin/env python3
"""Makes the wheel linkspan-nixl, which puts the plugin where NIXL's wheels look for it.

    make_wheel.py LINKSPAN_WHEEL FOLDER   takes the plugin of linkspan's wheel; prints the file

After `pip install linkspan_nixl-...whl` NIXL has the backend LINKSPAN, with no variable set.
"""

import pathlib
import sys
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "scripts"))

import plugin_wheel  # noqa: E402

FILE = "libplugin_LINKSPAN.so"
PLUGIN = f"linkspan/nixl/{FILE}"
FOLDERS = [f".nixl_{cuda}.mesonpy.libs/plugins" for cuda in ("cu12", "cu13")]
SUMMARY = "NIXL's backend LINKSPAN: NVLink and shared memory within a host, TCP between hosts"


def make(source: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """SystemExit: the file is no wheel of linkspan with the plugin."""
    plugin_wheel.version_and_platform(source)
    with zipfile.ZipFile(source) as wheel:
        if PLUGIN not in wheel.namelist():
            sys.exit(f"{source.name} has no {PLUGIN}")
        plugin = wheel.read(PLUGIN)
    plugins = {f"{place}/{FILE}": plugin for place in FOLDERS}
    return plugin_wheel.write("linkspan-nixl", SUMMARY, plugins, source, folder, needs_linkspan=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(make(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])))
