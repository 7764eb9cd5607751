#!/usr/bin/env python3
"""Keeps the floors: who may include whom, who may call the driver, and what no library may do.

    base < net < cuda < memory < copy < transport < control < engine < api < compat < {tools, bench, python}

An include points down or inside its folder. A product stands on the floors that PRODUCTS names, and
no floor includes it. include/linkspan/{status,types}.hpp lie below base;
the other public headers belong to the engine's floor, but for those in PUBLIC. Prints
`file:line: what is wrong` and exits 1 if there is anything to print.
"""

import pathlib
import re
import sys

FLOORS = ["base", "net", "cuda", "memory", "copy", "transport", "control", "engine", "api", "compat"]
TOP = len(FLOORS)
PRODUCTS = {"store": {"base", "net"}, "nvlink_transfer": {"base", "cuda"}, "old_glibc": set()}
NATIVE = "vcache/native"  # where the latter lives
GROUND = {"linkspan/status.hpp", "linkspan/types.hpp"}
PUBLIC = {
    "linkspan/interrupt_check.hpp": "base",
    "linkspan/compat/ipc.hpp": "compat",
    "linkspan/store.hpp": "store",
    "linkspan/nvlink_transfer.h": "nvlink_transfer",
}
# Beside src/cuda. The first measures the bare calls; the second answers CUDA's own numbers, which a
# Status does not keep.
CALLS_THE_DRIVER = ("bench/bare", f"{NATIVE}/bench", f"{NATIVE}/src")
SUFFIXES = {".hpp", ".cpp", ".h", ".cu", ".cuh"}
# Rooms or files that may use a library. FlatBuffers may be used everywhere.
THIRD_PARTY = {
    "asio": {"net", "transport", "control", "store"},
    "asio.hpp": {"net", "transport", "control", "store"},
    "openssl": {"base"},
    "CLI": {"tools", "bench"},
    "nlohmann": {"tools", "bench", "python"},
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
DRIVER_CALL = re.compile(r"\b(cu[A-Z]\w+)\s*\(|\bdriver\(\)\s*(?:\.|->)\s*(cu[A-Z]\w*)")
GETENV = re.compile(r"\b(?:secure_)?getenv\s*\(")
FORBIDDEN = re.compile(
    r"\bsleep_(?:for|until)\b|\bu?sleep\s*\(|\bnanosleep\s*\(|\.detach\(\)|\bstd::c(?:out|err)\b"
    r"|\bstd::(?:exit|_Exit|quick_exit|abort)\b|(?<![\w.>:])(?:::)?abort\s*\(\s*\)"
    r"|(?<![\w.>:])(?:::)?(?:_?exit|_Exit|quick_exit)\s*\(|\b[vdf]?f?printf\s*\("
)
# A thread whose task stood still when its Executor ended lets go of itself, as its last step.
PERMITTED = {("src/base/executor.cpp", ".detach()")}
# Comments and literals; a digit separator (1'000) is no literal.
NOT_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'', re.S
)


def blank(match: re.Match) -> str:
    return re.sub(r"[^\n]", " ", match.group())


def without_comments(text: str) -> str:
    return NOT_CODE.sub(lambda m: blank(m) if m.group()[0] == "/" else m.group(), text)


def room_of(path: pathlib.PurePosixPath) -> str:
    """'base'...'compat', a product, 'ground' or 'public' for headers, else the top folder."""
    if path.is_relative_to(NATIVE):
        return {"src": "nvlink_transfer", "include": "public"}.get(path.parts[2], path.parts[2])
    if path.parts[0] == "src":
        return path.parts[1]
    if path.parts[0] == "include":
        return "ground" if "/".join(path.parts[1:]) in GROUND else "public"
    return path.parts[0]


def is_library(path: pathlib.PurePosixPath) -> bool:
    return room_of(path) not in ("tools", "bench", "python")


def floor_of(room: str, name: str = "") -> int:
    if room == "ground":
        return -1
    if room == "public":
        room = PUBLIC.get(name, "engine")
    return FLOORS.index(room) if room in FLOORS else TOP


def transport_of(path: pathlib.PurePosixPath) -> str | None:
    parts = path.parts
    return parts[2] if parts[:2] == ("src", "transport") and len(parts) > 3 else None


