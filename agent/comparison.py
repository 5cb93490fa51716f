"""Comparison: how far answers of a deployment are off because what travels is rounded. Door: the event loop.

The leader finds out once for each plan: a request with made-up inputs runs twice on the devices as they are, once with
all digits and once rounded. That takes no more memory than any request, so it is done for models of every size."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from edgepart.agent.events import RoundingMeasured
from edgepart.agent.messages import Epoch
from edgepart.agent.requester import Info
from edgepart.agent.sameness import largest_difference
from edgepart.agent.samples import made_up
from edgepart.planner.errors import EdgepartError, UsageError
from edgepart.planner.plan import Plan

log = logging.getLogger(__name__)

LOOK_S = 0.5
DEADLINE_S = 120.0
"""Of each request."""

Active = tuple[str, Epoch, Plan]
"""A deployment, and the plan that new requests of it start on here."""


class Run(Protocol):
    """As Requester.run."""

    async def __call__(
        self,
        deployment: str,
        inputs: dict[str, Any],
        deadline_s: float,
        outputs: tuple[str, ...],
        *,
        exact: bool = False,
    ) -> tuple[dict[str, Any], Info]: ...


class Comparison:
    """What is known of the plans that serve."""

    def __init__(self, run: Run, post: Callable[[RoundingMeasured], None]) -> None:
        self._run = run
        self._post = post
        self._known: set[tuple[str, Epoch]] = set()

    async def watch(self, leading: Callable[[], Iterable[Active]]) -> None:
        """`leading` gives the plans that serve, where this device leads; until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            plans = list(leading())
            self._known &= {(name, epoch) for name, epoch, _ in plans}
            for name, epoch, plan in plans:
                if plan.rounded_to and (name, epoch) not in self._known:
                    await self.compare(name, epoch, plan)

    async def compare(self, name: str, epoch: Epoch, plan: Plan) -> None:
        """Once, whatever comes of it; where another plan serves before it is done, nothing is said of this one."""
        self._known.add((name, epoch))
        try:
            difference, epochs = await self._difference(name, plan)
        except EdgepartError as error:
            log.info("rounding of %s is not measured: %s", name, error)
            self._post(RoundingMeasured(name, epoch, f"how far answers are off is not known: {error}"))
            return
        if epochs == {epoch}:
            self._post(RoundingMeasured(name, epoch, said(plan.rounded_to, difference)))

    async def _difference(self, name: str, plan: Plan) -> tuple[float, set[Epoch]]:
        inputs = made_up_for(plan)
        names = tuple(info.name for info in plan.outputs)
        exact, one = await self._run(name, dict(inputs), DEADLINE_S, names, exact=True)
        rounded, two = await self._run(name, dict(inputs), DEADLINE_S, names)
        return largest_difference(rounded, exact), {one.epoch, two.epoch}


def made_up_for(plan: Plan) -> Mapping[str, Any]:
    """One value for every input. UsageError where one is no tensor, or of no known shape."""
    found: dict[str, Any] = {}
    for info in plan.inputs:
        if info.shape is None:
            raise UsageError(f"input {info.name!r} has no shape that is known before a request")
        found[info.name] = made_up(info.dtype, info.shape, info.name)
    return found


def said(rounded_to: str, difference: float) -> str:
    """For people.

    >>> said("float16", 0.00021)
    'rounded to float16 between devices, outputs are off by 2.1e-04 of their largest magnitude (made-up inputs)'
    """
    how = (
        "cannot be compared"
        if math.isnan(difference)
        else f"are off by {difference:.1e} of their largest magnitude"
    )
    return f"rounded to {rounded_to} between devices, outputs {how} (made-up inputs)"
