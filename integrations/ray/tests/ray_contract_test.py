"""What the tests stand in for Ray, beside Ray's own source, which is read and not imported.

LINKSPAN_INTEGRATIONS names a folder with other releases.
"""

from __future__ import annotations

import ast
import os
import pathlib

import pytest

TESTS = pathlib.Path(__file__).resolve().parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
FOLDER = pathlib.Path(os.environ.get("LINKSPAN_INTEGRATIONS") or CACHE / "linkspan/integrations")
RDT = "ray/experimental/rdt"


def tree(root: pathlib.Path, name: str) -> ast.Module:
    if not (root / name).is_file():
        pytest.skip("needs Ray, which ./dev test fetches")
    return ast.parse((root / name).read_text())


def interface(module: ast.Module) -> dict:
    """Returns fields and methods of each class, a method with its arguments and what marks it."""
    found = {}
    for kind in [each for each in module.body if isinstance(each, ast.ClassDef)]:
        members = {}
        for each in kind.body:
            if isinstance(each, ast.FunctionDef):
                arguments = [argument.arg for argument in each.args.args]
                marks = sorted(ast.unparse(mark) for mark in each.decorator_list)
                defaults = [ast.unparse(default) for default in each.args.defaults]
                members[each.name] = (arguments, defaults, marks)
            elif isinstance(each, ast.AnnAssign):
                members[ast.unparse(each.target)] = "field"
        found[kind.name] = members
    return found


def test_the_interface_of_a_transport() -> None:
    name = f"{RDT}/tensor_transport_manager.py"
    assert interface(tree(TESTS / "stand_in", name)) == interface(tree(FOLDER / "ray", name))


def test_the_functions_that_are_called() -> None:
    util = tree(FOLDER / "ray", f"{RDT}/util.py")
    functions = {each.name: each for each in util.body if isinstance(each, ast.FunctionDef)}
    arguments = [each.arg for each in functions["register_tensor_transport"].args.args]
    assert arguments == ["transport_name", "devices", "transport_manager_class", "data_type"]
    assert "get_tensor_transport_manager" in functions
    names = ast.unparse(tree(FOLDER / "ray", "ray/util/__init__.py"))
    assert "get_node_ip_address" in names
    exceptions = ast.unparse(tree(FOLDER / "ray", "ray/exceptions.py"))
    assert "class RayDirectTransportError(" in exceptions


def test_the_limit_of_a_fetch() -> None:
    constants = ast.unparse(tree(FOLDER / "ray", "ray/_private/ray_constants.py"))
    assert "env_integer('RAY_rdt_fetch_fail_timeout_milliseconds', 60000) / 1000" in constants
