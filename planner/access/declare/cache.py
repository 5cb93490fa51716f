"""Cache: access maps that remember their answers. A search asks an operator, and every operator of the same
kind, the same questions for hundreds of candidates. Rules only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from edgepart.planner.access.declare.protocol import Access, Axis, Local, Outputs, Reduction
from edgepart.planner.region import Region


class _Memory:
    """The answers that one declaration has given, by region. All operators of a kind share them."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.axes = access.axes()
        self.needs: dict[tuple[tuple[int, Region], ...], tuple[Region | None, ...]] = {}
        self.flops: dict[tuple[tuple[int, Region], ...], float] = {}


class Remembered:
    """An Access that computes nothing twice. It forgets nothing, so it should live for one search only."""

    def __init__(self, name: str, memory: _Memory, accesses: Mapping[str, Access]) -> None:
        """`name`: the operator's name. Its own declaration among `accesses` is asked only for nodes and reductions."""
        self.opaque = memory.access.opaque
        self.family = memory.access.family
        self._axes = memory.axes
        self._access = memory.access
        self._needs = memory.needs
        self._flops = memory.flops
        self._own = name, accesses

    def axes(self) -> tuple[Axis, ...]:
        return self._axes

    def reduction(self, axis: Axis) -> Reduction:
        name, accesses = self._own
        return accesses[name].reduction(axis)

    def needs(self, outputs: Outputs) -> tuple[Region | None, ...]:
        key = tuple(outputs.items())
        found = self._needs.get(key)
        if found is None:
            found = self._needs[key] = self._access.needs(outputs)
        return found

    def localize(self, outputs: Outputs) -> Local:
        name, accesses = self._own
        return accesses[name].localize(outputs)

    def flops(self, outputs: Outputs) -> float:
        key = tuple(outputs.items())
        found = self._flops.get(key)
        if found is None:
            found = self._flops[key] = self._access.flops(outputs)
        return found


class _RememberedAccesses(Mapping[str, Access]):
    def __init__(self, accesses: Mapping[str, Access], kinds: Mapping[str, int]) -> None:
        self._accesses = accesses
        self._kinds = kinds
        self._memories: dict[int, _Memory] = {}
        self._found: dict[str, Remembered] = {}

    def __getitem__(self, name: str) -> Access:
        found = self._found.get(name)
        if found is None:
            found = self._found[name] = Remembered(name, self._memory(name), self._accesses)
        return found

    def _memory(self, name: str) -> _Memory:
        kind = self._kinds[name]
        found = self._memories.get(kind)
        if found is None:
            found = self._memories[kind] = _Memory(self._accesses[name])
        # Opaque operators do not share: the reason may name an operator's own tensors.
        return found if found.access.opaque is None else _Memory(self._accesses[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._accesses)

    def __len__(self) -> int:
        return len(self._accesses)


def remember(accesses: Mapping[str, Access], kinds: Mapping[str, int]) -> Mapping[str, Access]:
    """Returns the same declarations, by operator name, with a memory that operators of one kind share. `kinds`: the
    kind of each operator, by name."""
    return _RememberedAccesses(accesses, kinds)
