"""linkspan.sglang over a stand-in of SGLang's modules, and over SGLang's own files.

SGLang's package needs torch to be imported: the two files that the plugin registers with are loaded
by themselves, the rest is read as source. LINKSPAN_INTEGRATIONS names a folder with other releases.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import pathlib
import sys
import types
from collections.abc import Callable

import pytest

from linkspan.sglang import register

VARIABLE = "SGLANG_DISAGGREGATION_NIXL_BACKEND"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
FOLDER = pathlib.Path(os.environ.get("LINKSPAN_INTEGRATIONS") or CACHE / "linkspan/integrations")
SRT = FOLDER / "sglang/sglang/srt"
GROUPS = "sglang.srt.arg_groups"


def source(name: str) -> str:
    if not (SRT / name).is_file():
        pytest.skip("needs SGLang, which ./dev test fetches")
    return (SRT / name).read_text()


def function(name: str, file: str) -> ast.FunctionDef:
    nodes = ast.walk(ast.parse(source(file)))
    functions = {each.name: each for each in nodes if isinstance(each, ast.FunctionDef)}
    return functions[name]


class ServerArgs:
    def __init__(self, backend: str) -> None:
        self.disaggregation_transfer_backend = backend


@pytest.fixture(params=["stand-in", "SGLang"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple]:
    """Registers; the function resolves ServerArgs of a backend as SGLang does and returns what its
    own step finds there, and the choices."""
    names = ("choices", "resolution_hooks")
    modules = {name: types.ModuleType(f"{GROUPS}.{name}") for name in names}
    if request.param == "SGLang":
        for name, module in modules.items():
            source(f"arg_groups/{name}.py")
            spec = importlib.util.spec_from_file_location(
                module.__name__, SRT / f"arg_groups/{name}.py"
            )
            modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(modules[name])
        choices = modules["choices"].DISAGG_TRANSFER_BACKEND_CHOICES
        run_hook = modules["resolution_hooks"].run_hook
    else:
        choices, hooks = ["nixl"], {}
        modules["choices"].add_disagg_transfer_backend_choices = choices.extend
        modules["resolution_hooks"].register_resolution_hook = (
            lambda name: lambda hook: hooks.setdefault(name, hook)
        )

        def run_hook(step: Callable, server_args: ServerArgs) -> None:
            hooks[step.__name__](server_args, step)

    overrides = types.ModuleType(f"{GROUPS}.overrides")
    overrides.resolving_view = lambda server_args: server_args
    overrides.declare_resolution = lambda args, source, **fields: vars(args).update(fields)
    for module in (*modules.values(), overrides):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("sglang", "sglang.srt", GROUPS):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setenv(VARIABLE, "")  # so that what is set below is undone
    monkeypatch.delenv(VARIABLE)
    register()

    def run(backend: str) -> tuple[str, list[str]]:
        seen = []

        def handle_pd_disaggregation(server_args: ServerArgs) -> None:
            seen.append(server_args.disaggregation_transfer_backend)

        run_hook(handle_pd_disaggregation, ServerArgs(backend))
        assert len(seen) == 1
        return seen[0], choices

    return run


def test_the_word_becomes_nixl_with_the_plugin(run: Callable) -> None:
    backend, choices = run("linkspan")
    assert backend == "nixl" and os.environ[VARIABLE] == "LINKSPAN"
    assert "linkspan" in choices and "nixl" in choices
    assert run("linkspan")[0] == "nixl"  # a repeated step


def test_other_words_stay(run: Callable) -> None:
    assert run("mooncake")[0] == "mooncake"
    assert VARIABLE not in os.environ


def test_another_backend_of_nixl_is_a_contradiction(
    run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "UCX")
    with pytest.raises(ValueError, match=f"{VARIABLE}='UCX' contradicts .* unset it"):
        run("linkspan")
    assert run("nixl")[0] == "nixl"


def test_the_contract_names_of_sglang() -> None:
    declare = function("declare_resolution", "arg_groups/overrides.py").args
    assert [each.arg for each in declare.args] == ["server_args", "source"]
    assert declare.kwarg is not None
    assert len(function("resolving_view", "arg_groups/model_override_base.py").args.args) == 1
    assert "    resolving_view,\n" in source("arg_groups/overrides.py")
    assert "run_hook(handle_pd_disaggregation, server_args)" in source("arg_groups/pipeline.py")
    assert "choices=DISAGG_TRANSFER_BACKEND_CHOICES" in source("arg_groups/fields/disagg.py")
    assert 'GENERAL_PLUGINS_GROUP = "sglang.srt.plugins"' in source("plugins/__init__.py")
    assert f"envs.{VARIABLE}.get()" in source("disaggregation/nixl/conn.py")
    assert f"{VARIABLE} = EnvStr(" in source("environ.py")


def test_the_package_names_its_entry_point() -> None:
    project = pathlib.Path(__file__).resolve().parents[3] / "pyproject.toml"
    if not project.is_file():
        pytest.skip("needs the repository")
    group = '[project.entry-points."sglang.srt.plugins"]'
    point = 'linkspan = "linkspan.sglang:register"'
    assert f"{group}\n{point}\n" in project.read_text()
