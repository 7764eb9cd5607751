"""The tables of src/base/schema for wire_client.py, by flatc's code."""

from __future__ import annotations

import importlib
import pathlib
import subprocess
from typing import Any

import flatbuffers
import linkspan


def make_tables(schemas: pathlib.Path, out: pathlib.Path) -> None:
    """Modules linkspan.schema.*, made in `out`."""
    files = [schemas / f"{name}.fbs" for name in ("control", "descriptor", "wire", "tcp")]
    subprocess.run(["flatc", "--python", "--gen-object-api", "-o", out, *files], check=True)
    linkspan.__path__.append(str(out / "linkspan"))


def table(kind: str, /, **fields: Any) -> Any:
    made = getattr(importlib.import_module(f"linkspan.schema.{kind}"), f"{kind}T")()
    vars(made).update(fields)
    return made


def pack(kind: str, /, **fields: Any) -> bytes:
    builder = flatbuffers.Builder()
    if kind == "Import":  # by hand, for flatc's code of a table of that name is no Python
        name = builder.CreateString(fields["name"])
        builder.StartObject(2)
        builder.PrependUOffsetTRelativeSlot(0, name, 0)
        builder.PrependUint64Slot(1, fields.get("serial", 0), 0)
        builder.Finish(builder.EndObject())
    else:
        builder.Finish(table(kind, **fields).Pack(builder))
    return bytes(builder.Output())


def unpack(kind: str, payload: Any) -> Any:
    module = importlib.import_module(f"linkspan.schema.{kind}")
    root = getattr(module, kind).GetRootAs(bytes(payload), 0)
    return getattr(module, f"{kind}T").InitFromObj(root)
