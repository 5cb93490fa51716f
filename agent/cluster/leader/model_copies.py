"""Model copies: which members are told to store the models of one deployment. Rules, without I/O."""

from __future__ import annotations

import math
from collections.abc import Iterator

from edgepart.agent.cluster.leader import status
from edgepart.agent.cluster.leader.rollout_state import RESEND_S, LeaderView
from edgepart.agent.cluster.state.events import Effect, SendMessage
from edgepart.agent.wire.control import Deployment, FetchModel

MAX_EVERYWHERE_BYTES = 256_000_000
"""Models up to this size are stored by every member, so that a new leader, or a member that is cut off, need
not fetch them first."""


class ModelCopies:
    """The copies of one deployment's models that are on their way."""

    def __init__(self) -> None:
        self._fetch_at: dict[tuple[str, str], float] = {}
        """The time when a member was last told to store a model, by node and model."""

    def store(self, deployment: Deployment, world: LeaderView, now: float) -> Iterator[Effect]:
        """Have members store the model: the leader needs it to plan, and it must survive the loss of any one
        device. The models of kept versions must survive that, too."""
        wanted = _find_copies_missing(deployment, world)
        wanted += status.find_kept_copies_missing(deployment, world)
        asked = {(node, model) for node, model, _ in wanted}
        self._fetch_at = {key: at for key, at in self._fetch_at.items() if key in asked}
        for node, model, size in wanted:
            if now >= self._fetch_at.get((node, model), -math.inf) + RESEND_S:
                self._fetch_at[node, model] = now
                yield SendMessage(node, FetchModel(world.term, model, size, tuple(world.holders(model))))

    def wake_at(self, now: float) -> float:
        """The next time when a member may have to be told again; inf if none may."""
        times = (at + RESEND_S for at in self._fetch_at.values())
        return min((at for at in times if at > now), default=math.inf)


def _find_copies_missing(deployment: Deployment, world: LeaderView) -> list[tuple[str, str, int]]:
    """The members that should store the model of the version that is wanted, as (node, model, bytes of the model), the
    leader first."""
    model, size = deployment.model, deployment.model_bytes
    holders = world.holders(model)
    if not holders:
        return []
    staying = world.staying
    lacking = [n for n in world.nodes if n not in holders and (n in staying or n == world.node)]
    lacking.sort(key=lambda n: (n != world.node, n))
    copies = len(staying) if size <= MAX_EVERYWHERE_BYTES else status.count_needed_copies(world)
    safe = len(world.safe_holders(model))
    missing = copies - safe
    if safe >= status.count_needed_copies(world):
        # A copy on its way would make the links seem slow that a newcomer measures before it tells its card.
        lacking = [node for node in lacking if node in world.cluster.cards or node == world.node]
    if world.node not in holders:
        missing = max(missing, 1)
    return [(node, model, size) for node in lacking[: max(missing, 0)]]