def target_of(root: pathlib.Path, name: str) -> pathlib.PurePosixPath | None:
    """The file of ours that `#include name` means, by its path from the root."""
    if name.split("/")[0] in {*FLOORS, *PRODUCTS}:
        return pathlib.PurePosixPath("src") / name
    if name.startswith("linkspan/"):
        return pathlib.PurePosixPath("include") / name
    if (root / name).exists():
        return pathlib.PurePosixPath(name)
    return None


def include_fault(
    root: pathlib.Path, path: pathlib.PurePosixPath, quoted: bool, name: str
) -> str | None:
    room = room_of(path)
    if name in ("cuda.h", "cuda_runtime.h", "cudaTypedefs.h") and is_library(path):
        return f"{name}: only cuda/driver_abi.hpp declares the driver"
    if not quoted:
        library = name.split("/")[0]
        if library in THIRD_PARTY and not {room, path.name} & THIRD_PARTY[library]:
            return f"<{name}> belongs to {', '.join(sorted(THIRD_PARTY[library]))}, not to {room}"
        return None
    target = target_of(root, name)
    if room == "ground":
        return f'"{name}": the ground floor includes only std'
    if room == "public":
        inside = target is not None and target.parts[0] == "include"
        return None if inside else f'"{name}": a public header includes only linkspan/'
    if target is None:
        return f'"{name}": no such file; includes are written from include/, src/ or the root'
    if (
        path.parts[:2] == ("bench", "bare")
        and target.parts[0] == "src"
        and target.parts[1] != "cuda"
    ):
        return f'"{name}": a bare ceiling uses nothing of src but the driver table'
    theirs = room_of(target)
    if path.parts[0] == "src" and theirs in PRODUCTS and theirs != room:
        return f'"{name}": {theirs} is a product, which nothing of src includes'
    if room in PRODUCTS and theirs in FLOORS and theirs not in PRODUCTS[room]:
        return f'"{name}": {room} may include {", ".join(sorted(PRODUCTS[room]))} alone'
    if floor_of(room_of(target), name) > floor_of(room):
        return f'"{name}": {room} may not include upwards ({room_of(target)})'
    ours, theirs = transport_of(path), transport_of(target)
    if ours and theirs and ours != theirs:
        return f'"{name}": transport {ours} may not include transport {theirs}'
    return None


def faults_of(root: pathlib.Path, path: pathlib.PurePosixPath):
    """Yields (line, what is wrong)."""
    text = without_comments((root / path).read_text(encoding="utf-8", errors="replace"))
    code = NOT_CODE.sub(blank, text)
    line_at = lambda offset: text.count("\n", 0, offset) + 1
    for match in INCLUDE.finditer(text):
        fault = include_fault(root, path, match[1] == '"', match[2])
        if fault:
            yield line_at(match.start(2)), fault
    room = room_of(path)
    if room != "cuda" and not any(path.is_relative_to(each) for each in CALLS_THE_DRIVER):
        for match in DRIVER_CALL.finditer(code):
            yield line_at(match.start()), f"{match[1] or match[2]}: only src/cuda calls the driver"
    if is_library(path) and str(path) != "src/base/environment.cpp":
        for match in GETENV.finditer(code):
            fault = "getenv: only src/base/environment.cpp reads the environment"
            yield line_at(match.start()), fault
    if is_library(path):
        for match in FORBIDDEN.finditer(code):
            if (str(path), match.group()) in PERMITTED:
                continue
            yield line_at(match.start()), f"{match.group().strip()} has no place in a library"


def check(root: pathlib.Path) -> list[str]:
    faults = []
    tops = ("include", "src", "tools", "bench", "python")
    for top in (*tops, *(f"{NATIVE}/{part}" for part in ("include", "src", "bench", "python"))):
        for file in sorted((root / top).rglob("*")):
            if file.suffix in SUFFIXES and file.is_file():
                path = pathlib.PurePosixPath(file.relative_to(root).as_posix())
                if path.parts[0] == "src" and path.parts[1] not in {*FLOORS, *PRODUCTS}:
                    faults.append(f"{path}:1: src/{path.parts[1]} is no room")
                    continue
                faults += [f"{path}:{line}: {what}" for line, what in faults_of(root, path)]
    return faults


if __name__ == "__main__":
    found = check(pathlib.Path(__file__).resolve().parent.parent)
    print("\n".join(found) if found else "includes: ok")
    sys.exit(1 if found else 0)
