"""The command `linkspan nixl`: where NIXL's plugin LINKSPAN is, and how NIXL finds it.

Importing this imports no NIXL. docs/nixl.md says how programs choose the backend.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import secrets
import sys
import time
from typing import Any

__all__ = ["folder", "folder_as", "install", "check"]

_FILE = "libplugin_LINKSPAN.so"
_LIBRARY = "liblinkspan.so.0"
_MAX_NAME = 15
_WHEELS = ("nixl_cu12", "nixl_cu13")
_CHECK_S = 20


def folder() -> str:
    """Returns the folder of libplugin_LINKSPAN.so, for NIXL_PLUGIN_DIR. FileNotFoundError: this
    package was built without it."""
    here = pathlib.Path(__file__).parent
    if not (here / _FILE).is_file():
        raise FileNotFoundError(
            f"{here / _FILE} is not there: install linkspan's wheel, or `./dev build`"
        )
    return str(here)


def folder_as(name: str) -> str:
    """Returns a folder, below $XDG_CACHE_HOME/linkspan/nixl, where the plugin has another
    backend's name: for programs that only know that. NIXL then finds no other plugin. ValueError:
    the name is not one of a backend."""
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name) or len(name) > _MAX_NAME:
        raise ValueError(
            f"{name!r} is no name of a backend: capital letters and digits, at most {_MAX_NAME},"
            " such as UCX"
        )
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    place = cache / "linkspan/nixl" / name
    place.mkdir(parents=True, exist_ok=True)
    _link(place, f"libplugin_{name}.so")
    return str(place)


def _link(place: pathlib.Path, name: str) -> None:
    """Links the plugin to `place` as `name`, and beside it the library, which a wheel's plugin looks for
    where it was found itself."""
    plugin = pathlib.Path(folder(), _FILE)
    library = plugin.parents[1] / "lib" / _LIBRARY
    for target, link in ((plugin, place / name), (library, place / _LIBRARY)):
        fresh = place / f"new-{secrets.token_hex(8)}"  # containers may share the folder and a pid
        fresh.symlink_to(target.resolve())
        fresh.replace(link)  # at once, for processes that load it now


def install() -> list[str]:
    """Links the plugin to where the installed NIXL looks without NIXL_PLUGIN_DIR; returns the
    links. FileNotFoundError: no NIXL is installed for this Python."""
    links = []
    for wheel in _WHEELS:
        found = importlib.util.find_spec(wheel)
        if found is None or found.origin is None:
            continue
        place = pathlib.Path(found.origin).parents[1] / f".{wheel}.mesonpy.libs" / "plugins"
        if place.is_dir():
            _link(place, _FILE)
            links.append(str(place / _FILE))
    if not links:
        raise FileNotFoundError(
            f"no NIXL with a folder of plugins is installed for {sys.executable}:"
            " pip install --no-deps nixl-cu12"
        )
    return links


def check() -> str:
    """Moves 1 MiB between two agents of this process; returns what was found. Loads NIXL, so that
    this process must not have used it before. RuntimeError: what does not work."""
    plugin = ctypes.CDLL(str(pathlib.Path(folder(), _FILE)))
    plugin.nixl_plugin_init.restype = ctypes.POINTER(ctypes.c_int)
    version = plugin.nixl_plugin_init().contents.value
    os.environ.setdefault("NIXL_PLUGIN_DIR", folder())
    for wheel in _WHEELS:
        if importlib.util.find_spec(wheel) is not None:
            break
    else:
        raise RuntimeError("no NIXL is installed: pip install --no-deps nixl-cu12")
    api: Any = importlib.import_module(f"{wheel}._api")
    found = importlib.metadata.version(wheel.replace("_", "-"))
    config = api.nixl_agent_config(backends=[])
    agents = [api.nixl_agent(name, config) for name in ("here", "there")]
    if "LINKSPAN" not in agents[0].get_plugin_list():
        raise RuntimeError(
            f"NIXL {found} does not find LINKSPAN in"
            f" NIXL_PLUGIN_DIR={os.environ['NIXL_PLUGIN_DIR']}: unset that, or set it to {folder()}"
        )
    _move(*agents)
    return f"NIXL {found}, plugin interface {version}: 1 MiB moved and verified"


def _move(here: Any, there: Any) -> None:
    size = 1 << 20
    memories = [(ctypes.c_char * size)() for _ in range(2)]
    memories[0][:] = os.urandom(size)
    sides = []
    for agent, memory in zip((here, there), memories, strict=True):
        agent.create_backend("LINKSPAN", {"listen": "none"})
        listed = [(ctypes.addressof(memory), size, 0, "")]
        agent.register_memory(agent.get_reg_descs(listed, "DRAM"), backends=["LINKSPAN"])
        sides.append(agent.get_xfer_descs([listed[0][:3]], "DRAM"))
    peer = here.add_remote_agent(there.get_agent_metadata())
    handle = here.initialize_xfer("WRITE", *sides, peer, b"moved", backends=["LINKSPAN"])
    state, until = here.transfer(handle), time.monotonic() + _CHECK_S
    while state == "PROC" and time.monotonic() < until:
        state = here.check_xfer_state(handle)
    here.release_xfer_handle(handle)
    if state != "DONE" or memories[0].raw != memories[1].raw:
        raise RuntimeError(f"a transfer of 1 MiB ended as {state}, and its bytes are not there")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("linkspan nixl", description=__doc__.split("\n")[0])
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--folder", action="store_true", help="print the folder for NIXL_PLUGIN_DIR"
    )
    chosen.add_argument(
        "--as", dest="name", metavar="NAME", help="print a folder where the plugin is called NAME"
    )
    chosen.add_argument(
        "--install", action="store_true", help="link the plugin to the installed NIXL"
    )
    chosen.add_argument(
        "--check", action="store_true", help="move a MiB through the installed NIXL"
    )
    options = parser.parse_args(arguments)
    try:
        if options.name is not None:
            print(folder_as(options.name))
        elif options.install:
            print("\n".join(install()))
        elif options.check:
            print(check())
        else:
            print(folder())
    except (OSError, ValueError, RuntimeError) as error:
        print(f"linkspan nixl: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    return 0
