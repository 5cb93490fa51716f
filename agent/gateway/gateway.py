"""Gateway: what the doors to one agent's inference share, made once. Whatever door a request comes through, it counts
against the same limits. Door: the clock.
"""

from __future__ import annotations

from collections.abc import Callable

from edgepart.agent.api.protocol import Node
from edgepart.agent.gateway.inference import InferenceService
from edgepart.agent.gateway.intake import Intake
from edgepart.agent.gateway.limits import BodyLimits
from edgepart.agent.gateway.metrics import Metrics
from edgepart.agent.gateway.rate_limit import ClientGate
from edgepart.agent.trace.recorder import Recorder
from edgepart.agent.wire.vocabulary import LOCAL


class Gateway:
    """The parts that HTTP and gRPC share. `credential` is the cluster's admin credential, or a function that returns it if
    it may change. `inference` says for which clients inference is free (access.py)."""

    def __init__(
        self,
        node: Node,
        credential: str | Callable[[], str],
        limits: BodyLimits | None = None,
        *,
        recorder: Recorder | None = None,
        inference: str = LOCAL,
    ) -> None:
        current = credential if callable(credential) else (lambda: credential)
        self.node = node
        self.limits = limits or BodyLimits()
        self.gate = ClientGate(current, self.limits, inference)
        self.intake = Intake(self.limits)
        self.metrics = Metrics(node, self.intake)
        self.service = InferenceService(node, self.limits, self.metrics, recorder or Recorder())
