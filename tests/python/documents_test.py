"""The ```python blocks of a document run, one after the other."""

from __future__ import annotations

import pathlib
import re

import pytest
from conftest import REPOSITORY

DOCUMENTS = [file for name in ("python", "connectors")
             if (file := REPOSITORY / "docs" / f"{name}.md").exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: file.stem)
def test_blocks_run(document: pathlib.Path, tmp_path: pathlib.Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = document.read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": document.stem}
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    assert len(blocks) >= 5
    for block in blocks:
        line = text[: block.start()].count("\n") + 1
        code = "\n" * line + block[1]  # so that a traceback names the document's line
        exec(compile(code, str(document), "exec"), names)
