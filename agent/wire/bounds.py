"""Bounds: what a field of a record may hold, written once beside its type. Facts and rules: no door.

A record that comes in over HTTP, from a member or from the disk is read by codec.py, which checks these. So whatever one
of the three accepts can be told, written and read again by the other two, and nothing else is ever kept.

A message that does not fit ends the link that it came over. So what an honest device says must always fit: bounds leave
room, and what models and clients choose freely (names of tensors, lengths of axes) has none but those of its type.
"""

from __future__ import annotations

import re
from collections.abc import Sized
from dataclasses import dataclass
from math import inf
from reprlib import repr as shortly
from typing import Annotated, Any

LARGEST = 2**53 - 1
"""What every reader of JSON takes as an exact whole number; MessagePack holds more."""


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """A whole number from `least` to `most`."""

    least: int = 0
    most: int = LARGEST

    def fault(self, value: Any) -> str:
        """What is wrong with a value of the right type; "" where nothing is."""
        if self.least <= value <= self.most:
            return ""
        return f"{shortly(value)} is no whole number from {self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class Number:
    """A number above `above`, or from `least` on, up to `most`; NaN is none."""

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
    """So many characters at most, and at least; all of it fits `pattern`, where there is one."""

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
    """One of these."""

    choices: tuple[str, ...]

    def fault(self, value: Any) -> str:
        return "" if value in self.choices else f"{shortly(value)} is none of {', '.join(self.choices)}"


@dataclass(frozen=True, slots=True)
class Many:
    """A sequence or map of so many entries at most."""

    most: int

    def fault(self, value: Sized) -> str:
        return "" if len(value) <= self.most else f"{len(value)} entries are more than {self.most}"


Bound = WholeNumber | Number | Text | OneOf | Many

MOST_MEMBERS = 10_000
MOST_ENTRIES = 10_000
"""Of a map that every member keeps."""
MOST_NAMES = 1_024
"""Devices that a user names."""
MOST_RANK = 64
"""Axes of an array: what numpy has at most."""

NodeId = Annotated[str, Text(64)]
"""16 hex digits, in honest ones."""
Name = Annotated[str, Text(128)]
"""What a user calls something."""
Word = Annotated[str, Text(256)]
Digest = Annotated[str, Text(128)]
Address = Annotated[str, Text(512)]
Addresses = Annotated[tuple[Address, ...], Many(4096)]
Sentence = Annotated[str, Text(1 << 20)]
"""For people."""
DeploymentName = Annotated[str, Text(128, 1, r"[A-Za-z0-9][A-Za-z0-9._-]*")]
"""Part of URLs and metric labels."""
PlanName = Annotated[str, Text(1024)]
"""Of a deployment, or of a variant of one (agent/cluster/state/bindings.py)."""
Count = Annotated[int, WholeNumber()]
Bytes = Annotated[int, WholeNumber()]
Seconds = Annotated[float, Number()]
Large = Annotated[int, WholeNumber(0, 2**63 - 1)]
"""What is reckoned or asked for, and need not be there: an empty array may have an axis of any length."""
Shapes = dict[str, Annotated[tuple[Large, ...], Many(MOST_RANK)]]
"""By input, whose name the model gives."""
Nodes = Annotated[tuple[NodeId, ...], Many(MOST_MEMBERS)]
Ticket = Annotated[int, WholeNumber()]
