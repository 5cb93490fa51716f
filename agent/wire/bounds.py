"""Bounds: the values that a field of a record may have, written once beside the field's type. Facts and rules: no door.

codec.py checks the bounds of every record that comes over HTTP, from a member or from the disk. So a record that one of
the three accepts can be sent, stored and read again by the other two, and no other record is ever kept.

A message that breaks a bound ends the link that it came over, so the messages of an honest device must always fit. Bounds
therefore leave room, and names and numbers that models and clients choose freely (names of tensors, lengths of axes) have
only the bounds of their type.
"""

from __future__ import annotations

import re
from collections.abc import Sized
from dataclasses import dataclass
from math import inf
from reprlib import repr as shortly
from typing import Annotated, Any

LARGEST = 2**53 - 1
"""The largest whole number that every JSON reader reads exactly; MessagePack can hold larger ones."""


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """A whole number from `least` to `most`."""

    least: int = 0
    most: int = LARGEST

    def fault(self, value: Any) -> str:
        """A text that says why a value of the right type is out of bounds; "" if it is not."""
        if self.least <= value <= self.most:
            return ""
        return f"{shortly(value)} is no whole number from {self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class Number:
    """A number from `least` to `most` that is larger than `above`; NaN is refused."""

    least: float = 0.0
    most: float = inf
    above: float = -inf

    def fault(self, value: Any) -> str:
        if self.least <= value <= self.most and value > self.above:
            return ""
        start = f"above {self.above:g}" if self.above >= self.least else f"from {self.least:g}"
        return f"{value} is no number {start} up to {self.most:g}"


@dataclass(frozen=True, slots=True)
class Text:
    """A text of `least` to `most` characters that matches all of `pattern`, if a pattern is given."""

    most: int
    least: int = 0
    pattern: str = ""

    def fault(self, value: Any) -> str:
        if not self.least <= len(value) <= self.most:
            return f"{shortly(value)} has {len(value)} characters, not {self.least} to {self.most}"
        if self.pattern and not re.fullmatch(self.pattern, value):
            return f"{shortly(value)} does not fit {self.pattern}"
        return ""


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few words."""

    choices: tuple[str, ...]

    def fault(self, value: Any) -> str:
        return "" if value in self.choices else f"{shortly(value)} is none of {', '.join(self.choices)}"


@dataclass(frozen=True, slots=True)
class Many:
    """A sequence or map of at most `most` entries."""

    most: int

    def fault(self, value: Sized) -> str:
        return "" if len(value) <= self.most else f"{len(value)} entries are more than {self.most}"


Bound = WholeNumber | Number | Text | OneOf | Many

MOST_MEMBERS = 10_000
MOST_ENTRIES = 10_000
"""The most entries of a map that every member keeps."""
MOST_NAMES = 1_024
"""The most devices that a user can name in one request."""
MOST_RANK = 64
"""The most axes of an array: numpy has no more."""

NodeId = Annotated[str, Text(64)]
"""A node id; an honest device's has 16 hex digits."""
Name = Annotated[str, Text(128)]
"""A name that a user chose."""
Word = Annotated[str, Text(256)]
Digest = Annotated[str, Text(128)]
Address = Annotated[str, Text(512)]
Addresses = Annotated[tuple[Address, ...], Many(4096)]
Sentence = Annotated[str, Text(1 << 20)]
"""A text for people."""
MOST_DEPLOYMENT_NAME = 128
DeploymentName = Annotated[str, Text(MOST_DEPLOYMENT_NAME, 1, r"[A-Za-z0-9][A-Za-z0-9._-]*")]
"""The name of a deployment, which is part of URLs and metric labels."""
PlanName = Annotated[str, Text(1024)]
"""The name of a deployment or of one of its variants (agent/cluster/state/bindings.py)."""
Count = Annotated[int, WholeNumber()]
Bytes = Annotated[int, WholeNumber()]
Seconds = Annotated[float, Number()]
Large = Annotated[int, WholeNumber(0, 2**63 - 1)]
"""An amount that was predicted or asked for but need not exist: an empty array may have an axis of any length."""
Shapes = dict[str, Annotated[tuple[Large, ...], Many(MOST_RANK)]]
"""The shape of each input, by the model's name for it."""
Nodes = Annotated[tuple[NodeId, ...], Many(MOST_MEMBERS)]
Ticket = Annotated[int, WholeNumber()]
