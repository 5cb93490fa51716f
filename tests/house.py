"""The house as the source has it: its rooms, their doors, their imports, and the drawing of it in docs/architecture.md.

A room is a folder of modules; its door is its `__init__.py`.

    python -m tests.house                draws the house in the document again
    python -m tests.house --lines        prints the number of modules and lines of each room
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import networkx as nx
from benchmarks.page import replaced

ROOT = Path(__file__).parent.parent
TOPS = ("agent", "planner", "cli")
"""Top-level folders with rooms inside, or without walls."""
HOUSE = (*TOPS, "client")
"""All top-level folders of the product; client/ is one room."""


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
        """Modules that the door names for other rooms to use."""
        for node in self.door.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                return set(ast.literal_eval(node.value))
        return set()


@cache
def house() -> dict[str, Room]:
    rooms: dict[str, Room] = {}
    for top in HOUSE:
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
    """Yield (room, module) for each import of this product; "" stands for a name of the door itself."""
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
    """Map each room to what its modules import from other rooms."""
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
    """Return an import's name as doors write it: a room, or a module of a top-level folder."""
    return f"{room}/{module}" if room in TOPS and module else room


PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- rooms: drawn by `make rooms` -->", "<!-- end of rooms -->"


def drawn() -> str:
    """Return a table of the rooms' purposes, and a graph for agent/ and planner/.

    An arrow leads to an imported room, unless other arrows already lead there.
    """
    lines = ["| room | what it is for |", "| --- | --- |"]
    for path in sorted(house()):
        purpose = " ".join(house()[path].document.partition("\n\n")[0].split())
        lines.append(f"| {path}/ | {purpose} |")
    for top in ("planner", "agent"):
        graph = nx.DiGraph()
        for path in (path for path in house() if path.startswith(f"{top}/")):
            for there, module in uses()[path]:
                if there.startswith(f"{top}/") or (there == top and module):
                    one, other = _outer(path), _outer(called(there, module))
                    if one != other:
                        graph.add_edge(one, other)
        reduced = nx.transitive_reduction(graph)
        arrows = sorted(f"    {_node(one)} --> {_node(other)}" for one, other in reduced.edges)
        lines += ["", "```mermaid", "flowchart TD", *arrows, "```"]
    return "\n".join(lines)


def _outer(path: str) -> str:
    """Return the folder or module directly inside the top-level folder."""
    return "/".join(path.split("/")[:2])


def _node(path: str) -> str:
    name = path.partition("/")[2]
    return f"{path.replace('/', '_')}[{name}]"


def lines() -> Iterator[str]:
    """Yield each room's number of modules, and of lines with docstrings and comments."""
    for path in sorted(house()):
        files = sorted((ROOT / path).glob("*.py"))
        yield f"{path:28} {len(house()[path].modules):4} {sum(len(file.read_text().splitlines()) for file in files):7,}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--lines"]:
        print("\n".join(lines()))
    else:
        PAGE.write_text(replaced(PAGE.read_text(), BEGIN, END, drawn()))
