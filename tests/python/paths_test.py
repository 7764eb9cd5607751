"""Paths and addresses of any bytes: str, bytes and os.PathLike."""

from __future__ import annotations

import os
import pathlib
from typing import Any, Callable

import pytest

import linkspan

ODD = b"py-latin-\xe9\xff \xd0\xb6"


def as_str(path: bytes) -> str:
    return os.fsdecode(path)


def as_bytes(path: bytes) -> bytes:
    return path


def as_path(path: bytes) -> pathlib.Path:
    return pathlib.Path(os.fsdecode(path))


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> bytes:
    path = os.fsencode(tmp_path)
    return path if len(path) < 80 else pytest.fail(f"no room for a socket in {tmp_path}")


@pytest.mark.parametrize("kind", [as_str, as_bytes, as_path])
def test_an_address_may_be_any_path(folder: bytes, kind: Callable[[bytes], Any]) -> None:
    path = folder + b"/" + ODD
    with linkspan.Engine("here", use_gpu=False) as here:
        with linkspan.Engine("there", use_gpu=False) as there:
            address = there.listen(kind(path))
            assert os.fsencode(address) == b"unix:" + path
            assert there.address == address and os.path.exists(path)
            assert here.connect(kind(path)).state == "up"
            assert here.connect(address).state == "up"


@pytest.mark.parametrize("kind", [as_str, as_bytes, as_path])
def test_a_folder_and_a_secret_may_be_any_path(
    folder: bytes, kind: Callable[[bytes], Any]
) -> None:
    sockets, secret = folder + b"/" + ODD, folder + b"/secret" + ODD
    with open(os.open(secret, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
        file.write(b"s" * 32)
    options = {"socket_dir": kind(sockets), "secret_file": kind(secret), "use_gpu": False}
    with linkspan.Engine("here", **options) as here, linkspan.Engine("there", **options) as there:
        assert os.fsencode(there.listen("name")) == b"unix:" + sockets + b"/name"
        assert here.connect("name").state == "up"


def test_errors_have_the_bytes(folder: bytes) -> None:
    with linkspan.Engine("here", use_gpu=False) as here:
        with pytest.raises(linkspan.NotFoundError, match="make its folder") as error:
            here.listen(b"unix:" + folder + b"/none" + ODD + b"/s")
        assert os.fsdecode(ODD) in str(error.value)


def test_what_is_no_path_is_a_type_error() -> None:
    with linkspan.Engine("here", use_gpu=False) as here, pytest.raises(TypeError):
        here.listen(3)
    with pytest.raises(TypeError):
        linkspan.Engine("here", socket_dir=3)


def test_a_stale_runtime_folder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/4242424")
    monkeypatch.delenv("LINKSPAN_SOCKET_DIR", raising=False)
    with linkspan.Engine("here", use_gpu=False) as here:
        with pytest.raises(linkspan.NotFoundError, match="XDG_RUNTIME_DIR.*LINKSPAN_SOCKET_DIR"):
            here.listen()
