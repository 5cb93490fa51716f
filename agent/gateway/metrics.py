"""Metrics for Prometheus at /metrics: edgepart's own, and those of Triton under the names that Triton gives them.

The counters are kept here. The state of the node (members, deployments) is read anew for each answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from edgepart.agent.api.protocol import InferResult, ModelCard, Node
from edgepart.agent.chronicle.request_history import RequestHistory
from edgepart.agent.gateway.intake import Intake

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


MOST_VERSIONS = 8
"""The versions of a deployment whose counts are kept: those that were counted last. Prometheus keeps the others."""


@dataclass
class _Tally:
    """Triton's counts of one version of a deployment."""

    success: int = 0
    rows: int = 0
    runs: int = 0
    failure: int = 0
    request_us: float = 0.0
    queue_us: float = 0.0
    compute_us: float = 0.0


@dataclass(eq=False)
class _Triton(Collector):
    """Collects Triton's metrics. Their names have no `_total`, which the client library's own Counter would add."""

    tallies: dict[str, dict[str, _Tally]] = field(default_factory=dict)
    """By deployment and version."""

    def of(self, model: str, version: str) -> _Tally:
        """The counts of a version, which is from now on the one that was counted last."""
        versions = self.tallies.setdefault(model, {})
        tally = versions[version] = versions.pop(version, _Tally())
        if len(versions) > MOST_VERSIONS:
            del versions[next(iter(versions))]
        return tally

    def collect(self) -> Iterator[Metric]:
        rows = (
            ("nv_inference_request_success", "Inference requests answered", "success"),
            ("nv_inference_request_failure", "Inference requests that failed", "failure"),
            (
                "nv_inference_count",
                "Rows computed; 1 for each request of a deployment without --batch",
                "rows",
            ),
            ("nv_inference_exec_count", "Runs of the plan", "runs"),
            ("nv_inference_request_duration_us", "From arrival to answer, summed", "request_us"),
            ("nv_inference_queue_duration_us", "Waiting before the run, summed", "queue_us"),
            ("nv_inference_compute_infer_duration_us", "Running the plan, summed", "compute_us"),
        )
        for name, text, attribute in rows:
            metric = Metric(name, text, "unknown")
            for model, versions in sorted(self.tallies.items()):
                for version, tally in sorted(versions.items()):
                    labels = {"model": model, "version": version}
                    metric.add_sample(name, labels, float(getattr(tally, attribute)))
            yield metric


@dataclass(eq=False)
class _Present(Collector):
    """Collects the current state of the node."""

    node: Node
    intake: Intake

    def collect(self) -> Iterator[Metric]:
        status = self.node.status()
        yield from self._agent(status)
        yield from _disk(status.get("disk") or {})
        yield _add_samples(
            CounterMetricFamily(
                "edgepart_workers_ended",
                "Processes that computed here and ended unexpectedly",
                labels=["model"],
            ),
            status.get("workers_ended"),
        )
        yield _add_samples(
            GaugeMetricFamily(
                "edgepart_plans_refused",
                "Plans that were tried and refused, because their answers differ from the model's; reported by the leader",
                labels=["model"],
            ),
            status.get("plans_refused"),
        )
        cards = self.node.models()
        yield from _deployments(cards)
        yield from _sequences(cards, status.get("sequences") or {})

    def _agent(self, status: Mapping[str, Any]) -> Iterator[Metric]:
        members = GaugeMetricFamily("edgepart_members", "Members that this agent knows of", labels=["state"])
        states = [str(member.get("state")) for member in status.get("members", ())]
        for state in sorted(set(states)):
            members.add_metric([state], states.count(state))
        yield members
        leads = status.get("leader") == self.node.name
        for name, text, value in (
            ("is_leader", "Whether this agent leads", leads),
            ("term", "The term of the present leadership", status.get("term") or 0),
            (
                "requests_computed",
                "Requests of which this device has computed its part",
                status.get("computed") or 0,
            ),
            ("requests_in_flight", "Requests that are being served here", self.intake.places.taken),
            (
                "request_bytes_held",
                "Memory that the bodies of requests in flight hold",
                self.intake.held_bytes,
            ),
        ):
            yield GaugeMetricFamily(f"edgepart_{name}", text, value=float(value))
        own = [m for m in status.get("members", ()) if m.get("name") == self.node.name]
        share = next((m["starved"]["share"] for m in own if m.get("starved")), 0.0)
        text = (
            "Share of the time that this agent's threads could run and waited for a CPU; 0 while it is small"
        )
        yield GaugeMetricFamily("edgepart_cpu_wait_share", text, value=float(share))


def _disk(disk: Mapping[str, Any]) -> Iterator[Metric]:
    if not disk:
        return
    for name, text, value in (
        ("disk_free_bytes", "Free space on the disk of the state directory", disk["free_bytes"]),
        (
            "disk_trouble",
            "1 while that disk is full, or state files cannot be written",
            bool(disk["trouble"]),
        ),
        ("files_damaged", "Files that were found damaged since the start", len(disk["damaged"])),
    ):
        yield GaugeMetricFamily(f"edgepart_{name}", text, value=float(value))


CountedFamily = TypeVar("CountedFamily", CounterMetricFamily, GaugeMetricFamily)


