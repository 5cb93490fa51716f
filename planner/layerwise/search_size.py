"""Search size: what it takes to compare all configurations, told before anything is measured.

Input is the nodes of a search and how many configurations each has. Output is the sizes of its tables, and
seconds that follow from them (the paper's table 2, with the making of tables, which takes longer here). Rules
only: no clock."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from edgepart.planner.layers.search_nodes import SearchNode

MOVE_S, STEP_S = 4e-8, 5e-9
"""The approximate seconds to find one number of a table of what moves, and one of a table that an elimination
makes, on a fast core."""

LARGEST_MOVES = 4_000_000
"""The most numbers in one table of what moves. About five tables of this size exist at once, of 8 bytes a number."""


@dataclass(frozen=True)
class SearchSize:
    """How much there is to compare."""

    moves: int
    """Numbers in all tables of what moves: for each kind of edge, its configurations at both ends, source and
    target device."""
    largest_moves: int
    """The numbers in the largest of these tables."""
    steps: int
    """Numbers in the tables that eliminations make."""

    @property
    def seconds(self) -> float:
        """The approximate seconds for tables and eliminations. Measuring layers is not included: a quick
        search measures nearly as many configurations before it knows which ones to leave out."""
        return self.moves * MOVE_S + self.steps * STEP_S

    def fits(self, budget_s: float) -> bool:
        """Whether comparing all takes no longer than `budget_s`, and little memory."""
        return self.largest_moves <= LARGEST_MOVES and self.seconds <= budget_s


def size_of(nodes: Sequence[SearchNode], counts: Sequence[int], devices: int) -> SearchSize:
    """The size of a search in which each of `nodes` has as many configurations as `counts` says."""
    writers = {name: (n, k) for n, node in enumerate(nodes) for k, name in enumerate(node.exits)}
    tables: dict[Hashable, int] = {}
    for node, count in zip(nodes, counts, strict=True):
        for source, name in enumerate(node.sources):
            if name in writers:
                writer, exit = writers[name]
                tables[nodes[writer].kind, exit, node.kind, source] = counts[writer] * count * devices**2
    return SearchSize(
        sum(tables.values()), max(tables.values(), default=0), sum(count**3 for count in counts)
    )
