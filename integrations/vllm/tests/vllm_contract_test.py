"""linkspan.vllm over a stand-in of vLLM's classes, and what it uses in vLLM's own source.

vLLM's wheel has 336 MB: its source is there where `./dev test --long` runs, and is read only.
LINKSPAN_INTEGRATIONS names a folder with other releases.
"""

from __future__ import annotations

import ast
import enum
import inspect
import os
import pathlib
import pickle
import subprocess
import sys
import types
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import linkspan
import pytest

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
FOLDER = pathlib.Path(os.environ.get("LINKSPAN_INTEGRATIONS") or CACHE / "linkspan/integrations")
V1 = "distributed/kv_transfer/kv_connector/v1"
PACKAGES = str(pathlib.Path(linkspan.__file__).parents[1])


class Role(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class NixlConnector:
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.seen = (extra["backends"], role, kv_cache_config)

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        return True


class Agent:
    plugins = ["UCX", "LINKSPAN"]

    def __init__(self, name: str, config: Any) -> None:
        assert config == []

    def get_plugin_list(self) -> list[str]:
        return self.plugins


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """vLLM's modules; gives that of linkspan."""
    prefix = "vllm.distributed"
    v1 = f"{prefix}.kv_transfer.kv_connector.v1"
    for name in ("vllm", prefix, f"{prefix}.kv_transfer", f"{prefix}.kv_transfer.kv_connector", v1,
                 f"{v1}.base", f"{v1}.nixl", f"{prefix}.nixl_utils"):  # fmt: skip
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules[f"{v1}.base"].KVConnectorRole = Role
    sys.modules[f"{v1}.nixl"].NixlConnector = NixlConnector
    utils = sys.modules[f"{prefix}.nixl_utils"]
    utils.NixlWrapper, utils.nixl_agent_config = Agent, lambda backends: backends
    import linkspan.vllm as module

    yield module
    vars(module).pop("LinkspanConnector", None)


def config(parallel: int = 1, **extra: Any) -> SimpleNamespace:
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra),
        parallel_config=SimpleNamespace(decode_context_parallel_size=parallel),
    )


def test_importing_needs_no_vllm() -> None:
    code = (
        "import linkspan.vllm, sys; assert 'vllm' not in sys.modules\n"
        "try: linkspan.vllm.Other\n"
        "except AttributeError as error: print(error)\n"
        "try: linkspan.vllm.LinkspanConnector\n"
        "except ModuleNotFoundError as error: print(error.name)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": PACKAGES},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "module 'linkspan.vllm' has no attribute 'Other'" in ran.stdout, ran.stderr
    assert ran.stdout.splitlines()[1] == "vllm"


@pytest.mark.parametrize("role", Role)
def test_the_connector_chooses_the_backend(stand_in: types.ModuleType, role: Role) -> None:
    kind = stand_in.LinkspanConnector
    assert kind is stand_in.LinkspanConnector and issubclass(kind, NixlConnector)
    assert pickle.loads(pickle.dumps(kind)) is kind
    # As vLLM's factory demands it.
    assert list(inspect.signature(kind).parameters) == ["vllm_config", "role", "kv_cache_config"]
    assert kind(config(), role, "cache").seen == (["LINKSPAN"], role, "cache")
    assert kind(config(backends=["LINKSPAN"]), role, None).seen[0] == ["LINKSPAN"]
    assert not kind.supports_sleep_mode(None)


def test_another_backend_is_refused(stand_in: types.ModuleType) -> None:
    with pytest.raises(ValueError, match=r"backends=\['UCX'\] .* leave it out"):
        stand_in.LinkspanConnector(config(backends=["UCX"]), Role.SCHEDULER, None)


def test_decode_context_parallelism_is_refused(stand_in: types.ModuleType) -> None:
    with pytest.raises(ValueError, match=r'decode_context_parallel_size=2: .*"backends": \["LINK'):
        stand_in.LinkspanConnector(config(2), Role.SCHEDULER, None)


