"""Elimination: choose a value for each node of a graph so that a sum of costs is the least (OptCNN, section
5.2).

Costs are tables: one for each node, by its value, and one for each edge, by the values at its two ends. Nodes
and edges are eliminated as in the paper (its equations 2 and 3, algorithm 1) until nothing changes. The paper
then enumerates the values of the remaining nodes. Here, up to two nodes are enumerated; if there are more,
they are eliminated as variables, in min-fill order (our addition). Rules only: numpy, and nothing of
models."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import combinations
from math import prod
from typing import Any

import numpy as np

Table = np.ndarray[Any, np.dtype[np.float64]]
"""Costs; `inf` for values that are not allowed."""

Edge = tuple[int, int, Table]
"""An edge: the node that it leaves, the node that it enters, and the cost by their values."""

LARGEST = 2_000_000
"""Elements of the largest table that is made; making it takes 16 bytes an element."""

SWEEPS = 100
"""The most rounds of coordinate descent."""


@dataclass(frozen=True, slots=True)
class Step:
    """One elimination."""

    kind: str
    """"node" or "edge" as in the paper, "variable", "enumerate", or "descend", which is not exact."""
    nodes: tuple[int, ...]
    """The nodes that were eliminated; the ends of an edge that was."""
    beside: tuple[int, ...]
    """The nodes whose values index the table that was made instead."""


@dataclass(frozen=True)
class Solution:
    """The choice with the least sum of costs that was found."""

    choice: tuple[int, ...]
    """The index of each node's value."""
    cost: float
    exact: bool
    """Whether no choice costs less."""
    steps: tuple[Step, ...]
    why: str = ""
    """The reason why the result is not exact; empty if it is."""


def minimise(unary: Sequence[Table], edges: Sequence[Edge], largest: int = LARGEST) -> Solution:
    """The choice of least cost. It is exact unless each elimination that is left needs a table of more than
    `largest` elements; then it is the best that coordinate descent finds, from about as many starts as a node
    has values.

    Ties go to values with lower indices in a fixed order, so that equal problems have equal solutions. Raises
    ValueError if a table does not fit its nodes, or an edge leads back to where it starts."""
    for source, target, table in edges:
        if source == target or table.shape != (len(unary[source]), len(unary[target])):
            raise ValueError(f"edge {source} -> {target}: a table of shape {table.shape} does not fit")
    if any(table.ndim != 1 or not len(table) for table in unary):
        raise ValueError("each node has a list of costs, and at least one value")
    paper = _Paper(unary, edges)
    paper.run()
    rest = _Variables(paper, largest)
    choice = rest.run()
    paper.undo(choice)
    found = tuple(choice[node] for node in range(len(unary)))
    return Solution(found, cost_of(unary, edges, found), not rest.why, tuple(paper.steps), rest.why)


def cost_of(unary: Sequence[Table], edges: Sequence[Edge], choice: Sequence[int]) -> float:
    """The sum of costs of one choice."""
    alone = sum(float(table[value]) for table, value in zip(unary, choice, strict=True))
    return alone + sum(float(table[choice[a], choice[b]]) for a, b, table in edges)


class _Paper:
    """Node and edge elimination (section 5.2) on a directed graph."""

    def __init__(self, unary: Sequence[Table], edges: Sequence[Edge]) -> None:
        self.unary = dict(enumerate(unary))
        self.after: dict[int, dict[int, list[Table]]] = {node: {} for node in self.unary}
        self.before: dict[int, dict[int, None]] = {node: {} for node in self.unary}
        self.steps: list[Step] = []
        self._undo: list[tuple[int, tuple[int, ...], np.ndarray[Any, Any]]] = []
        for source, target, table in edges:
            self._connect(source, target, table)

    def run(self) -> None:
        """Eliminates until neither kind of elimination can be applied."""
        for source, targets in self.after.items():
            for target in targets:
                self._eliminate_edges(source, target)
        waiting = deque(self.unary)
        while waiting:
            node = waiting.popleft()
            if node in self.unary and self._single(node):
                waiting.extend(self._eliminate_node(node))

    def undo(self, choice: dict[int, int]) -> None:
        """Add the values of the nodes that were eliminated, the last one first (algorithm 1, lines 15 to 23)."""
        for node, beside, best in reversed(self._undo):
            choice[node] = int(best[tuple(choice[other] for other in beside)])

    def remember(self, kind: str, node: int, beside: tuple[int, ...], best: np.ndarray[Any, Any]) -> None:
        self.steps.append(Step(kind, (node,), beside))
        self._undo.append((node, beside, best))

    def _single(self, node: int) -> bool:
        """Whether the node has one edge in and one edge out, between two other nodes."""
        ins, outs = self.before[node], self.after[node]
        return len(ins) == len(outs) == 1 and ins.keys() != outs.keys()

    def _eliminate_node(self, node: int) -> tuple[int, int]:
        """Eliminate the node (equation 2); return the two nodes beside it."""
        (source,), (target,) = self.before.pop(node), self.after[node]
        (into,), (out,) = self.after[source].pop(node), self.after.pop(node)[target]
        del self.before[target][node]
        through = (into + self.unary.pop(node))[:, None, :] + out.T[None]
        best = through.argmin(axis=2)
        self.remember("node", node, (source, target), best.astype(np.int32))
        self._connect(source, target, np.take_along_axis(through, best[:, :, None], 2)[:, :, 0])
        self._eliminate_edges(source, target)
        return source, target

    def _eliminate_edges(self, source: int, target: int) -> None:
        """Merge the edges from `source` to `target` into one (equation 3)."""
        tables = self.after[source][target]
        while len(tables) > 1:
            tables[:] = [tables[0] + tables[1], *tables[2:]]
            self.steps.append(Step("edge", (source, target), (source, target)))

    def _connect(self, source: int, target: int, table: Table) -> None:
        self.after[source].setdefault(target, []).append(table)
        self.before[target][source] = None


