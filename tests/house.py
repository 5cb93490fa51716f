"""The house as it is: its rooms, their doors, and who imports whom; and the drawing of it in docs/architecture.md.

python -m tests.house        draws it anew
python -m tests.house --lines        prints how many modules and lines each room has
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


PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- rooms: drawn by `make rooms` -->", "<!-- end of rooms -->"


def drawn() -> str:
    """A table of what each room is for, and a graph for each top-level folder: an arrow leads to what a room imports,
    unless it is reached by other arrows already."""
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
    """The folder or module directly inside of the top-level one."""
    return "/".join(path.split("/")[:2])


def _node(path: str) -> str:
    name = path.partition("/")[2]
    return f"{path.replace('/', '_')}[{name}]"


def lines() -> Iterator[str]:
    """By room: modules, and lines with their docstrings and comments."""
    for path in sorted(house()):
        files = sorted((ROOT / path).glob("*.py"))
        yield f"{path:28} {len(house()[path].modules):4} {sum(len(file.read_text().splitlines()) for file in files):7,}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--lines"]:
        print("\n".join(lines()))
    else:
        PAGE.write_text(replaced(PAGE.read_text(), BEGIN, END, drawn()))
