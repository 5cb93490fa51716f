"""Deployment outcomes: waits for what becomes of a deployment that a user asked for. It serves, or it is taken back and its
error raised. Door: the event loop, the clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple
from typing import Any

from edgepart.agent.api.deployment_cards import DeploymentCards, describe_quantised
from edgepart.agent.api.known_deployments import KnownDeployments
from edgepart.agent.api.progress import StandingProgress
from edgepart.agent.api.stages import Progress
from edgepart.agent.cluster.membership.election import readable_epoch
from edgepart.agent.cluster.state import events
from edgepart.agent.cluster.state.deployments import DeploymentMap
from edgepart.agent.cluster.state.model_versions import number_of
from edgepart.agent.wire.control import UNLOADABLE, Deployment, Standing
from edgepart.planner import errors
from edgepart.planner.plans.reduced_precision import EXACT

FINAL = (
    "Infeasible",
    "ModelError",
    "UsageError",
    "NotInstalled",
    "RequestError",
    "InternalError",
    UNLOADABLE,
)
"""Kinds of errors after which another try does not help, so that the deployment is taken back."""

COMPARING_S = 60.0
"""How long a user who deploys waits to be told how far rounded answers are off, once the model serves."""
LOOK_S = 0.2
"""The interval at which a deployment is looked at again without news from the leader: this agent's own switch to the plan
wakes nobody."""


class DeploymentOutcomes:
    """For the event loop's thread."""

    def __init__(
        self,
        deployments: DeploymentMap,
        known: KnownDeployments,
        cards: DeploymentCards,
        post: Callable[[events.Event], None],
        http: Callable[[], str],
    ) -> None:
        """`http` returns the URL of this agent's HTTP API."""
        self._deployments = deployments
        self._known = known
        self._cards = cards
        self._post = post
        self._http = http
        self._news = asyncio.Event()

    def wake(self) -> None:
        """Wake those who wait: the leader has something new to say of a deployment."""
        self._news.set()
        self._news = asyncio.Event()

    async def await_service(
        self, name: str, before: Deployment | None, notes: Sequence[str], progress: Progress
    ) -> dict[str, Any]:
        """Wait until what was just written down under that name serves; return the answer for the user. If it
        cannot serve, restore `before`, which had the name until then, and raise the leader's error."""
        standing = await self._await_acknowledgement(self._known.entry(name), before, progress)
        if self._known.plan(name).rounded_to:
            progress("comparing rounded answers with exact ones", 0, 0)
            await self._await_comparison(self._known.entry(name))
        return self._answer(name, standing, notes)

    async def _await_acknowledgement(
        self, entry: Deployment, before: Deployment | None, progress: Progress
    ) -> Standing:
        """Wait until the leader acknowledges the deployment and its plan serves here; return the standing. If
        the leader reports a final error instead, take the deployment back, restore what had that name before,
        and raise the error."""
        telling = StandingProgress(progress)
        while True:
            current = self._deployments.get(entry.name)
            if current is not None and current.fault and current.model == entry.model:
                if before is not None and not before.fault:
                    self._post(events.RestoreRequested(before))
                raise errors.CrashError(self._known.describe(current))
            if current is None or current.version != entry.version:
                raise errors.ClusterError(f"{entry.name!r} was deployed again or undeployed meanwhile")
            standing = self._known.standing(entry)
            if standing is not None:
                active = self._known.active(entry.name)
                if standing.acknowledged and active is not None and active[0] >= standing.epoch:
                    return standing
                if standing.error_kind not in FINAL:
                    text = self._known.name_members(standing.text)
                    telling.tell(text, standing.weights, time.monotonic())
                else:
                    if before is None:
                        self._post(events.UndeployRequested(entry.name, entry.version))
                    else:
                        self._post(events.RestoreRequested(before))
                    raise _make_error(standing.error_kind, self._known.name_members(standing.error))
            await self._pause()

    async def _await_comparison(self, entry: Deployment) -> None:
        """Wait until the leader says how far answers are off, but at most COMPARING_S."""
        until = time.monotonic() + COMPARING_S
        while not self._known.rounding(entry) and time.monotonic() < until:
            await self._pause()

    async def _pause(self) -> None:
        """Wait for news from the leader, but at most LOOK_S."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self._news.wait()

    def _answer(self, name: str, standing: Standing, notes: Sequence[str]) -> dict[str, Any]:
        plan, entry = self._known.plan(name), self._known.entry(name)
        return {
            "name": name,
            "version": str(number_of(entry)),
            "devices": list(plan.programs),
            "strategy": plan.strategy,
            "predicted_latency_s": plan.predicted_latency_s,
            "why": plan.why,
            "transfer_dtype": plan.rounded_to or EXACT,
            "rounding": self._known.rounding(entry),
            "text": entry.options.text,
            "quantised": describe_quantised(entry.options),
            "notes": [*notes, *filter(None, [self._cards.note(entry)])],
            "epoch": list(astuple(readable_epoch(standing.epoch))),
            "url": f"{self._http()}/v2/models/{name}/infer",
        }


def _make_error(kind: str, text: str) -> errors.EdgepartError:
    """The leader's error, as an exception of the class that the leader named."""
    found = getattr(errors, kind, errors.ClusterError)
    told = f"{text.rstrip('.')}. Nothing was deployed."
    return found(told) if issubclass(found, errors.EdgepartError) else errors.ClusterError(told)