@dataclass(frozen=True, slots=True, eq=False)
class _Factor:
    """A table of costs by the values of some nodes."""

    nodes: tuple[int, ...]
    """Ascending."""
    table: Table

    def expand(self, scope: tuple[int, ...]) -> Table:
        """The table with an axis for each node of `scope`, in that order; `scope` has all of its nodes."""
        order = sorted(range(len(self.nodes)), key=lambda n: scope.index(self.nodes[n]))
        own = dict(zip(self.nodes, self.table.shape, strict=True))
        made: Table = self.table.transpose(order).reshape([own.get(node, 1) for node in scope])
        return made


class _Variables:
    """Eliminates the nodes that the paper's eliminations leave as variables, in min-fill order, with a bound on tables."""

    def __init__(self, paper: _Paper, largest: int) -> None:
        self.paper = paper
        self.largest = largest
        self.why = ""
        self.count = {node: len(table) for node, table in paper.unary.items()}
        self.of: dict[int, list[_Factor]] = {node: [] for node in self.count}
        self.near: dict[int, set[int]] = {node: set() for node in self.count}
        for node, table in paper.unary.items():
            self._add(_Factor((node,), table))
        for source, targets in paper.after.items():
            for target, (table,) in targets.items():
                swap = source > target
                ends = (target, source) if swap else (source, target)
                self._add(_Factor(ends, table.T if swap else table))

    def run(self) -> dict[int, int]:
        """Eliminate what is possible; return the values of the nodes that remain."""
        heap = [(self._fill(node), self._size(node), node) for node in self.near]
        heapify(heap)
        while len(self.near) > 2 and heap:
            fill, size, node = heappop(heap)
            if node not in self.near or (fill, size) != (self._fill(node), self._size(node)):
                continue  # Its neighbours have changed: there is a newer entry for it.
            if size > self.largest:
                continue  # It may come back with fewer neighbours.
            changed = self._eliminate(node)
            for other in sorted(changed):
                heappush(heap, (self._fill(other), self._size(other), other))
        return self._enumerate() if len(self.near) <= 2 else self._descend_often()

    def _add(self, factor: _Factor) -> None:
        for node in factor.nodes:
            self.of[node].append(factor)
        for one, two in combinations(factor.nodes, 2):
            self.near[one].add(two)
            self.near[two].add(one)

    def _fill(self, node: int) -> int:
        """The number of edges that eliminating the node adds."""
        return sum(two not in self.near[one] for one, two in combinations(sorted(self.near[node]), 2))

    def _size(self, node: int) -> int:
        return self.count[node] * prod(self.count[other] for other in self.near[node])

    def _eliminate(self, node: int) -> set[int]:
        """Eliminate the node; return the nodes whose fill or size may have changed."""
        beside = tuple(sorted(self.near[node]))
        factors = self.of.pop(node)
        table = self._join(factors, (*beside, node))
        best = table.argmin(axis=-1)
        self.paper.remember("variable", node, beside, best.astype(np.int32))
        gone = set(map(id, factors))
        for other in beside:
            self.of[other] = [factor for factor in self.of[other] if id(factor) not in gone]
            self.near[other].discard(node)
        del self.near[node]
        if beside:
            self._add(_Factor(beside, np.take_along_axis(table, best[..., None], -1)[..., 0]))
        return {near for other in beside for near in (other, *self.near[other])}

    def _join(self, factors: Sequence[_Factor], scope: tuple[int, ...]) -> Table:
        table = np.zeros([self.count[node] for node in scope])
        for factor in factors:
            table += factor.expand(scope)
        return table

    def _factors(self) -> Iterator[_Factor]:
        """All factors, each once."""
        return iter({id(factor): factor for factors in self.of.values() for factor in factors}.values())

    def _enumerate(self) -> dict[int, int]:
        """The best values of the remaining nodes, by enumeration (algorithm 1, line 14)."""
        scope = tuple(sorted(self.near))
        self.paper.steps.append(Step("enumerate", scope, ()))
        table = self._join(tuple(self._factors()), scope)
        return dict(zip(scope, map(int, np.unravel_index(table.argmin(), table.shape)), strict=True))

    def _descend_often(self) -> dict[int, int]:
        """The best of several descents: from the cheapest values, and from the same index everywhere."""
        scope = tuple(sorted(self.near))
        smallest = min(map(self._size, scope))
        self.why = f"{len(scope)} nodes remain, and the next table would have {smallest:,} elements"
        self.paper.steps.append(Step("descend", scope, ()))
        starts = [{node: int(self.paper.unary[node].argmin()) for node in scope}]
        for index in range(max(self.count[node] for node in scope)):
            starts.append({node: min(index, self.count[node] - 1) for node in scope})
        found = [self._descend(start) for start in starts]
        return min(found, key=self._cost)

    def _descend(self, choice: dict[int, int]) -> dict[int, int]:
        for _ in range(SWEEPS):
            before = dict(choice)
            for node in choice:
                seconds = self._along(node, choice)
                best = int(seconds.argmin())
                if seconds[best] < seconds[choice[node]]:
                    choice[node] = best
            if choice == before:
                break
        return choice

    def _along(self, node: int, choice: dict[int, int]) -> Table:
        """The costs of the node's values, with the values of all others as in `choice`."""
        found = np.zeros(self.count[node])
        for factor in self.of[node]:
            found += factor.table[tuple(slice(None) if n == node else choice[n] for n in factor.nodes)]
        return found

    def _cost(self, choice: dict[int, int]) -> float:
        return sum(float(factor.table[tuple(choice[n] for n in factor.nodes)]) for factor in self._factors())
