"""Node metrics: the present state of an agent, its deployments and its cluster, read anew for each answer. Rules over the
documents of a Node; no door.

Families exist even while they have no samples, so that queries and dashboards can be checked against them. Labels are
names of deployments, of members and of states only: each has as many values as the cluster has of these now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from platform import python_version
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from edgepart.agent.api.model_card import ModelCard
from edgepart.agent.api.protocol import Node
from edgepart.agent.gateway.candidate_metrics import collect_candidates
from edgepart.agent.gateway.cluster_metrics import collect_devices, collect_links
from edgepart.agent.gateway.intake import Intake


def gauge(name: str, text: str, value: float) -> Metric:
    """A gauge without labels."""
    return GaugeMetricFamily(f"edgepart_{name}", text, value=float(value))


def counter(name: str, text: str, value: float) -> Metric:
    """A counter without labels; `_total` is appended to its name."""
    return CounterMetricFamily(f"edgepart_{name}", text, value=float(value))


@dataclass(eq=False)
class NodeMetrics(Collector):
    """Collects the state of the node."""

    node: Node
    intake: Intake

    def collect(self) -> Iterator[Metric]:
        status, cards = self.node.status(), self.node.models()
        yield _build(self.node.version)
        yield from self._agent(status)
        yield from _disk(status.get("disk") or {})
        yield from _deployments(cards)
        yield from collect_candidates(cards)
        yield from _counts(cards, status)
        yield from _sequences(cards, status.get("sequences") or {})
        devices = self.node.devices()
        yield from collect_devices(devices, status)
        yield from collect_links(self.node.name, devices, status)

    def _agent(self, status: Mapping[str, Any]) -> Iterator[Metric]:
        members = GaugeMetricFamily("edgepart_members", "Members that this agent knows of", labels=["state"])
        states = Counter(str(member.get("state")) for member in status.get("members", ()))
        for state, count in sorted(states.items()):
            members.add_metric([state], count)
        yield members
        yield gauge("is_leader", "1 while this agent leads", status.get("leader") == self.node.name)
        yield gauge("term", "The term of the present leadership", status.get("term") or 0)
        yield counter(
            "requests_computed",
            "Requests of which this device has computed its part",
            status.get("computed") or 0,
        )
        yield gauge("requests_in_flight", "Requests that are being served here", self.intake.places.taken)
        yield gauge(
            "request_bytes_held", "Memory that the bodies of requests in flight hold", self.intake.held_bytes
        )
        own = [m for m in status.get("members", ()) if m.get("name") == self.node.name]
        text = (
            "Share of the time that this agent's threads could run and waited for a CPU; 0 while it is small"
        )
        share = next((m["starved"]["share"] for m in own if m.get("starved")), 0.0)
        yield gauge("cpu_wait_ratio", text, share)


def _build(own: str) -> Metric:
    found = {"version": own, "python": python_version(), "onnxruntime": version("onnxruntime")}
    return InfoMetricFamily("edgepart_build", "What runs here; the value is always 1", value=found)


def _disk(disk: Mapping[str, Any]) -> Iterator[Metric]:
    if not disk:
        return
    yield gauge("disk_free_bytes", "Free space on the disk of the state directory", disk["free_bytes"])
    text = "1 while that disk is full, or state files cannot be written"
    yield gauge("disk_trouble", text, bool(disk["trouble"]))
    yield counter("files_damaged", "Files that were found damaged since the start", len(disk["damaged"]))


def _counts(cards: Sequence[ModelCard], status: Mapping[str, Any]) -> Iterator[Metric]:
    """Counters of present deployments. A name that is not deployed any more ends its series: else names that users gave
    over the years would stay for ever."""
    present = {card.name for card in cards}
    for name, text in (
        ("workers_ended", "Processes that computed here and ended unexpectedly"),
        (
            "plans_refused",
            "Plans that were tried and refused, because their answers differ from the model's; reported by the leader",
        ),
    ):
        family = CounterMetricFamily(f"edgepart_{name}", text, labels=["model"])
        for model, count in sorted((status.get(name) or {}).items()):
            if model in present:
                family.add_metric([model], float(count))
        yield family


def _deployments(cards: Sequence[ModelCard]) -> Iterator[Metric]:
    aside, serving, versions, terms, epochs, predicted, bindings = (
        GaugeMetricFamily(f"edgepart_{name}", text, labels=["model"])
        for name, text in (
            ("deployment_set_aside", "1 where the model ends the processes that compute it"),
            ("deployment_serving", "1 while a plan is active"),
            ("model_version", "Number of the model's version that answers"),
            ("epoch_term", "Term of the leader that made the active plan"),
            ("epoch_number", "Number of the active plan within that term"),
            ("predicted_latency_seconds", "Latency of one request that the plan predicts"),
            ("bindings", "Input shapes that have a plan here, including the first one"),
        )
    )
    for card in cards:
        aside.add_metric([card.name], float(card.set_aside))
        serving.add_metric([card.name], float(card.state == "serving"))
        versions.add_metric([card.name], float(card.version))
        if card.epoch is not None:
            terms.add_metric([card.name], card.epoch.term)
            epochs.add_metric([card.name], card.epoch.number)
        if card.predicted_latency_s is not None:
            predicted.add_metric([card.name], card.predicted_latency_s)
        if card.bindings:
            serve = sum(bound.epoch is not None for bound in card.bindings)
            bindings.add_metric([card.name], float(serve))
    yield from (aside, serving, versions, terms, epochs, predicted, bindings)


_SEQUENCE_GAUGES = (
    ("sequences_kept", "Sequences whose states this device keeps", "kept"),
    ("state_bytes", "Memory that these states take", "bytes"),
    (
        "mirrored_state_bytes",
        "Memory that copies of other devices' states take at most",
        "mirrored_bytes",
    ),
)
_SEQUENCE_COUNTERS = (
    ("sequences_evicted", "Sequences whose states were dropped to make room for others", "evictions"),
    (
        "sequence_replays",
        "How often steps of this agent's clients were made again as their states were lost",
        "replays",
    ),
    ("sequence_batches", "Requests of this agent that read a token in each of several texts", "batches"),
    (
        "sequences_resumed",
        "How often a text of this agent's clients went on with states that devices had from others",
        "resumed",
    ),
)
"""The name of each metric, its help, and its key in `sequences` of the status."""


def _sequences(cards: Iterable[ModelCard], here: Mapping[str, int]) -> Iterator[Metric]:
    """The sequences of this gateway's clients, and the states that this device keeps for any gateway."""
    counts = GaugeMetricFamily(
        "edgepart_sequences", "Sequences of clients of this agent", labels=["model", "state"]
    )
    for card in cards:
        if card.sequences is not None:
            counts.add_metric([card.name, "under_way"], card.sequences.under_way)
            counts.add_metric([card.name, "idle"], card.sequences.idle)
    yield counts
    if here:
        yield from (gauge(name, text, here[key]) for name, text, key in _SEQUENCE_GAUGES)
        yield from (counter(name, text, here[key]) for name, text, key in _SEQUENCE_COUNTERS)
