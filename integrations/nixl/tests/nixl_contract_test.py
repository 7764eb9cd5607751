"""The order of virtual functions of a NIXL backend, read from the wheel's own plugin of UCX."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess

import pytest

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
WHEELS = pathlib.Path(os.environ.get("LINKSPAN_INTEGRATIONS") or CACHE / "linkspan/integrations")
ABI = pathlib.Path(__file__).resolve().parents[1] / "src" / "abi.hpp"
VTABLE = "_ZTV13nixlUcxEngine"


def declared() -> list[str]:
    """The functions of our declaration, in its order."""
    text = ABI.read_text().split("class Backend {")[1].split("NOLINTEND")[0]
    return re.findall(r"virtual \w+ (\w+)\(", text)


def lines(*command: object) -> list[list[str]]:
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    return [line.split() for line in ran.stdout.splitlines()]


@pytest.mark.parametrize("wheel", ["nixl-cu12", "nixl-cu12-oldest"])
def test_the_order_of_functions(wheel: str) -> None:
    library = WHEELS / wheel / ".nixl_cu12.mesonpy.libs/plugins/libplugin_UCX.so"
    if not library.is_file():
        pytest.skip("needs NIXL, which ./dev test fetches")
    named = {int(each[0], 16): each[-1] for each in lines("nm", library) if len(each) == 3}
    sized = [each for each in lines("nm", "-S", library) if each[-1] == VTABLE]
    if not sized:
        exported = lines("nm", "-D", library)
        named |= {int(each[0], 16): each[-1] for each in exported if len(each) == 3}
        sized = [each for each in lines("nm", "-DS", library) if each[-1] == VTABLE]
    assert sized, f"{library} does not name {VTABLE}"
    begin, size = (int(each, 16) for each in sized[0][:2])
    slots = {}
    for each in lines("readelf", "-rW", library):
        if len(each) >= 4 and re.fullmatch(r"[0-9a-f]{12,16}", each[0]):
            offset = int(each[0], 16) - begin
            if 16 <= offset < size:
                symbol = each[4] if "RELATIVE" not in each[2] else named.get(int(each[3], 16), "?")
                slots[offset // 8 - 2] = symbol.split("@")[0]
    found = [slots[index] for index in sorted(slots)][2:]  # after the destructors
    assert len(found) >= len(declared())  # UCX has some of its own after them
    for name, symbol in zip(declared(), found, strict=False):
        assert name in symbol, f"{name} is declared where {library.name} has {symbol}"


