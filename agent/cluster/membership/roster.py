"""The roster: one row for each member, sorted by node id, with unique names. Rules, without I/O.

Only rows that change are made anew, because members of a large cluster come and go one by one and each change
is told to all. Members that share a name get as much of their node id as makes it unique.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from edgepart.agent.cluster.state.events import Member


class Roster:
    """The rows of all members, and which of them have to be made anew."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        """The name that each member gives itself, by node id."""
        self._bearers: Counter[str] = Counter()
        self._order: list[str] = []
        self._rows: dict[str, Member] = {}
        self._touched: set[str] = set()
        self._all_different = True
        """Whether all names were different when rows were last made."""

    def touch(self, node: str, name: str | None) -> None:
        """Note that a member's row may have changed. `name`: the name that it gives itself; None if it is no
        member any more."""
        known, name = self._names.get(node), node if name == "" else name
        self._touched.add(node)
        if known == name:
            return
        if known is None:
            insort(self._order, node)
        else:
            self._bearers[known] -= 1
            if not self._bearers[known]:
                del self._bearers[known]
        if name is None:
            del self._names[node], self._order[bisect_left(self._order, node)]
            self._rows.pop(node, None)
        else:
            self._names[node] = name
            self._bearers[name] += 1

    def members(self, row: Callable[[str, str], Member]) -> tuple[Member, ...]:
        """The rows of all members. `row` makes the row of a node from the node's id and unique name."""
        plain = len(self._bearers) == len(self._names)
        names = self._names if plain else make_unique_names(self._names.items())
        anew = self._touched if plain and self._all_different else self._names
        for node in anew:
            if node in self._names:
                self._rows[node] = row(node, names[node])
        self._touched, self._all_different = set(), plain
        return tuple(map(self._rows.__getitem__, self._order))


_NODE = re.compile(r"(?<![0-9a-f])[0-9a-f]{16}(?![0-9a-f])")


def make_unique_names(named: Iterable[tuple[str, str]]) -> dict[str, str]:
    """A unique name for each node of these (node, name) pairs: nodes that share a name get as much of their
    id as makes it unique. The result depends only on the set of pairs, not on their order.

    >>> make_unique_names([("3fa2aaaaaaaaaaaa", "pi"), ("77b1bbbbbbbbbbbb", "pi"), ("c0cccccccccccccc", "nas")])
    {'3fa2aaaaaaaaaaaa': 'pi-3fa2', '77b1bbbbbbbbbbbb': 'pi-77b1', 'c0cccccccccccccc': 'nas'}
    """
    plain = {node: name or node for node, name in named}
    if len(set(plain.values())) == len(plain):
        return plain
    pairs = sorted(plain.items())
    for digits in (4, 8, 16):
        shared = Counter(name for _, name in pairs)
        names = {n: name if shared[name] == 1 else f"{name}-{n[:digits]}" for n, name in pairs}
        if len(set(names.values())) == len(names):
            return names
    return {node: f"{name}-{node}" for node, name in pairs}


def replace_node_ids(text: str, names: Mapping[str, str]) -> str:
    """`text` with node ids replaced by the names of the nodes that have one.

    >>> replace_node_ids("no link to 3fa2aaaaaaaaaaaa", {"3fa2aaaaaaaaaaaa": "pi-a"})
    'no link to pi-a'
    """
    return _NODE.sub(lambda found: names.get(found[0], found[0]), text)