def _add_samples(family: CountedFamily, counts: Mapping[str, int] | None) -> CountedFamily:
    """Add a sample for each model to the family, and return it."""
    for model, count in sorted((counts or {}).items()):
        family.add_metric([model], float(count))
    return family


def _deployments(cards: Sequence[ModelCard]) -> Iterator[Metric]:
    aside, serving, versions, epochs, predicted, bindings = (
        GaugeMetricFamily(f"edgepart_{name}", text, labels=labels)
        for name, text, labels in (
            ("deployment_set_aside", "1 where the model ends the processes that compute it", ["model"]),
            ("deployment_serving", "1 while a plan is active", ["model"]),
            ("model_version", "Number of the model's version that answers", ["model"]),
            ("epoch_number", "Number of the active plan's epoch", ["model", "term"]),
            ("predicted_latency_seconds", "Latency of one request that the plan predicts", ["model"]),
            ("bindings", "Input shapes that have a plan here, including the first one", ["model"]),
        )
    )
    for card in cards:
        aside.add_metric([card.name], float(card.set_aside))
        serving.add_metric([card.name], float(card.state == "serving"))
        versions.add_metric([card.name], float(card.version))
        if card.epoch is not None:
            epochs.add_metric([card.name, str(card.epoch.term)], card.epoch.number)
        if card.predicted_latency_s is not None:
            predicted.add_metric([card.name], card.predicted_latency_s)
        if card.bindings:
            serve = sum(bound.epoch is not None for bound in card.bindings)
            bindings.add_metric([card.name], float(serve))
    yield from (aside, serving, versions, epochs, predicted, bindings)


def _sequences(cards: Sequence[ModelCard], here: Mapping[str, int]) -> Iterator[Metric]:
    """The sequences of this gateway's clients, and the states that this device keeps for any gateway."""
    counts = GaugeMetricFamily(
        "edgepart_sequences", "Sequences of clients of this agent", labels=["model", "state"]
    )
    for card in cards:
        if card.sequences is not None:
            counts.add_metric([card.name, "under_way"], card.sequences.under_way)
            counts.add_metric([card.name, "idle"], card.sequences.idle)
    yield counts
    if not here:
        return
    yield GaugeMetricFamily(
        "edgepart_sequences_kept", "Sequences whose states this device keeps", value=here["kept"]
    )
    yield GaugeMetricFamily("edgepart_state_bytes", "Memory that these states take", value=here["bytes"])
    yield CounterMetricFamily(
        "edgepart_sequences_evicted",
        "Sequences whose states were dropped to make room for others",
        value=here["evictions"],
    )
    yield CounterMetricFamily(
        "edgepart_sequence_replays",
        "How often steps of this agent's clients were made again as their states were lost",
        value=here["replays"],
    )
    yield CounterMetricFamily(
        "edgepart_sequence_batches",
        "Requests of this agent that read a token in each of several texts",
        value=here["batches"],
    )
    yield CounterMetricFamily(
        "edgepart_sequences_resumed",
        "How often a text of this agent's clients went on with states that devices had from others",
        value=here["resumed"],
    )
    yield GaugeMetricFamily(
        "edgepart_mirrored_state_bytes",
        "Memory that copies of other devices' states take at most",
        value=here["mirrored_bytes"],
    )


class Metrics:
    """The metrics of one agent, in a registry of their own."""

    def __init__(self, node: Node, intake: Intake, clock: Callable[[], float] = time.monotonic) -> None:
        self.history = RequestHistory()
        """The requests of the last minutes, by `clock`, for the page."""
        self._clock = clock
        self.registry = CollectorRegistry()
        self._triton = _Triton()
        self.registry.register(self._triton)
        self.registry.register(_Present(node, intake))
        self._requests = Counter(
            "edgepart_requests", "Inference requests by outcome", ["model", "outcome"], registry=self.registry
        )
        self._replays = Counter(
            "edgepart_replays", "Requests run again after a loss", ["model"], registry=self.registry
        )
        self._seconds = Histogram(
            "edgepart_request_seconds",
            "From arrival to answer",
            ["model"],
            buckets=_BUCKETS_S,
            registry=self.registry,
        )

    def answered(self, model: str, result: InferResult) -> None:
        self._requests.labels(model, "answered").inc()
        self._replays.labels(model).inc(result.replays)
        self._seconds.labels(model).observe(result.seconds)
        self.history.answered(model, self._clock(), result.seconds, result.queue_s, result.replays)
        tally = self._triton.of(model, result.version)
        tally.success += 1
        tally.rows += result.rows
        tally.runs += result.runs
        tally.request_us += result.seconds * 1e6
        tally.queue_us += result.queue_s * 1e6
        tally.compute_us += (result.seconds - result.queue_s) * 1e6

    def failed(self, model: str, kind: str, version: str) -> None:
        """Count a failed request. `kind` is the name of the error's class. Call this for existing deployments only: names
        that clients make up must not become labels."""
        self._requests.labels(model, kind).inc()
        self.history.failed(model, self._clock(), kind)
        self._triton.of(model, version).failure += 1

    def text(self) -> bytes:
        return generate_latest(self.registry)
