"""The code of the documents runs, and prints what they show."""

from __future__ import annotations

import asyncio
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from conftest import REPOSITORY

import linkspan

DOCS = REPOSITORY / "docs"
DOCUMENTS = {"index": 1, "python": 5, "connectors": 5}  # and how many blocks they have at least
TOOL = pathlib.Path(linkspan.__file__).parent / "bin" / "linkspan"
BY_DEV = ("./dev wheel", "pip install out/wheels/linkspan-*.whl")  # what `./dev wheel` tries itself


def blocks_of(document: pathlib.Path, language: str) -> list[re.Match]:
    text = document.read_text(encoding="utf-8")
    return list(re.finditer(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_blocks_run(name: str, tmp_path: pathlib.Path, monkeypatch) -> None:
    """One after the other, in one process."""
    monkeypatch.chdir(tmp_path)
    document, names = DOCS / f"{name}.md", {"__name__": name}
    blocks = blocks_of(document, "python")
    assert len(blocks) >= DOCUMENTS[name]
    for block in blocks:
        line = block.string[: block.start()].count("\n") + 1
        code = "\n" * line + block[1]  # so that a traceback names the document's line
        exec(compile(code, str(document), "exec"), names)


def run_both(folder: pathlib.Path, decode: str, prefill: str) -> list[str]:
    """Runs the programs of the tutorial, and returns their lines as shown() does."""
    environment, running = {**os.environ, "LINKSPAN_SOCKET_DIR": str(folder)}, []
    for name, text in (("decode.py", decode), ("prefill.py", prefill)):
        (folder / name).write_text(text, encoding="utf-8")
        running.append(subprocess.Popen([sys.executable, name], cwd=folder, env=environment, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    outputs = [process.communicate(timeout=60) for process in running]
    assert [process.returncode for process in running] == [0, 0], outputs
    return shown("".join(out for out, _ in outputs))


def shown(text: str) -> list[str]:
    """Returns the lines in an order of their own, without what is measured."""
    return sorted(re.sub(r"[\d.]+ GB/s", "N GB/s", text).splitlines())


def test_tutorial(tmp_path: pathlib.Path) -> None:
    decode, prefill, better = (block[1] for block in blocks_of(DOCS / "tutorial.md", "python"))
    output, better_path = (block[1] for block in blocks_of(DOCS / "tutorial.md", "text"))
    assert run_both(tmp_path, decode, prefill) == shown(output)

    kept = [line for line in decode.splitlines(True) if "bytearray" not in line and "publish" not in line]
    at = next(index for index, line in enumerate(kept) if "listen(" in line)
    assert len(kept) == decode.count("\n") - 2
    decode = "".join(kept[:at]) + better + "".join(kept[at:])
    lines = run_both(tmp_path, decode, prefill)
    assert any(line.startswith(better_path.strip()) for line in lines), lines


@pytest.mark.parametrize("name", ["index", "tutorial"])
def test_commands_run(name: str) -> None:
    environment = {**os.environ, "LINKSPAN_CUDA_LIBRARY": "/nonexistent/libcuda.so.1"}
    environment.pop("LD_PRELOAD", None)  # the tool has a sanitizer of its own
    lines = "".join(block[1] for block in blocks_of(DOCS / f"{name}.md", "sh")).splitlines()
    for command in (line.partition("#")[0].strip() for line in lines):
        if command.startswith("linkspan "):
            subprocess.run([TOOL, *command.split()[1:]], check=True, timeout=120, env=environment, capture_output=True)
        else:
            assert command in BY_DEV or command.startswith("python "), command  # test_tutorial


def test_readme_runs(tmp_path: pathlib.Path) -> None:
    (block,) = blocks_of(REPOSITORY / "README.md", "python")
    with linkspan.Engine("decode") as decode:
        decode.publish("kv", decode.register_memory(bytearray(1 << 16)))
        address = decode.listen(f"unix:{tmp_path}/decode.sock")
        code = block[1].replace("unix:/run/app/decode.sock", address)
        names = {"linkspan": linkspan, "tensor": np.arange(1 << 16, dtype=np.uint8), "mine": [0, 3], "theirs": [5, 1]}
        exec(f"async def run():\n{textwrap.indent(code, '    ')}    engine.close()\n", names)
        asyncio.run(names["run"]())
        assert decode.notifications(timeout=5)[0].message == b"7"
