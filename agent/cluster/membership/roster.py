"""Who is in, a row each, sorted by node id and with unique names. Where one changes the other rows stay as they are:
members of a large cluster come and go one after the other, and each is news to all.
Rules, without I/O.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable

from edgepart.agent.cluster.membership.naming import unique_names
from edgepart.agent.cluster.state.events import Member


class Roster:
    """The rows, and which of them have to be made anew."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        """What those that are in call themselves."""
        self._bearers: Counter[str] = Counter()
        self._order: list[str] = []
        self._rows: dict[str, Member] = {}
        self._touched: set[str] = set()
        self._plain = True
        """Whether no two had the same name when rows were made last."""

    def touch(self, node: str, name: str | None) -> None:
        """Its row may be another one. `name`: what it calls itself; None: it is out."""
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
        """`row`: makes that of a node, given its unique name."""
        plain = len(self._bearers) == len(self._names)
        names = self._names if plain else unique_names(self._names.items())
        anew = self._touched if plain and self._plain else self._names
        for node in anew:
            if node in self._names:
                self._rows[node] = row(node, names[node])
        self._touched, self._plain = set(), plain
        return tuple(map(self._rows.__getitem__, self._order))
