"""What a text in Prometheus' format must be: as `promtool check metrics` has it, and some rules of our own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from edgepart.agent.wire.control import ALIVE, DEAD, DRAIN_STATES, FLAPPING, LEAVING, LEFT, SUSPECT

UNITS_NOT_OURS = (
    "milliseconds",
    "microseconds",
    "ms",
    "us",
    "minutes",
    "hours",
    "kilobytes",
    "kb",
    "mb",
    "percent",
)
TRITON = "nv_inference_"
"""Triton's own names break rules of Prometheus: they are kept as its dashboards know them."""
LABELS = {"model", "outcome", "state", "device", "peer", "version", "python", "onnxruntime", "le"}
"""The labels that there are. Another one needs a reason why its values are few, and stay few."""
STATES = {ALIVE, SUSPECT, LEAVING, LEFT, DEAD, FLAPPING, *DRAIN_STATES, "under_way", "idle"}
SUFFIXES = ("_bucket", "_sum", "_count")


def families(text: str) -> list[Metric]:
    return list(text_string_to_metric_families(text))


def names(text: str) -> set[str]:
    """The names that a query may use: those of samples, and of families that have none now."""
    found = set()
    for kind, name in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        found |= {f"{kind}{end}" for end in SUFFIXES} if name == "histogram" else {kind}
    return found


def broken_rules(text: str, models: Collection[str], devices: Collection[str]) -> Iterator[str]:
    """What is wrong with the text of an agent that has these deployments and members."""
    for keyword in ("HELP", "TYPE"):
        counts = Counter(re.findall(rf"^# {keyword} (\S+) \S", text, re.MULTILINE))
        yield from (f"{name} has {n} lines of {keyword}" for name, n in counts.items() if n > 1)
        seen = set(re.findall(r"^(?!#)(\w+)", text, re.MULTILINE))
        bases = {name.removesuffix(end) for name in seen for end in ("", *SUFFIXES)} & counts.keys()
        for name in seen:
            if not {name, *(name.removesuffix(end) for end in SUFFIXES)} & bases:
                yield f"{name} has no {keyword}"
    series = Counter(re.findall(r"^(?!#)(\S+) ", text, re.MULTILINE))
    yield from (f"{name} is there {n} times" for name, n in series.items() if n > 1)
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        yield from _naming(name, kind)
    values = {"model": set(models), "device": set(devices), "peer": set(devices), "state": STATES}
    for family in families(text):
        for sample in family.samples:
            if strange := sample.labels.keys() - LABELS:
                yield f"{sample.name} has the labels {sorted(strange)}"
            for label, allowed in values.items():
                if label in sample.labels and sample.labels[label] not in allowed:
                    yield f"{sample.name}: nothing here is {label} {sample.labels[label]!r}"


def _naming(name: str, kind: str) -> Iterator[str]:
    if kind not in ("counter", "gauge", "histogram"):
        yield f"{name} is {kind}"
    if name.startswith(TRITON):
        if kind != "counter" or name.endswith("_total"):
            yield f"{name}: Triton has a counter of that name"
        return
    if not re.fullmatch(r"edgepart(_[a-z0-9]+)+", name):
        yield f"{name} is no name of ours"
    if (kind == "counter") != name.endswith("_total"):
        yield f"{name} is a {kind}; counters, and nothing else, end in _total"
    if kind != "histogram" and name.endswith(SUFFIXES):
        yield f"{name} ends like the samples of a histogram"
    for word in name.removesuffix("_total").split("_"):
        if word in UNITS_NOT_OURS:
            yield f"{name}: seconds, bytes and ratios are the units, not {word}"
