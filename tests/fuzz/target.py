"""Target: one door through which bytes come in from outside, and the law that must hold for every case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.forms import Bytes, Form

LARGEST_BYTES = 16 << 10
"""Largest size of a case: more than any seed has, and small enough for many cases per second."""
HANG_S = 10.0
"""CPU seconds that a case may take: a guard against endless loops, not a measure."""
MEMORY_BYTES = 256 << 20
"""Maximum growth of a process over all cases of a target: 16,384 times a case. Allocations beyond it fail."""

Take = Callable[[bytes], Any]
"""Takes a case. The result tells different ends without an error apart: None, a number or a text."""


class BrokenLaw(AssertionError):
    """A door accepted something that it must not accept."""


@dataclass(frozen=True)
class Target:
    """A door. The law: for every case, `take` returns or raises one of `refusals`; nothing else, and no
    InternalError."""

    name: str
    seeds: Callable[[], Sequence[bytes]]
    """Real encodings."""
    door: Callable[[], AbstractContextManager[Take]]
    """Opens `take` with its surroundings. `take` raises BrokenLaw if what it took is not as it should be."""
    refusals: tuple[type[Exception], ...]
    form: Form = field(default_factory=Bytes)
    share: float = 1.0
    """Share of the cases that a run asks for: slow doors get fewer."""


def plainly(take: Take) -> Callable[[], AbstractContextManager[Take]]:
    """Return a door that needs no surroundings."""
    return lambda: nullcontext(take)


def expect(good: bool, what: str) -> None:
    """Raise BrokenLaw unless `good`."""
    if not good:
        raise BrokenLaw(what)
