#!/usr/bin/env python3
"""Holds the C ABI of liblinkspan against that of abi/linkspan.abi, by libabigail.

    abi.py check     fails where linkspan.h breaks programs that are built with the older one
    abi.py write     writes the dump anew, for a release (./dev abi)

The ABI is read from the header alone: a library of its functions, without their work, compiles in
a moment and has full debug information. That liblinkspan.so exports just these is the test
`exports`; that they have these types is what its C++ compiler checks. New functions, types and
codes are compatible. So are new members at the end of a struct that begins with its size.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADER = "include/linkspan/linkspan.h"
DUMP = "abi/linkspan.abi"
SONAME = re.compile(r"set_target_properties\(linkspan PROPERTIES\s+VERSION \S+ SOVERSION (\d+)")
FUNCTION = re.compile(r"^(LINKSPAN_C_API [^;]*);", re.MULTILINE)
ENUM = re.compile(r"^enum \{(?=\s*(\w+))", re.MULTILINE)
PRAGMA = "#pragma GCC system_header"
ADVICE = f"""
This breaks programs that were built with the header of {DUMP}.
- No release has it yet, or the soname is a new one: ./dev abi writes the dump anew.
- Else keep what is there and add a function, or a member at the end of the struct.
"""


class Wrong(Exception):
    """Its text says what is wrong, and the remedy."""


def run(*command: str, folder: pathlib.Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        raise Wrong(f"{command[0]} is not there: ./dev setup installs it") from None
    if done.returncode:
        raise Wrong(f"{command[0]} failed:\n{done.stdout}{done.stderr}")


def stub_of(header: str) -> str:
    """Returns C that defines each function. Each list of codes is made the type of a parameter, as
    types that no function takes are not compared."""
    if not FUNCTION.search(header):
        raise Wrong(f"{HEADER} declares no function by LINKSPAN_C_API")
    stub = ENUM.sub(r"enum from_\1 {", header.replace(PRAGMA, ""))
    stub = FUNCTION.sub(r"\1 { __builtin_trap(); }", stub)
    return stub + "".join(
        f"void codes_from_{each}(enum from_{each} code) {{ (void)code; }}\n" for each in ENUM.findall(header)
    )


def dump_of(root: pathlib.Path) -> str:
    """Returns the ABI of the header in `root`, as abidw writes it."""
    soname = SONAME.search((root / "CMakeLists.txt").read_text())
    if soname is None:
        raise Wrong("CMakeLists.txt sets no SOVERSION of the target linkspan")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "linkspan.c").write_text(stub_of((root / HEADER).read_text()))
        run("cc", "-std=c99", "-g", "-fPIC", "-shared", f"-Wl,-soname,liblinkspan.so.{soname[1]}",
            "-o", "linkspan.so", "linkspan.c", folder=folder)
        run("abidw", "--no-corpus-path", "--no-comp-dir-path", "--no-show-locs", "--no-architecture",
            "--type-id-style", "hash", "--out-file", "linkspan.abi", "linkspan.so", folder=folder)
        return (folder / "linkspan.abi").read_text()


def without_growth(old: str, new: str) -> str:
    """Returns `new` without the members that lie beyond the size that a struct has in `old`, where
    the struct begins with its size."""
    tree = ElementTree.fromstring(new)
    before = {each.get("name"): each for each in ElementTree.fromstring(old).iter("class-decl")}
    for struct in tree.iter("class-decl"):
        earlier = before.get(struct.get("name"))
        members = struct.findall("data-member")
        if earlier is None or not members or members[0].find("var-decl").get("name") != "size":
            continue
        size, names = earlier.get("size-in-bits"), {each.get("name") for each in earlier.iter("var-decl")}
        for member in members:
            is_new = member.find("var-decl").get("name") not in names
            if is_new and int(member.get("layout-offset-in-bits")) >= int(size):
                struct.remove(member)
                struct.set("size-in-bits", size)
    return ElementTree.tostring(tree, encoding="unicode")


def breaks(old: str, new: str) -> str:
    """Returns what abidiff says of them; nothing where programs go on."""
    with tempfile.TemporaryDirectory() as folder:
        files = [pathlib.Path(folder) / name for name in ("old.abi", "new.abi")]
        for file, text in zip(files, (old, without_growth(old, new))):
            file.write_text(text)
        # The short report misses structs without a name; the long one decides.
        reports = [
            subprocess.run(["abidiff", "--no-added-syms", *how, *map(str, files)],
                           check=False, capture_output=True, text=True)
            for how in ([], ["--leaf-changes-only"])
        ]
    told = reports[1] if reports[1].returncode else reports[0]
    return f"{told.stdout}{told.stderr}" if reports[0].returncode else ""


def main() -> int:
    if sys.argv[1:] not in (["check"], ["write"]):
        sys.exit(__doc__)
    dump = ROOT / DUMP
    try:
        new = dump_of(ROOT)
        if sys.argv[1] == "write":
            dump.write_text(new)
            print(f"{DUMP} is written")
            return 0
        told = breaks(dump.read_text(), new)
    except Wrong as wrong:
        sys.exit(f"abi: {wrong}")
    print(told + ADVICE if told else "abi: ok")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
