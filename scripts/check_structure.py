#!/usr/bin/env python3
"""Keeps classes small, type names single, headers with a head and source files short.

    check_structure.py BUILD_FOLDER

BUILD_FOLDER was configured with clang; libclang reads what it compiles of src, without function
bodies. scripts/structure.ok lists what is over a limit and may be, a line each: `members TYPE`,
`twice TYPE` or `lines FILE`, with the reason after #. Prints `file:line: what is wrong` and exits
1 if there is anything to print, such as a line of that list which nothing needs any more.
"""

import collections
import concurrent.futures
import json
import pathlib
import re
import shlex
import subprocess
import sys

import clang.cindex
from clang.cindex import CursorKind

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_MEMBERS = 12
MAX_LINES = 350
ALLOWED = ROOT / "scripts/structure.ok"
# Their members are those of a document, of another project's header or of a table of options.
FORMATS = (
    "src/base/options.hpp",
    "src/cuda/driver.hpp",
    "src/transport/nccl_net/abi.hpp",
    "src/transport/nccl_net/net.hpp",
    "src/transport/tcp/frame.hpp",
    "src/transport/verbs/abi.hpp",
    "src/transport/verbs/abi_types.hpp",
    "src/transport/verbs/library.hpp",
)
TYPES = {
    CursorKind.CLASS_DECL,
    CursorKind.STRUCT_DECL,
    CursorKind.CLASS_TEMPLATE,
    CursorKind.ENUM_DECL,
}


Type = tuple[str, str, int, int]  # name, file, line and data members


def entries(build: pathlib.Path) -> list[dict]:
    """Returns the compile commands of src, each once."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        text = pathlib.Path(entry["file"]).read_text() if "/Unity/" in entry["file"] else ""
        if f'"{ROOT}/src/' in text or entry["file"].startswith(f"{ROOT}/src/"):
            found.setdefault(text or entry["file"], entry)
    return list(found.values())


def types_of(entry: dict) -> set[Type]:
    """Returns the types that one command defines in src."""
    arguments = shlex.split(entry["command"])
    arguments = [a for a in arguments[1:] if a[:2] in ("-I", "-D") or a.startswith("-std")]
    system = re.findall(r"-isystem (\S+)", entry["command"])
    resources = subprocess.run(
        ["clang", "-print-resource-dir"], check=True, capture_output=True, text=True
    )
    arguments += [f"-isystem{folder}" for folder in system]
    arguments += ["-resource-dir", resources.stdout.strip()]
    parsed = clang.cindex.Index.create().parse(
        entry["file"], arguments, options=clang.cindex.TranslationUnit.PARSE_SKIP_FUNCTION_BODIES
    )
    for diagnostic in parsed.diagnostics:
        if diagnostic.severity >= clang.cindex.Diagnostic.Error:
            raise SystemExit(f"check_structure.py: {diagnostic}")
    found = set()

    def walk(cursor, within: tuple[str, ...]) -> None:
        for child in cursor.get_children():
            file = child.location.file.name if child.location.file else ""
            if not file.startswith(f"{ROOT}/src/"):
                continue
            if child.kind == CursorKind.NAMESPACE:
                walk(child, within)
            elif child.kind in TYPES and child.is_definition() and child.spelling:
                name = (*within, child.spelling)
                members = sum(c.kind == CursorKind.FIELD_DECL for c in child.get_children())
                found.add(("::".join(name), file[len(f"{ROOT}/") :], child.location.line, members))
                walk(child, name)

    walk(parsed.cursor, ())
    return found


def over_members(types: set[Type]) -> dict[str, str]:
    return {
        f"members {name}": f"{file}:{line}: {name} has {members} data members, "
        f"more than {MAX_MEMBERS}"
        for name, file, line, members in types
        if members > MAX_MEMBERS and file not in FORMATS
    }


def twice(types: set[Type]) -> dict[str, str]:
    places = collections.defaultdict(list)
    for name, file, line, _ in sorted(types):
        places[name.rpartition("::")[2]].append(f"{file}:{line}")
    return {
        f"twice {name}": f"{at[0]}: another type is called {name}: {', '.join(at[1:])}"
        for name, at in places.items()
        if len(at) > 1
    }


def files() -> tuple[dict[str, str], list[str]]:
    """Returns the files that are too long, and what is wrong with the heads of headers."""
    long, faults = {}, []
    for file in sorted((ROOT / "src").rglob("*.[ch]pp")):
        lines = file.read_text().splitlines()
        path = file.relative_to(ROOT).as_posix()
        if len(lines) > MAX_LINES:
            long[f"lines {path}"] = f"{path}:{len(lines)}: more than {MAX_LINES} lines"
        head = lines[: lines.index("#pragma once")] if "#pragma once" in lines else []
        if file.suffix == ".hpp" and not (head and head[0].startswith(f"// {path[4:]} - ")):
            faults.append(f"{path}:1: its head is missing: `// {path[4:]} - what it is`")
        elif file.suffix == ".hpp" and not any("Threads:" in line for line in head):
            faults.append(f"{path}:1: its head does not say `Threads:`")
    return long, faults


def main() -> int:
    with concurrent.futures.ProcessPoolExecutor() as pool:
        types = set().union(*pool.map(types_of, entries(pathlib.Path(sys.argv[1]).resolve())))
    long, faults = files()
    over = over_members(types) | twice(types) | long
    allowed = {line.partition("#")[0].strip() for line in ALLOWED.read_text().splitlines()} - {""}
    faults += [text for key, text in over.items() if key not in allowed]
    unused = sorted(allowed - over.keys())
    faults += [f"scripts/structure.ok: nothing needs `{key}`" for key in unused]
    print("\n".join(faults) if faults else f"structure: ok, {len(allowed)} lines of structure.ok")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
