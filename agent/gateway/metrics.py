"""Metrics for Prometheus at /metrics. The counters of requests are kept here; triton_metrics.py has those under Triton's
names, node_metrics.py what is read anew for each answer. Door: the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics import MetricWrapperBase

from edgepart.agent.api.inference_request import InferResult
from edgepart.agent.api.protocol import Node
from edgepart.agent.chronicle.request_history import RequestHistory
from edgepart.agent.gateway.intake import Intake
from edgepart.agent.gateway.node_metrics import NodeMetrics
from edgepart.agent.gateway.triton_metrics import TritonMetrics, as_counters

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Otherwise the library adds a gauge to each counter, with the time when it was made: a second series that nobody asks for.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The metrics of one agent, in a registry of their own."""

    def __init__(self, node: Node, intake: Intake, clock: Callable[[], float] = time.monotonic) -> None:
        self.history = RequestHistory()
        """The requests of the last minutes, by `clock`, for the page."""
        self._node = node
        self._clock = clock
        self._registry = CollectorRegistry()
        self._by_model: list[tuple[MetricWrapperBase, tuple[str, ...]]] = []
        self._triton = TritonMetrics()
        self._registry.register(self._triton)
        self._registry.register(NodeMetrics(node, intake))
        self._requests = self.count("requests", "Inference requests by outcome", "outcome")
        self._replays = self.count("replays", "Requests run again after a loss")
        self._seconds = self.time("request_seconds", "From arrival to answer", _BUCKETS_S)

    def count(self, name: str, text: str, *also: str) -> Counter:
        """Make a counter with the label `model`, and those in `also`. `_total` is appended to its name."""
        labels = ("model", *also)
        made = Counter(f"edgepart_{name}", text, labels, registry=self._registry)
        self._by_model.append((made, labels))
        return made

    def time(self, name: str, text: str, buckets_s: tuple[float, ...]) -> Histogram:
        """Make a histogram of seconds with the label `model`. Its name has to end in `_seconds`."""
        made = Histogram(f"edgepart_{name}", text, ["model"], buckets=buckets_s, registry=self._registry)
        self._by_model.append((made, ("model",)))
        return made

    def answered(self, model: str, result: InferResult) -> None:
        """Count an answered request."""
        self._make_room(model)
        self._requests.labels(model, "answered").inc()
        self._replays.labels(model).inc(result.replays)
        self._seconds.labels(model).observe(result.seconds)
        self.history.answered(model, self._clock(), result.seconds, result.queue_s, result.replays)
        self._triton.of(model, result.version).answered(result)

    def failed(self, model: str, kind: str, version: str) -> None:
        """Count a failed request. `kind` is the name of the error's class. Call this for existing deployments only: names
        that clients make up must not become labels."""
        self._make_room(model)
        self._requests.labels(model, kind).inc()
        self.history.failed(model, self._clock(), kind)
        self._triton.of(model, version).failure += 1

    def text(self) -> bytes:
        """All metrics in Prometheus' text format, without those of deployments that are gone."""
        self._forget_gone()
        return as_counters(generate_latest(self._registry))

    def _make_room(self, model: str) -> None:
        """Forget those of deployments that are gone before there are some of a new one, in case that nobody reads them."""
        if model not in self._triton.tallies:
            self._forget_gone()

    def _forget_gone(self) -> None:
        """Forget deployments that are gone: else the names that users gave over the years would stay for ever."""
        present = {card.name for card in self._node.models()}
        for model in self._triton.tallies.keys() - present:
            del self._triton.tallies[model]
        for metric, labels in self._by_model:
            samples = [sample for family in metric.collect() for sample in family.samples]
            gone = [sample.labels for sample in samples if sample.labels["model"] not in present]
            for values in {tuple(map(found.__getitem__, labels)) for found in gone}:
                metric.remove(*values)
