"""Checkpoint: the choices that a plan was made from, saved so that a later search can start from them. Facts.

A plan says what runs where, but not how that was chosen. Code that asks for a plan keeps these bytes with
it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import msgpack

from edgepart.planner.layout.choices import Choice, Divide, Pull, Reduce, Whole
from edgepart.planner.layout.strategy import Strategy, Sync
from edgepart.planner.search.candidates import CandidateFactory
from edgepart.planner.search.memo import Memo
from edgepart.planner.search.moves import Choices, devices_of

_KINDS: Mapping[str, type[Divide] | type[Whole] | type[Pull] | type[Reduce]] = {
    kind.__name__: kind for kind in (Divide, Whole, Pull, Reduce)
}


@dataclass(frozen=True)
class SavedStrategy:
    """Everything that is needed to rebuild a strategy in any study of the same model."""

    name: str
    choices: Choices
    sync: Sync
    hub: str | None
    why: str
    early: frozenset[str] = frozenset()
    detours: frozenset[str] = frozenset()
    order: Mapping[int, float] = field(default_factory=dict)

    def fits(self, memo: Memo) -> bool:
        """Whether the problem of `memo` has the layers and devices of these choices."""
        there = {device.name for device in memo.cluster.devices}
        used = {*devices_of(self.choices), *([self.hub] if self.hub else [])}
        return self.choices.keys() == {layer.number for layer in memo.layers} and used <= there

    def remake(self, candidates: CandidateFactory, choices: Choices, why: str = "") -> Strategy:
        """The strategy rebuilt with other `choices` of the same kind; `why` is added to its reasons."""
        reasons = self.why if not why or why in self.why else f"{self.why}; {why}"
        made = candidates.make(self.name, choices, reasons, self.sync, self.hub)
        return replace(made, early=self.early, detours=self.detours, order=self.order)


def write(candidates: CandidateFactory, strategy: Strategy) -> bytes:
    """The serialised choices that `candidates` made a strategy from; b"" if it did not make the strategy.
    Equal choices are written once."""
    choices = candidates.choices_of(strategy)
    if not choices:
        return b""
    different = {choice: n for n, choice in enumerate(dict.fromkeys(choices.values()))}
    return bytes(
        msgpack.packb(
            {
                "name": strategy.name,
                "sync": strategy.sync.value,
                "hub": strategy.hub,
                "why": strategy.why,
                "early": sorted(strategy.early),
                "detours": sorted(strategy.detours),
                "order": sorted(strategy.order.items()),
                "different": [_pack(choice) for choice in different],
                "layers": [[number, different[choice]] for number, choice in choices.items()],
            }
        )
    )


def read(data: bytes) -> SavedStrategy:
    """Returns the strategy that `write` serialised."""
    document = msgpack.unpackb(data)
    different = [_unpack(packed) for packed in document["different"]]
    choices = {number: different[n] for number, n in document["layers"]}
    early = frozenset(document.get("early", ()))
    detours = frozenset(document.get("detours", ()))
    sync = Sync(document["sync"])
    order = dict(map(tuple, document.get("order", ())))
    return SavedStrategy(
        document["name"], choices, sync, document["hub"], document["why"], early, detours, order
    )


def _pack(choice: Choice) -> list[Any]:
    fields = asdict(choice)
    if isinstance(choice, Reduce):
        fields["then"] = _pack(choice.then)
    return [type(choice).__name__, fields]


def _unpack(packed: list[Any]) -> Choice:
    name, fields = packed
    return _KINDS[name](**dict(_fields(fields)))


def _fields(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if name == "then":
            yield name, _unpack(value)
        elif name == "shares":
            yield name, tuple((device, part) for device, part in value)
        else:
            yield name, tuple(value) if isinstance(value, list) else value
