"""Target: one door through which bytes come in from outside, and what must hold for every case there. Facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.forms import Bytes, Form

LARGEST_BYTES = 16 << 10
"""Of a case: more than any seed has, and small enough for many cases a second."""
HANG_S = 10.0
"""Of CPU time, a case may take; a guard against what never ends, not a measure."""
MEMORY_BYTES = 256 << 20
"""By so much may a process grow over all cases of a target: 16,384 times a case. Allocations beyond it fail."""

Take = Callable[[bytes], Any]
"""Takes a case. What it returns tells different ends apart, where none is an error: None, a number, a text."""


class BrokenLaw(AssertionError):
    """A door let something through that it must not have."""


@dataclass(frozen=True)
class Target:
    """A door. For every case `take` returns, or raises one of `refusals`; nothing else, and no InternalError."""

    name: str
    seeds: Callable[[], Sequence[bytes]]
    """Real encodings."""
    door: Callable[[], AbstractContextManager[Take]]
    """What takes a case, with what it needs around it. It raises BrokenLaw where what it took is not as it should be."""
    refusals: tuple[type[Exception], ...]
    form: Form = field(default_factory=Bytes)
    share: float = 1.0
    """Of the cases that a run asks for: slow doors get fewer."""


def plainly(take: Take) -> Callable[[], AbstractContextManager[Take]]:
    """The door that needs nothing around it."""
    return lambda: nullcontext(take)


def expect(good: bool, what: str) -> None:
    """BrokenLaw unless it is so."""
    if not good:
        raise BrokenLaw(what)
