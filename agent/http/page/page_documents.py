"""Page documents: gathers what overview.py needs from a node, and keeps what takes long to find out. Door: the clocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from edgepart.agent.api.model_card import ModelCard
from edgepart.agent.api.protocol import Node
from edgepart.agent.api.stages import WEIGHTS_ON
from edgepart.agent.chronicle.request_history import RequestHistory
from edgepart.agent.http.page.overview import (
    Between,
    cluster_document,
    deployments_document,
    traffic_document,
)
from edgepart.planner.errors import Unavailable, UnknownDeployment


class DeploymentTries:
    """The deployments that are being made through this agent, and those that failed. For the event loop's thread."""

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}
        """The reason why the last try through this agent failed, by deployment."""
        self.under_way: dict[str, Mapping[str, Any]] = {}
        """How far each one is: {"stage", "done", "total"}, as in Progress (agent/api/stages.py). The weights on each
        device are in its card, which all agents know."""
        self.changed: Callable[[], None] = lambda: None
        """Called after each change."""

    def reached(self, name: str, stage: str, done: float, total: float) -> None:
        if stage.startswith(WEIGHTS_ON):
            return
        self.under_way[name] = {"stage": stage, "done": done, "total": total}
        self.changed()

    def ended(self, name: str, failure: str = "") -> None:
        """Forget how far a deployment is; `failure` says why it failed, "" if it did not."""
        self.under_way.pop(name, None)
        self.failures.pop(name, None)
        if failure:
            self.failures[name] = failure
        self.changed()

    def dismiss(self, name: str) -> bool:
        """Forget that a deployment failed; return whether it had."""
        noticed = self.failures.pop(name, None) is not None
        self.changed()
        return noticed


class PageDocuments:
    """Makes the documents of the page of one agent."""

    def __init__(
        self,
        node: Node,
        history: RequestHistory,
        tries: DeploymentTries,
        talking: Callable[[], Collection[str]],
    ) -> None:
        """`talking` returns the names of deployments that generate text."""
        self._node = node
        self._talking = talking
        self._history = history
        self._tries = tries
        self._between: dict[str, tuple[Any, Sequence[Mapping[str, Any]]]] = {}
        """What a request sends between devices, with the epoch for which that holds, by deployment: finding it out means
        reading the whole plan."""

    def compose(self) -> dict[str, Any]:
        """All documents of the page, by name."""
        now, wall_s = time.monotonic(), time.time()
        cards = self._node.models()
        # Deployments that do not serve, or could not be made, say so themselves on the page.
        status = {**self._node.status(), "deployments": []}
        rates = {name: self._history.lately(name, now).per_s for name in self._history.models()}
        return {
            "cluster": cluster_document(
                status, self._node.devices(), self._find_between(cards), rates, wall_s
            ),
            "deployments": deployments_document(
                cards, self._talking(), self._tries.failures, self._tries.under_way
            ),
            "traffic": traffic_document(self._history, now, wall_s),
        }

    def _find_between(self, cards: Sequence[ModelCard]) -> Between:
        known, self._between = self._between, {}
        for card in cards:
            if card.epoch is None:
                continue
            before = known.get(card.name)
            if before is not None and before[0] == card.epoch:
                self._between[card.name] = before
                continue
            try:
                self._between[card.name] = card.epoch, self._node.plan(card.name).get("between", ())
            except (Unavailable, UnknownDeployment):  # Undeployed, or switched off, this very moment.
                continue
        return {name: pairs for name, (_, pairs) in self._between.items()}
