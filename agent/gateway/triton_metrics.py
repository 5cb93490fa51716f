"""Triton's metrics, under the names that Triton gives them, so that dashboards made for Triton work. Rules: no door."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from edgepart.agent.api.inference_request import InferResult

MOST_VERSIONS = 8
"""The versions of a deployment whose counts are kept: those that were counted last. Prometheus keeps the others."""
_FAMILIES = (
    ("request_success", "Inference requests answered", "success"),
    ("request_failure", "Inference requests that failed", "failure"),
    ("count", "Inferences made", "rows"),
    ("exec_count", "Runs of the plan", "runs"),
    ("request_duration_us", "Microseconds from arrival to answer, summed over requests", "request_us"),
    ("queue_duration_us", "Microseconds of waiting before the run, summed over requests", "queue_us"),
    ("compute_infer_duration_us", "Microseconds of running the plan, summed over requests", "compute_us"),
)
"""The name after "nv_inference_", the help, and the field of TritonTally."""

_UNTYPED = re.compile(rb"^(# TYPE nv_inference_\w+) untyped$", re.MULTILINE)


@dataclass(slots=True)
class TritonTally:
    """Triton's counts of one version of a deployment."""

    success: int = 0
    failure: int = 0
    rows: int = 0
    """Inferences, as callers count them: Triton itself counts a request with a batch of 8 as 8."""
    runs: int = 0
    """How often the plan ran. Requests that one run answers together count it once."""
    request_us: float = 0.0
    queue_us: float = 0.0
    compute_us: float = 0.0

    def answered(self, result: InferResult) -> None:
        """Count an answered request."""
        self.success += 1
        self.rows += result.rows
        self.runs += result.runs
        self.request_us += result.seconds * 1e6
        self.queue_us += result.queue_s * 1e6
        self.compute_us += (result.seconds - result.queue_s) * 1e6


@dataclass(eq=False)
class TritonMetrics(Collector):
    """Collects the tallies of all deployments."""

    tallies: dict[str, dict[str, TritonTally]] = field(default_factory=dict)
    """By deployment and version."""

    def of(self, model: str, version: str) -> TritonTally:
        """The tally of a version, which is from now on the one that was counted last. It begins at zero."""
        versions = self.tallies.setdefault(model, {})
        tally = versions[version] = versions.pop(version, TritonTally())
        if len(versions) > MOST_VERSIONS:
            del versions[next(iter(versions))]
        return tally

    def collect(self) -> Iterator[Metric]:
        for name, text, attribute in _FAMILIES:
            metric = Metric(f"nv_inference_{name}", text, "unknown")
            for model, versions in sorted(self.tallies.items()):
                for version, tally in sorted(versions.items()):
                    labels = {"model": model, "version": version}
                    metric.add_sample(metric.name, labels, float(getattr(tally, attribute)))
            yield metric


def as_counters(exposition: bytes) -> bytes:
    """The text with Triton's metrics typed as counters. The client library writes `_total` behind the name of every
    counter, which Triton's do not have, so they are collected without a type.

    >>> as_counters(b"# TYPE nv_inference_count untyped")
    b'# TYPE nv_inference_count counter'
    """
    return _UNTYPED.sub(rb"\1 counter", exposition)
