"""What is deployed: a versioned map with tombstones, that merges to the same whatever the order. No I/O.

Every member keeps it (deployments.json) and tells the others of changes; per name the entry with the larger
version wins. So both sides of a split may deploy, and on healing the later entry is everybody's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from edgepart.agent.control import Deployment, Version
from edgepart.agent.messages import DeployOptions
from edgepart.planner.errors import UsageError
from edgepart.planner.rounding import checked

MAX_ENTRIES = 10_000
MAX_COUNTER = 2**53
"""No honest counter gets there; a larger one would stop all later changes."""
TOO_LARGE = 2**63
"""What messages can hold is less."""
MOST_FAULT = 500
"""Characters that are kept of why a model is set aside."""
FORMAT = 1


class TooNew(UsageError):
    """A file of a later version of edgepart, which this one must not overwrite."""


def larger(a: Deployment, b: Deployment) -> Deployment:
    """The entry that wins. Versions differ between any two honest writes; of equals anyhow the larger text
    wins, so that the choice never depends on the order."""
    return max(a, b, key=lambda entry: (entry.version, entry.deleted, repr(_packed(entry))))


class DeploymentMap:
    """The entries by name, tombstones included."""

    def __init__(self, entries: Iterable[Deployment] = ()) -> None:
        self._entries: dict[str, Deployment] = {}
        self.merge(entries)

    def __iter__(self) -> Iterator[Deployment]:
        """All entries, sorted by name."""
        return iter([self._entries[name] for name in sorted(self._entries)])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeploymentMap) and self._entries == other._entries

    __hash__ = None  # type: ignore[assignment]

    def get(self, name: str) -> Deployment | None:
        """The entry, or None where there is none or only a tombstone."""
        entry = self._entries.get(name)
        return None if entry is None or entry.deleted else entry

    def living(self) -> list[Deployment]:
        return [entry for entry in self if not entry.deleted]

    def usable(self, name: str) -> Deployment | None:
        """The entry, or None where nothing of it may be loaded: it is not deployed, or set aside."""
        entry = self.get(name)
        return None if entry is None or entry.fault else entry

    def in_use(self) -> list[Deployment]:
        """Those that are not set aside."""
        return [entry for entry in self.living() if not entry.fault]

    def has(self, entries: Iterable[Deployment]) -> bool:
        """Whether these are all in it just so."""
        return all(self._entries.get(entry.name) == entry for entry in entries)

    def versions(self) -> tuple[tuple[str, Version], ...]:
        return tuple((entry.name, entry.version) for entry in self)

    def merge(self, entries: Iterable[Deployment]) -> tuple[Deployment, ...]:
        """Take in what is newer; what was taken in."""
        changed = []
        for entry in entries:
            known = self._entries.get(entry.name)
            if not 0 < entry.version.counter < MAX_COUNTER or (known is None and self._full):
                continue
            if known is not None and (entry == known or entry.version < known.version):
                continue
            if known is None or larger(known, entry) != known:
                self._entries[entry.name] = entry
                changed.append(entry)
        return tuple(changed)

    @property
    def _full(self) -> bool:
        return len(self._entries) >= MAX_ENTRIES

    def put(self, node: str, name: str, model: str, model_bytes: int, options: DeployOptions) -> Deployment:
        """A new entry, written by `node`, that replaces any of that name. UsageError when the map is full."""
        if self._full and name not in self._entries:
            raise UsageError(
                f"{MAX_ENTRIES} names were deployed so far, the most there can be; reuse an old one"
            )
        entry = Deployment(name, model, model_bytes, options, self._next(name, node))
        self._entries[name] = entry
        return entry

    def delete(self, node: str, name: str) -> Deployment:
        """The tombstone. UsageError when nothing of that name is deployed."""
        entry = self.get(name)
        if entry is None:
            names = ", ".join(e.name for e in self.living()) or "nothing"
            raise UsageError(f"no deployment {name!r}; deployed: {names}")
        tombstone = Deployment(name, entry.model, 0, DeployOptions(), self._next(name, node), deleted=True)
        self._entries[name] = tombstone
        return tombstone

    def set_aside(self, node: str, name: str, model: str, fault: str) -> Deployment | None:
        """The entry with what is wrong with its model; None where that is known already, or another model is deployed by
        that name now."""
        entry = self.usable(name)
        if entry is None or entry.model != model:
            return None
        self._entries[name] = replace(entry, version=self._next(name, node), fault=fault[:MOST_FAULT])
        return self._entries[name]

    def _next(self, name: str, node: str) -> Version:
        counter = self._entries[name].version.counter if name in self._entries else 0
        return Version(counter + 1, node)


def to_json(entries: Iterable[Deployment]) -> dict[str, Any]:
    """The content of deployments.json."""
    return {"format": FORMAT, "deployments": [_packed(entry) for entry in entries]}


def from_json(document: Any) -> tuple[Deployment, ...]:
    """The entries. UsageError names the place and the fault."""
    root = _expect(document, dict, "deployments.json")
    checked_format(root, FORMAT, "deployments.json")
    entries = _expect(root.get("deployments"), list, "deployments.json: deployments")
    return tuple(_entry(entry, f"deployments.json: deployments[{i}]") for i, entry in enumerate(entries))


def checked_format(root: Mapping[str, Any], known: int, where: str) -> None:
    """TooNew for a later format; UsageError for none."""
    found = root.get("format")
    if type(found) is int and found > known:
        raise TooNew(f"{where}: format {found} is not {known}; update edgepart")
    if found != known:
        raise UsageError(f"{where}: format {found!r} is not {known}")


def _packed(entry: Deployment) -> dict[str, Any]:
    packed = asdict(entry)
    packed["options"]["shapes"] = {k: list(v) for k, v in sorted(entry.options.shapes.items())}
    packed["options"]["devices"] = list(entry.options.devices)
    return packed


def _entry(value: Any, where: str) -> Deployment:
    entry = _expect(value, dict, where)
    version = _expect(entry.get("version"), dict, f"{where}.version")
    return Deployment(
        name=_expect(entry.get("name"), str, f"{where}.name"),
        model=_expect(entry.get("model"), str, f"{where}.model"),
        model_bytes=_expect(entry.get("model_bytes"), int, f"{where}.model_bytes"),
        options=_options(_expect(entry.get("options"), dict, f"{where}.options"), f"{where}.options"),
        version=Version(
            _expect(version.get("counter"), int, f"{where}.version.counter"),
            _expect(version.get("node"), str, f"{where}.version.node"),
        ),
        deleted=_expect(entry.get("deleted"), bool, f"{where}.deleted"),
        fault=_expect(entry.get("fault", ""), str, f"{where}.fault"),
    )


def _options(entry: Mapping[str, Any], where: str) -> DeployOptions:
    shapes = _expect(entry.get("shapes"), dict, f"{where}.shapes")
    devices = _expect(entry.get("devices"), list, f"{where}.devices")
    axis, limit = entry.get("axis"), entry.get("memory_limit_bytes")
    bindings = entry.get("bindings", DeployOptions().bindings)
    budget_s = entry.get("search_budget_s")
    dtype = entry.get("transfer_dtype", DeployOptions().transfer_dtype)
    return DeployOptions(
        shapes={
            name: tuple(_expect(d, int, f"{where}.shapes[{name!r}]") for d in _expect(dims, list, where))
            for name, dims in shapes.items()
        },
        objective=_expect(entry.get("objective"), str, f"{where}.objective"),
        strategy=_expect(entry.get("strategy"), str, f"{where}.strategy"),
        axis=None if axis is None else _expect(axis, str, f"{where}.axis"),
        devices=tuple(_expect(device, str, f"{where}.devices") for device in devices),
        memory_limit_bytes=None if limit is None else _expect(limit, int, f"{where}.memory_limit_bytes"),
        bindings=_expect(bindings, int, f"{where}.bindings"),
        search_budget_s=None if budget_s is None else _expect(budget_s, float, f"{where}.search_budget_s"),
        transfer_dtype=checked(_expect(dtype, str, f"{where}.transfer_dtype"), f"{where}.transfer_dtype"),
    )


def _expect(value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UsageError(f"{where}: expected {kind.__name__}, found {type(value).__name__}; restore the file")
    if isinstance(value, int) and abs(value) >= TOO_LARGE:
        raise UsageError(f"{where}: {str(value)[:40]} is too large; restore the file")
    return value
