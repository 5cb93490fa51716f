"""Cluster metrics: what this agent knows of every device, and of its own links. Rules over documents; no door.

Every agent knows all devices, so that one that is scraped alone shows them all; sums over agents make no sense there. It
shows its own links only: with those of all agents, a cluster of n has each of its n² links once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

_DEVICES = (
    (
        "compute_flops",
        "FLOP per second that the device achieves on convolutions with all its threads",
        "flops_per_s",
    ),
    ("memory_bytes_per_second", "Speed of operators that are bound by memory", "memory_bytes_per_s"),
    ("memory_bytes", "Memory that plans may use on the device", "memory_bytes"),
    ("threads", "Threads that compute on the device", "threads"),
)
"""The name of each gauge, its help, and its key in the document of a device."""


def collect_devices(cluster: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[Metric]:
    """The measured speeds of each device that has a card, and how far from them it computes each deployment now.
    `cluster` is that of Node.devices."""
    for name, text, key in _DEVICES:
        family = GaugeMetricFamily(f"edgepart_device_{name}", text, labels=["device"])
        for device in cluster["devices"]:
            family.add_metric([device["name"]], float(device[key]))
        yield family
    drifts = GaugeMetricFamily(
        "edgepart_device_drift_ratio",
        "Time that the device takes now to compute its part of the deployment, as a multiple of the calibrated time",
        labels=["device", "model"],
    )
    for model, factors in sorted((status.get("drifts") or {}).items()):
        for device, factor in sorted(factors.items()):
            drifts.add_metric([device, model], float(factor))
    yield drifts


def collect_links(own: str, cluster: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[Metric]:
    """The links of the device `own` with each peer: their measured speed and latency, and what went over them."""
    speeds, latencies = (
        GaugeMetricFamily(f"edgepart_link_{name}", text, labels=["peer"])
        for name, text in (
            ("bytes_per_second", "Measured speed of the link to the peer"),
            ("latency_seconds", "Time that a small message takes to the peer"),
        )
    )
    for link in cluster["links"]:
        ends = [link["a"], link["b"]]
        if own in ends:
            ends.remove(own)
            to_peer = "up_bytes_per_s" if own == link["b"] and "up_bytes_per_s" in link else "bytes_per_s"
            speeds.add_metric(ends, float(link[to_peer]))
            latencies.add_metric(ends, float(link["latency_s"]))
    yield from (speeds, latencies)
    sent, received = (
        CounterMetricFamily(f"edgepart_link_{name}_bytes", text, labels=["peer"])
        for name, text in (
            ("sent", "Bytes sent to the peer, before TLS"),
            ("received", "Bytes received from the peer, after TLS"),
        )
    )
    for peer, traffic in sorted((status.get("traffic") or {}).items()):
        sent.add_metric([peer], float(traffic["sent_bytes"]))
        received.add_metric([peer], float(traffic["received_bytes"]))
    yield from (sent, received)
