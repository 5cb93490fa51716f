"""Access maps that remember their answers: a search asks the same of an operator for hundreds of
candidates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from edgepart.planner.access.language import Access, Axis, Local, Outputs, Reduction
from edgepart.planner.region import Region


class Remembered:
    """An Access that computes nothing twice; for as long as one search, as it forgets nothing."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self.opaque = access.opaque
        self._axes = access.axes()
        self._needs: dict[tuple[tuple[int, Region], ...], tuple[Region | None, ...]] = {}
        self._flops: dict[tuple[tuple[int, Region], ...], float] = {}

    @property
    def family(self) -> str:
        return self._access.family

    def axes(self) -> tuple[Axis, ...]:
        return self._axes

    def reduction(self, axis: Axis) -> Reduction:
        return self._access.reduction(axis)

    def needs(self, outputs: Outputs) -> tuple[Region | None, ...]:
        key = tuple(outputs.items())
        found = self._needs.get(key)
        if found is None:
            found = self._needs[key] = self._access.needs(outputs)
        return found

    def localize(self, outputs: Outputs) -> Local:
        return self._access.localize(outputs)

    def flops(self, outputs: Outputs) -> float:
        key = tuple(outputs.items())
        found = self._flops.get(key)
        if found is None:
            found = self._flops[key] = self._access.flops(outputs)
        return found


class _All(Mapping[str, Access]):
    def __init__(self, accesses: Mapping[str, Access]) -> None:
        self._accesses = accesses
        self._found: dict[str, Remembered] = {}

    def __getitem__(self, name: str) -> Access:
        found = self._found.get(name)
        if found is None:
            found = self._found[name] = Remembered(self._accesses[name])
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._accesses)

    def __len__(self) -> int:
        return len(self._accesses)


def remembered(accesses: Mapping[str, Access]) -> Mapping[str, Access]:
    """By operator name, the same declarations with a memory."""
    return _All(accesses)