def test_a_worker_without_the_plugin_says_so(
    stand_in: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Agent, "plugins", ["UCX", "POSIX"])
    monkeypatch.setenv("NIXL_PLUGIN_DIR", "/there")
    stand_in.LinkspanConnector(config(), Role.SCHEDULER, None)
    with pytest.raises(RuntimeError, match="POSIX, UCX and not LINKSPAN, .*'/there': set it to"):
        stand_in.LinkspanConnector(config(), Role.WORKER, None)
    monkeypatch.setattr(sys.modules["vllm.distributed.nixl_utils"], "NixlWrapper", None)
    with pytest.raises(RuntimeError, match="needs NIXL 1.5: pip install nixl"):
        stand_in.LinkspanConnector(config(), Role.WORKER, None)


def source(name: str) -> str:
    file = FOLDER / "vllm/vllm" / name
    if not file.is_file():
        pytest.skip("needs vLLM, which ./dev test --long fetches")
    return file.read_text()


def classes(name: str) -> dict[str, ast.ClassDef]:
    nodes = ast.walk(ast.parse(source(name)))
    return {each.name: each for each in nodes if isinstance(each, ast.ClassDef)}


def methods(kind: ast.ClassDef) -> dict[str, list[str]]:
    functions = [each for each in kind.body if isinstance(each, ast.FunctionDef)]
    return {each.name: [argument.arg for argument in each.args.args] for each in functions}


def test_the_contract_of_the_connector() -> None:
    connectors = classes(f"{V1}/nixl/connector.py")
    assert "NixlConnector = NixlPullConnector" in source(f"{V1}/nixl/connector.py")
    assert "    NixlConnector,\n" in source(f"{V1}/nixl/__init__.py")
    assert [each.id for each in connectors["NixlBaseConnector"].bases] == [
        "KVConnectorBase_V1", "SupportsHMA",
    ]  # fmt: skip
    pull = methods(connectors["NixlPullConnector"])
    assert pull["__init__"] == ["self", "vllm_config", "role", "kv_cache_config"]
    assert pull["supports_sleep_mode"] == ["cls", "kv_transfer_config"]
    roles = ast.unparse(classes(f"{V1}/base.py")["KVConnectorRole"])
    assert "SCHEDULER = 0" in roles and "WORKER = 1" in roles


def test_the_contract_of_the_configuration() -> None:
    compact = "".join(source(f"{V1}/nixl/base_worker.py").split())
    assert 'get_from_extra_config("backends",["UCX"])' in compact
    assert "nixl_agent_config(backends=self.nixl_backends," in compact
    assert "kv_connector_extra_config: dict[str, Any]" in source("config/kv_transfer.py")
    assert "decode_context_parallel_size: int" in source("config/parallel.py")
    names = source("distributed/nixl_utils.py")
    assert '"NixlWrapper": "nixl_agent"' in names and '"nixl_agent_config"' in names
    assert "getattr(connector_module, connector_name)" in source(
        "distributed/kv_transfer/kv_connector/factory.py"
    )


def test_the_contract_of_the_calls_of_nixl() -> None:
    """Those that docs/connectors.md answers; another one is news."""
    called = set()
    for name in ("base_worker", "pull_worker", "push_worker"):
        for node in ast.walk(ast.parse(source(f"{V1}/nixl/{name}.py"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
                if node.value.attr == "nixl_wrapper":
                    called.add(node.attr)
    assert called == {
        "add_remote_agent", "check_remote_metadata", "check_xfer_state", "create_backend",
        "deregister_memory", "get_agent_metadata", "get_new_notifs", "get_reg_descs",
        "get_xfer_telemetry", "make_prepped_xfer", "prep_xfer_dlist",
        "register_memory", "release_dlist_handle", "release_xfer_handle", "remove_remote_agent",
        "send_notif", "transfer",
    }  # fmt: skip
