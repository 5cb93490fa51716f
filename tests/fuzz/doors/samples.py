"""Samples: an instance of any message type, made from its annotations. Chance is an argument."""

from __future__ import annotations

import random
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from edgepart.agent.wire.bounds import OneOf

NODES = tuple(f"{n:016x}" for n in range(1, 4))
DIGESTS = ("1" * 64, "ab" * 32)
TEXTS = (
    *NODES,
    *DIGESTS,
    "net",
    "a",
    "alive",
    "suspect",
    "dead",
    "left",
    "ready",
    "control",
    "127.0.0.1:7433",
    "float32",
    "auto",
)
METAS = (
    ("array", "float", (2, 2)),
    ("strings", (2,), 7),
    None,
    ("list", (("plain", 5),)),
    ("rounded", "int8", (2, 3)),
    ("likely", "float", (1, 9), 2),
)


def sample(kind: Any, draw: random.Random, name: str = "") -> Any:
    """Return a value of the annotated type; `name` is the field's name."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return draw.choice(METAS)
    if origin is Annotated:
        return _bounded(arguments[0], arguments[1:], draw, name)
    if is_dataclass(kind) and isinstance(kind, type):
        return _record(kind, draw)
    if origin in (Union, types.UnionType):
        return sample(draw.choice(arguments), draw, name)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(sample(arguments[0], draw, name) for _ in range(draw.randrange(3)))
    if origin is tuple:
        return tuple(sample(one, draw, name) for one in arguments)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {sample(arguments[0], draw): sample(arguments[1], draw) for _ in range(draw.randrange(3))}
    return _atom(kind, draw, name)


def _bounded(kind: Any, bounds: tuple[Any, ...], draw: random.Random, name: str) -> Any:
    for bound in bounds:
        if isinstance(bound, OneOf):
            return draw.choice(bound.choices)
    for _ in range(100):
        found = sample(kind, draw, name)
        if not any(bound.fault(found) for bound in bounds):
            return found
    raise AssertionError(f"nothing is drawn for {name!r} within {bounds}: give it values here")


def _record(kind: type[Any], draw: random.Random) -> Any:
    """Return a record. Draws again if the record's own checks refuse it."""
    hints = get_type_hints(kind, include_extras=True)
    for _ in range(100):
        try:
            return kind(**{f.name: sample(hints[f.name], draw, f.name) for f in fields(kind)})
        except ValueError:
            continue
    raise AssertionError(
        f"no {kind.__name__} is drawn that passes its own checks: give its fields values here"
    )


def _atom(kind: Any, draw: random.Random, name: str) -> Any:
    if kind is str:
        known = {
            "node": NODES,
            "model": DIGESTS,
            "digest": DIGESTS,
            "leader": NODES,
            "deployment": ("net",),
            "boot": ("b0",),
            "secret": ("s" * 43,),
        }
        return draw.choice(known.get(name, TEXTS))
    atoms: dict[Any, tuple[Any, ...]] = {
        int: (1, 0, 2, 7, 4096), float: (0.5, 1.0, 2.0), bool: (True, False), bytes: (b"", b"abc"), type(None): (None,)
    }  # fmt: skip
    return draw.choice(atoms[kind])
