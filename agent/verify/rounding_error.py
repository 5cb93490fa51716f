"""Rounding error: measures how far a deployment's answers are off because transfers are rounded. Door: the event loop.

The leader measures it once for each plan: requests with made-up inputs run twice on the devices as they are, once exactly
and once rounded. That takes no more memory than any request, so it is done for models of every size. One input may say
little: if one class is all but certain, hardly anything changes the answer. So several inputs are compared, and the largest
difference counts."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from edgepart.agent.cluster.state.events import RoundingMeasured
from edgepart.agent.serving.requester import AnswerInfo
from edgepart.agent.verify.same_answer import largest_difference
from edgepart.agent.verify.sample_inputs import sample_value
from edgepart.agent.wire.inference import Epoch
from edgepart.planner.errors import EdgepartError, UsageError
from edgepart.planner.plans.plan import Plan

log = logging.getLogger(__name__)

LOOK_S = 0.5
"""Seconds between two looks at the plans that serve."""
DEADLINE_S = 120.0
"""The deadline of each request, in seconds."""
FEWEST, MOST = 2, 6
"""Number of inputs that are compared. With more, a small difference means more; with fewer, users' requests wait for fewer
others."""
ENOUGH_S = 5.0
"""Seconds after which no more inputs than the fewest are compared."""

ServingPlan = tuple[str, Epoch, Plan]
"""A deployment, and the epoch and plan on which its new requests start on this device."""


class RunRequest(Protocol):
    """The interface of Requester.run."""

    async def __call__(
        self,
        deployment: str,
        inputs: dict[str, Any],
        deadline_s: float,
        outputs: tuple[str, ...],
        *,
        exact: bool = False,
    ) -> tuple[dict[str, Any], AnswerInfo]: ...


class RoundingComparison:
    """Measures the rounding error of each plan that serves, once."""

    def __init__(self, run: RunRequest, post: Callable[[RoundingMeasured], None]) -> None:
        self._run = run
        self._post = post
        self._known: set[tuple[str, Epoch]] = set()

    async def watch(self, leading: Callable[[], Iterable[ServingPlan]]) -> None:
        """Compare the plans of `leading()` until cancelled: those that serve, if this device is the leader."""
        while True:
            await asyncio.sleep(LOOK_S)
            plans = list(leading())
            self._known &= {(name, epoch) for name, epoch, _ in plans}
            for name, epoch, plan in plans:
                if plan.rounded_to and (name, epoch) not in self._known:
                    await self.compare(name, epoch, plan)

    async def compare(self, name: str, epoch: Epoch, plan: Plan) -> None:
        """Measure a plan and post the result. The plan is not measured again, whatever the result; nothing is posted if
        another plan serves before this one is measured."""
        self._known.add((name, epoch))
        try:
            differences, epochs = await self._differences(name, plan)
        except EdgepartError as error:
            log.info("rounding of %s is not measured: %s", name, error)
            self._post(RoundingMeasured(name, epoch, f"how far answers are off is not known: {error}"))
            return
        if epochs == {epoch}:
            self._post(RoundingMeasured(name, epoch, describe_difference(plan.rounded_to, differences)))

    async def _differences(self, name: str, plan: Plan) -> tuple[list[float], set[Epoch]]:
        """The largest relative difference for each input, and the epochs that answered."""
        found, epochs = list[float](), set[Epoch]()
        names, now = tuple(info.name for info in plan.outputs), asyncio.get_running_loop().time
        until = now() + ENOUGH_S
        while len(found) < FEWEST or (len(found) < MOST and now() < until):
            inputs = sample_inputs_for(plan, seed=len(found))
            exact, one = await self._run(name, dict(inputs), DEADLINE_S, names, exact=True)
            rounded, two = await self._run(name, dict(inputs), DEADLINE_S, names)
            found.append(largest_difference(rounded, exact))
            epochs |= {one.epoch, two.epoch}
        return found, epochs


def sample_inputs_for(plan: Plan, seed: int = 0) -> Mapping[str, Any]:
    """A value for each of the plan's inputs. Raises UsageError if one is no tensor, or has no known shape."""
    found: dict[str, Any] = {}
    for info in plan.inputs:
        if info.shape is None:
            raise UsageError(f"input {info.name!r} has no shape that is known before a request")
        found[info.name] = sample_value(info.dtype, info.shape, info.name, seed)
    return found


def describe_difference(rounded_to: str, differences: Sequence[float]) -> str:
    """The result in words, for users.

    >>> describe_difference("float16", [0.00021, 0.0001])
    'rounded to float16 between devices, outputs are off by up to 2.1e-04 of their largest magnitude (2 made-up inputs)'
    """
    known = [one for one in differences if not math.isnan(one)]
    how = f"are off by up to {max(known):.1e} of their largest magnitude" if known else "cannot be compared"
    return f"rounded to {rounded_to} between devices, outputs {how} ({len(known) or len(differences)} made-up inputs)"
