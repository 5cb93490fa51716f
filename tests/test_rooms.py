"""The house: each room has a door that tells the truth, no room is crowded, and one name stands for one thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOPS = ("agent", "planner", "cli")
MOST_ENTRIES = 8
"""Modules that stand in agent/ or planner/ itself: the entries, and what all rooms know."""
MOST_MODULES = 25
MOST_LINES = 60
"""Of a function."""
CROWDED_TOP = "cli"
"""Has no rooms in it: a module for each command, and what they share."""


@dataclass
class Room:
    """A folder of modules."""

    path: str
    modules: dict[str, ast.Module] = field(default_factory=dict)
    door: ast.Module = field(default_factory=lambda: ast.Module([], []))

    @property
    def document(self) -> str:
        return ast.get_docstring(self.door) or ""

    @property
    def public(self) -> set[str]:
        """Modules that the door names for others to use."""
        for node in self.door.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                return set(ast.literal_eval(node.value))
        return set()


@cache
def house() -> dict[str, Room]:
    rooms: dict[str, Room] = {}
    for top in TOPS:
        for file in sorted((ROOT / top).rglob("*.py")):
            room = rooms.setdefault(str(file.parent.relative_to(ROOT)), Room(""))
            room.path = str(file.parent.relative_to(ROOT))
            tree = ast.parse(file.read_text())
            if file.stem == "__init__":
                room.door = tree
            else:
                room.modules[file.stem] = tree
    return rooms


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(room, module) of this product that a module imports; "" for a name of the door itself."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("edgepart."):
            continue
        path = (node.module or "").removeprefix("edgepart.").replace(".", "/")
        if path in house():
            for alias in node.names:
                yield path, alias.name if alias.name in house()[path].modules else ""
        else:
            room, _, module = path.rpartition("/")
            yield room, module


@cache
def uses() -> dict[str, set[tuple[str, str]]]:
    """By room, what its modules import from others."""
    return {
        path: {
            found
            for tree in (*room.modules.values(), room.door)
            for found in imported(tree)
            if found[0] != path
        }
        for path, room in house().items()
    }


def called(room: str, module: str) -> str:
    """As doors call what a room imports: a room, or an entry of agent/ or planner/."""
    return f"{room}/{module}" if room in TOPS and module else room


ROOMS = sorted(set(house()) - set(TOPS))


def test_few_modules_stand_at_the_top_and_no_room_is_crowded() -> None:
    sizes = {path: len(room.modules) for path, room in house().items() if path != CROWDED_TOP}
    assert not {
        path: size for path, size in sizes.items() if size > (MOST_ENTRIES if path in TOPS else MOST_MODULES)
    }


@pytest.mark.parametrize("path", ROOMS)
def test_a_door_says_what_its_room_imports(path: str) -> None:
    room, used = house()[path], {called(*found) for found in uses()[path]}
    said = " ".join(room.document.split()).partition("May import: ")[2].removesuffix(".")
    assert room.document and set(filter(None, said.split(", "))) == used


@pytest.mark.parametrize("path", [path for path in ROOMS if path != "planner/access"])
def test_other_rooms_use_what_the_door_names_and_nothing_else(path: str) -> None:
    used = {module for found in uses().values() for there, module in found if there == path and module}
    assert house()[path].public == used


def test_one_class_name_is_one_thing() -> None:
    where = defaultdict(set)
    for path, room in house().items():
        for name, tree in room.modules.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    where[node.name].add(f"{path}/{name}.py")
    assert not {name: files for name, files in where.items() if len(files) > 1}


def test_no_function_is_long() -> None:
    long = [
        f"{path}/{name}.py: {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for path, room in house().items()
        for name, tree in room.modules.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
        if node.end_lineno - node.lineno >= MOST_LINES
    ]
    assert not long
