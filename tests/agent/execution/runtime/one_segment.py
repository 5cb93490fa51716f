"""One segment: a program of one segment, prepared and run."""

from __future__ import annotations

from collections.abc import Sequence

from edgepart.agent.execution.runtime.sessions import Sessions
from edgepart.planner.plans.plan import Piece, Port, Segment
from edgepart.planner.region import Array, Region
from tests.agent import handmade


def ports(*names: str, shape: Sequence[int] = (4,)) -> list[Port]:
    return [Port(name, Piece(name, Region.full(tuple(shape)))) for name in names]


def prepared_run(
    made: Segment, inputs: Sequence[Array], weights: dict[str, Array] | None = None
) -> list[Array]:
    sessions = Sessions(1, lambda ref: (weights or {})[ref.name])
    return sessions.prepare(handmade.one_program(made)).run(0, inputs)
