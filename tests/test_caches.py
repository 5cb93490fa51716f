"""Caches have bounds: an agent runs for months, and whatever models come, what it keeps of each must not add up."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

FINITE = {
    "agent/execution/compile/compiler.py: block": "it takes no arguments",
    "agent/execution/compile/compiler.py: environment": "it takes no arguments",
    "agent/http/page/static_files.py: static_files": "it takes no arguments",
    "agent/measure/probe_models.py: large_moves": "it takes no arguments",
    "agent/planwork/model_process.py: _open_store": "an agent has one store",
    "agent/wire/codec.py: _defaults": "the classes of messages",
    "agent/wire/codec.py: _names": "the classes of messages",
    "agent/wire/codec.py: _reader": "the types of the fields of messages",
    "agent/wire/dtypes.py: _other_names": "it takes no arguments",
    "agent/wire/dtypes.py: _others": "it takes no arguments",
    "planner/access/declare/bound.py: numpy_dtype": "ONNX's element types; it raises for any other",
    "planner/model/validate.py: _formals": "ONNX's operators; it raises for any other",
    "planner/model/weights.py: item_bytes": "ONNX's element types, as dtype_name names them",
    "planner/model/weights.py: lazy_constant": "a function without arguments, kept by one constant",
}
"""The functions that keep everything they returned, and why that is not much."""

GLOBAL = {
    "agent/grpc/requests.py: NOTHING": "stays empty",
    "agent/standalone/run.py: PLAN": "a place for the plan that the program is written with",
    "agent/standalone/run.py: REQUESTS": "a place for the requests that the program is written with",
    "agent/host/system.py: _told": "what the system does not tell, each said once",
    "agent/wire/codec.py: _RECORDS": "the classes of messages",
    "cli/output.py: _above_bars": "a command runs briefly",
    "planner/placing/registry.py: _registered": "the placers of this release",
    "planner/strategies/registry.py: _registered": "the strategies of this release",
}
"""The containers of modules that are empty at first, and what comes into them."""

EMPTY = {
    "dict",
    "set",
    "list",
    "OrderedDict",
    "defaultdict",
    "Counter",
    "WeakKeyDictionary",
    "WeakValueDictionary",
}


@pytest.fixture(scope="module")
def modules() -> dict[str, ast.Module]:
    """The syntax trees of all modules of the product, by path."""
    paths = [path for room in ("agent", "cli", "client", "planner") for path in (ROOT / room).rglob("*.py")]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}


def test_each_cache_is_bounded_or_has_few_keys(modules: dict[str, ast.Module]) -> None:
    found = {place for path, tree in modules.items() for place in _unbounded_caches(path, tree)}
    assert found == set(FINITE)


def test_modules_and_classes_keep_nothing_of_what_comes(modules: dict[str, ast.Module]) -> None:
    found = {place for path, tree in modules.items() for place in _empty_containers(path, tree)}
    assert found == set(GLOBAL)


def test_unbounded_caches_are_seen_in_each_form() -> None:
    forms = """
@cache
def a(): ...
@functools.cache
def b(): ...
class C:
    @lru_cache(None)
    def c(self): ...
def d():
    return lru_cache(maxsize=None)(len)
def e(load):
    return cache(load)
@lru_cache
def bounded(): ...
@lru_cache(maxsize=9)
def too(): ...
"""
    assert set(_unbounded_caches("m", ast.parse(forms))) == {f"m: {name}" for name in "abcde"}
    held = "x: dict[str, int] = {}\ny = defaultdict(list)\nz = {1: 2}\nclass C:\n    w = []\n"
    assert sorted(_empty_containers("m", ast.parse(held))) == ["m: w", "m: x", "m: y"]


def _unbounded_caches(place: str, node: ast.AST, inside: str = "") -> Iterator[str]:
    """The functions that are cached without a bound, or in which something is, some of them several times."""
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        name = child.name if named else inside  # type: ignore[attr-defined]
        if named and any(map(_is_unbounded, child.decorator_list)):  # type: ignore[attr-defined]
            yield f"{place}: {name}"
        if isinstance(child, ast.Call) and (_is_unbounded(child.func) or _is_unbounded(child)):
            yield f"{place}: {name}"
        yield from _unbounded_caches(place, child, name)


def _is_unbounded(node: ast.AST) -> bool:
    """Whether this makes a cache without a bound of the function that it is given."""
    if isinstance(node, ast.Call):
        bounds = [*node.args, *(one.value for one in node.keywords if one.arg == "maxsize")]
        return _name(node.func) == "lru_cache" and any(
            isinstance(one, ast.Constant) and one.value is None for one in bounds
        )
    return _name(node) == "cache"


def _name(node: ast.AST) -> str:
    """The last part of a dotted name; "" for anything else."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _empty_containers(place: str, tree: ast.Module) -> Iterator[str]:
    """What modules and their classes hold that is empty when they are imported, and can be filled."""
    bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
    for statement in (one for body in bodies for one in body):
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or not _is_empty(statement.value):
            continue
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (f"{place}: {_name(target)}" for target in targets if _name(target) != "__all__")


def _is_empty(value: ast.expr | None) -> bool:
    match value:
        case ast.Dict(keys=[]) | ast.List(elts=[]):
            return True
        case ast.Call(func=func, args=[] | [ast.Name()]):
            return _name(func) in EMPTY
    return False
