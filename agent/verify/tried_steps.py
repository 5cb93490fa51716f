"""Tried steps: made-up steps of a sequence, the last of which has an answer that can be compared. Facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgepart.planner.plans.plan import Plan


@dataclass(frozen=True)
class TriedStep:
    """One step. A step that reads more rows than one is made by the plan's `prefill`, and gives no answer."""

    inputs: Mapping[str, Any]
    rows: int = 1


@dataclass(frozen=True)
class TriedSequence:
    """Steps from the begin of a sequence on."""

    what: str
    """What they try, in words."""
    steps: Sequence[TriedStep]


MakeSequences = Callable[[Plan], Sequence[TriedSequence]]
"""Makes up sequences of the kinds of steps that a plan has beside the usual one."""


def make_none(plan: Plan) -> Sequence[TriedSequence]:
    """Implements MakeSequences where only the usual step is tried."""
    return ()
