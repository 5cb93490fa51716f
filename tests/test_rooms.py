"""The house: each room's door states what it imports, no room is crowded, and one name stands for one thing."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.house import BEGIN, END, PAGE, TOPS, called, drawn, house, uses

MOST_ENTRIES = 8
"""Modules directly in agent/ or planner/: entry points, and modules that all rooms know."""
MOST_MODULES = 25
"""Modules in a room. cli/ itself is one: it has a module for most commands, and modules that they share."""
MOST_LINES = 60
"""A function has to have fewer lines than this."""
FEW_ENTRIES = frozenset(TOPS) - {"cli"}


def test_few_modules_stand_at_the_top_and_no_room_is_crowded() -> None:
    sizes = {path: len(room.modules) for path, room in house().items()}
    assert not {
        path: size
        for path, size in sizes.items()
        if size > (MOST_ENTRIES if path in FEW_ENTRIES else MOST_MODULES)
    }


def test_each_door_says_what_its_room_imports() -> None:
    wrong = {}
    for path in house().keys() - TOPS:
        room, used = house()[path], {called(*found) for found in uses()[path]}
        said = " ".join(room.document.split()).partition("May import: ")[2].removesuffix(".")
        if not room.document or set(filter(None, said.split(", "))) != used:
            wrong[path] = f"says {said!r}, imports {', '.join(sorted(used))}"
    assert not wrong


def test_other_rooms_use_what_a_door_names_and_nothing_else() -> None:
    wrong = {}
    for path in house().keys() - {*TOPS, "planner/access"}:
        used = {module for found in uses().values() for there, module in found if there == path and module}
        if (named := house()[path].public) != used:
            wrong[path] = f"names {sorted(named - used)} for nobody, and leaves out {sorted(used - named)}"
    assert not wrong


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


def test_the_drawing_is_of_this_house() -> None:
    _, _, rest = PAGE.read_text().partition(BEGIN)
    assert rest.partition(END)[0].strip() == drawn(), "run `make rooms`"
