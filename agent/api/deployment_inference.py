"""Deployment inference: runs requests on a deployment, as a step of a sequence or not, and says so if it cannot answer now.
Door: the event loop, the clock.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from edgepart.agent.api.inference_request import AskedInference, InferResult
from edgepart.agent.api.known_deployments import KnownDeployments
from edgepart.agent.cluster.membership.election import readable_epoch
from edgepart.agent.cluster.state.model_versions import number_of
from edgepart.agent.serving.request_gatherer import RequestGatherer
from edgepart.agent.serving.sequences import Sequences
from edgepart.agent.wire.control import Deployment
from edgepart.planner.errors import ClusterError, CrashError, Unavailable


class DeploymentInference:
    """For the event loop's thread."""

    def __init__(self, known: KnownDeployments, gatherer: RequestGatherer, sequences: Sequences) -> None:
        self._known = known
        self._gatherer = gatherer
        self._sequences = sequences

    async def infer(self, entry: Deployment, asked: AskedInference) -> InferResult:
        """Answer a request by this deployment, and by no other version. Raises CrashError if it is set aside."""
        began = time.perf_counter()
        model, inputs, outputs, sequence = entry.name, asked.inputs, asked.outputs or (), asked.sequence
        if entry.fault:
            raise CrashError(self._known.describe(entry))
        if why := self._known.trouble(entry):
            raise Unavailable(f"{model!r} is not served now: {why}")
        try:
            if sequence is None:
                values, info = await self._gatherer.infer(
                    model, entry.options, inputs, asked.deadline_s, outputs
                )
            else:
                values, info = await self._sequences.infer(
                    model,
                    sequence.id,
                    inputs,
                    asked.deadline_s,
                    outputs,
                    start=sequence.start,
                    end=sequence.end,
                )
        except (ClusterError, TimeoutError) as error:
            if why := self._known.trouble(entry):
                raise Unavailable(f"{model!r} is not served now: {why}") from error
            raise
        took_s = time.perf_counter() - began
        rows = _rows(inputs) if entry.options.batch_rows > 1 else 1
        return InferResult(
            values,
            readable_epoch(info.epoch),
            took_s,
            info.replays,
            info.request,
            info.waited_s,
            rows=rows,
            runs=info.runs,
            version=str(info.number or number_of(entry)),
        )


def _rows(inputs: Mapping[str, Any]) -> int:
    """The rows of a request: the extent of its inputs' first axis."""
    return max((array.shape[0] for array in inputs.values() if array.ndim), default=1)
