#!/usr/bin/env python3
"""Makes glibc's libraries as an older release had them, for the linker: names without code.

    make_glibc_stubs.py VERSION FOLDER [COMPILER]   VERSION: the newest that programs may ask for

With `-LFOLDER` what is linked by COMPILER (g++) asks for each function in the newest version of it
that is not newer than VERSION, and for the library where that release had it. A function that is
newer than VERSION is not found. Names and versions are those of this machine's glibc, 2.34 or later.
"""

import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

# Where a function was before glibc 2.34 moved it into libc.so.6.
BEFORE = {
    "libpthread.so.0": r"_*(pthread|sem|thrd|mtx|cnd|tss)_\w+|call_once",
    "libdl.so.2": r"dl(addr1?|close|error|info|mopen|open|v?sym)",
    "librt.so.1": r"(__)?(aio|lio|mq|shm|timer)_\w+",
    "libc.so.6": r"__libc_start_main",  # in a newer version, but in its place
}


class Symbol(NamedTuple):
    name: str
    version: str
    kind: str
    address: int
    size: int
    is_default: bool


def key(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def symbols_in(table: str) -> list[Symbol]:
    """Reads what `readelf -W --dyn-syms` prints: symbols with a version of glibc."""
    line = r"^ *\d+: (\w+) +(\w+) (FUNC|IFUNC|OBJECT|NOTYPE) +\w+ +\w+ +\d+ (\w+)(@@?)GLIBC_([\d.]+)$"
    return [
        Symbol(m[4], m[6], m[3], int(m[1], 16), int(m[2], 0), m[5] == "@@")
        for m in re.finditer(line, table, re.MULTILINE)
    ]


def chosen(symbols: list[Symbol], newest: str, library: str) -> dict[str, list[Symbol]]:
    """Returns {library of that release: its symbols}, without what it lacked."""
    out: dict[str, list[Symbol]] = {}
    old: dict[str, Symbol] = {}
    for each in sorted(symbols, key=lambda symbol: key(symbol.version)):
        if key(each.version) <= key(newest):
            old[each.name] = each
        if not each.is_default or each.name not in old:  # no program is linked to what is no default
            continue
        home: str | None = library
        if library == "libc.so.6" and each != old[each.name]:
            home = next((lib for lib, names in BEFORE.items() if re.fullmatch(names, each.name)), None)
        if home is not None:
            out.setdefault(home, []).append(old[each.name])
    return out


def assembly(symbols: list[Symbol]) -> str:
    """Each symbol is where it is in the library: two names of one variable stay one."""
    end = max(symbol.address + symbol.size for symbol in symbols) + 1
    lines = [".bss", ".balign 4096", f"base: .skip {end}"]
    for each in symbols:
        kind = "object" if each.kind == "OBJECT" else "function"
        lines += [
            f".globl {each.name}",
            f".type {each.name}, %{kind}",
            f".size {each.name}, {each.size}",
            f".set {each.name}, base + {each.address}",
        ]
    return "\n".join(lines + ['.section .note.GNU-stack,"",%progbits', ""])


def version_script(symbols: list[Symbol]) -> str:
    nodes = []
    for version in sorted({symbol.version for symbol in symbols}, key=key):
        names = "; ".join(symbol.name for symbol in symbols if symbol.version == version)
        nodes.append(f"GLIBC_{version} {{ global: {names}; }};")
    return "\n".join(nodes) + "\n"


def main() -> int:
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    newest, folder, compiler = sys.argv[1], pathlib.Path(sys.argv[2]).resolve(), "g++"
    compiler = sys.argv[3] if len(sys.argv) == 4 else compiler

    def run(*command: str) -> str:
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    folder.mkdir(parents=True, exist_ok=True)
    stubs: dict[str, list[Symbol]] = {}
    for library in ("libc.so.6", "libm.so.6"):
        file = run(compiler, f"-print-file-name={library}").strip()
        stubs |= chosen(symbols_in(run("readelf", "-W", "--dyn-syms", file)), newest, library)
    for library, symbols in stubs.items():
        source, versions = folder / f"{library}.s", folder / f"{library}.map"
        source.write_text(assembly(symbols))
        versions.write_text(version_script(symbols))
        link = ["-shared", "-nostdlib", f"-Wl,-soname={library},--version-script={versions}"]
        run(compiler, *link, "-o", str(folder / library), str(source))
    moved = " ".join(str(folder / each) for each in stubs if each not in ("libc.so.6", "libm.so.6"))
    # The linker's script of this machine, but with the stubs: -lc gives what was in other libraries.
    script = pathlib.Path(run(compiler, "-print-file-name=libc.so").strip()).read_text()
    script = re.sub(r"\S+/libc\.so\.6", str(folder / "libc.so.6"), script)
    (folder / "libc.so").write_text(re.sub(r"AS_NEEDED \(", rf"\g<0> {moved}", script))
    (folder / "libm.so").write_text(f"INPUT ( {folder / 'libm.so.6'} )\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
