"""Outgoing messages: what the executor sends, by a function that it is given. Facts and rules: no door."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from edgepart.agent.execution.tasks import EndedRequest, gateway_of
from edgepart.agent.wire.inference import Failed, RequestMessage, Tensors
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import ClusterError
from edgepart.planner.figures import format_count

log = logging.getLogger(__name__)

SendValues = Callable[[str, RequestMessage, Sequence[Value]], None]
"""send(node id, message, values) sends to a member or to this device itself. The `arrays` of a Tensors are left () for
the sender to fill in while packing `values`. Raises ClusterError if the node cannot be reached."""

OutgoingMessage = tuple[str, RequestMessage, Sequence[Value]]
"""The arguments of a `SendValues`."""


def hand_back(about: Tensors | EndedRequest, error: str, *, lost_state: bool = False) -> OutgoingMessage:
    """The message by which a request goes back to its gateway, which can try again."""
    failed = Failed(about.deployment, about.epoch, about.request, True, error, lost_state=lost_state)
    return gateway_of(about.request), failed, ()


def post(out: Iterable[OutgoingMessage], send: SendValues) -> None:
    """Send `out`. The caller must not hold the executor's lock, as the other end may be this device."""
    unsent: dict[str, list[ClusterError]] = {}
    for node, message, values in out:
        try:
            send(node, message, values)
        except ClusterError as error:
            unsent.setdefault(node, []).append(error)
    for node, errors in unsent.items():  # One line for all requests that a lost device had under way.
        log.info("cannot send %s to node %s: %s", format_count(len(errors), "message"), node, errors[0])
