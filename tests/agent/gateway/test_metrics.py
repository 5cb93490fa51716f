"""/metrics: the rules of Prometheus hold, whatever there is to show, and series end with what they are about."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from edgepart.agent.api.inference_request import InferResult
from edgepart.agent.api.model_card import BindingStatus, SequenceFigures
from edgepart.agent.gateway.intake import Intake
from edgepart.agent.gateway.limits import BodyLimits
from edgepart.agent.gateway.metrics import Metrics
from edgepart.agent.http.text_metrics import TextMetrics
from edgepart.agent.text.generation import Ended
from edgepart.agent.wire.inference import Epoch
from tests.agent.gateway.exposition import broken_rules, families, names
from tests.agent.http.fakes import FakeNode

DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana.json"
OPERATIONS = Path(__file__).parents[3] / "docs" / "operations.md"
RESULT = InferResult({}, Epoch(3, 1), seconds=0.25, replays=1, queue_s=0.05)
DEVICES = ("pi-a", "pi-b", "pi-c")


class FullNode(FakeNode):
    """A node that has something to tell of everything."""

    def models(self) -> list[Any]:
        cards = list(super().models())
        figures = SequenceFigures(1, 2, 4, {"pi-a": 3_000_000}, 20.74)
        bound = (BindingStatus({"x": (1, 3)}, "serving", Epoch(3, 1)),)
        return [replace(card, sequences=figures, bindings=bound) for card in cards]

    def status(self) -> dict[str, Any]:
        known = super().status()
        starved = {"starved": {"share": 0.5, "lasting": False}}
        return known | {
            "members": [known["members"][0] | starved],
            "computed": 7,
            "disk": {"free_bytes": 1e9, "trouble": "", "damaged": ["deployments.json"]},
            "workers_ended": {"add": 1, "long-gone": 2},
            "plans_refused": {"add": 1},
            "sequences": dict.fromkeys(
                ("kept", "bytes", "evictions", "replays", "batches", "resumed", "mirrored_bytes"), 1
            ),
            "traffic": {"pi-b": {"sent_bytes": 10, "received_bytes": 20}},
            "drifts": {card.name: {"pi-a": 1.5, "pi-b": 1.0} for card in self.models()},
        }

    def devices(self) -> dict[str, Any]:
        speeds = {"flops_per_s": 1e10, "memory_bytes_per_s": 2e9, "memory_bytes": 3e9, "threads": 4}
        links = (("pi-a", "pi-b", 1e8), ("pi-c", "pi-a", 2e8), ("pi-b", "pi-c", 3e8))
        return {
            "devices": [{"name": name, **speeds} for name in DEVICES],
            "links": [{"a": a, "b": b, "bytes_per_s": speed, "latency_s": 1e-3} for a, b, speed in links],
        }


@pytest.fixture
def node() -> FullNode:
    return FullNode()


@pytest.fixture
def metrics(node: FullNode) -> Metrics:
    made = Metrics(node, Intake(BodyLimits()))
    made.answered("add", RESULT)
    made.failed("add", "RequestError", "1")
    texts = TextMetrics(made)
    texts.ended("add", Ended("stop", 5, 7, 2, 0.2, 20.0, 1, 0.1, ("pi-a",)))
    texts.broken_off("add", "cancelled")
    return made


def rules(metrics: Metrics, node: FakeNode) -> list[str]:
    return list(broken_rules(metrics.text().decode(), [card.name for card in node.models()], DEVICES))


def test_the_rules_of_prometheus_hold(metrics: Metrics, node: FullNode) -> None:
    assert not rules(metrics, node)
    assert len(families(metrics.text().decode())) > 50


def test_they_hold_while_nothing_has_happened() -> None:
    node = FakeNode()
    assert not rules(Metrics(node, Intake(BodyLimits())), node)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("# HELP edgepart_a_total A\n# TYPE edgepart_a_total gauge\n", "counters, and nothing else"),
        ("# HELP edgepart_a A\n# TYPE edgepart_a counter\n", "counters, and nothing else"),
        ("# HELP edgepart_a A\n# TYPE edgepart_a untyped\n", "edgepart_a is untyped"),
        ("# HELP edgepart_a_ms A\n# TYPE edgepart_a_ms gauge\n", "not ms"),
        ("# HELP edgepart_aB A\n# TYPE edgepart_aB gauge\n", "no name of ours"),
        ("# HELP edgepart_a_count A\n# TYPE edgepart_a_count gauge\n", "like the samples of a histogram"),
        ("# HELP nv_inference_count A\n# TYPE nv_inference_count gauge\n", "Triton has a counter"),
        ("edgepart_a 1\n", "edgepart_a has no HELP"),
        ("# HELP edgepart_a A\nedgepart_a 1\n", "edgepart_a has no TYPE"),
        ("# HELP edgepart_a A\n# HELP edgepart_a A\n# TYPE edgepart_a gauge\n", "has 2 lines of HELP"),
        ("# HELP edgepart_a A\n# TYPE edgepart_a gauge\nedgepart_a 1\nedgepart_a 2\n", "is there 2 times"),
        ('# HELP edgepart_a A\n# TYPE edgepart_a gauge\nedgepart_a{term="1"} 1\n', "the labels ['term']"),
        ('# HELP edgepart_a A\n# TYPE edgepart_a gauge\nedgepart_a{model="x"} 1\n', "nothing here is model"),
    ],
)
def test_the_rules_find_what_breaks_them(text: str, fault: str) -> None:
    assert fault in "; ".join(broken_rules(text, ["add"], DEVICES))


def lines(metrics: Metrics) -> list[str]:
    return metrics.text().decode().splitlines()


def test_triton_s_metrics_are_counters_under_its_names(metrics: Metrics) -> None:
    metrics.answered("add", replace(RESULT, rows=8, runs=0))
    found = lines(metrics)
    for name, value in (
        ("request_success", 2.0),
        ("request_failure", 1.0),
        ("count", 9.0),
        ("exec_count", 1.0),
        ("request_duration_us", 500000.0),
        ("queue_duration_us", 100000.0),
        ("compute_infer_duration_us", 400000.0),
    ):
        assert f"# TYPE nv_inference_{name} counter" in found
        assert f'nv_inference_{name}{{model="add",version="1"}} {value}' in found


def test_what_the_agent_knows_of_devices_and_of_its_own_links(metrics: Metrics) -> None:
    found = lines(metrics)
    assert 'edgepart_device_compute_flops{device="pi-c"} 1e+10' in found
    assert 'edgepart_device_drift_ratio{device="pi-a",model="add"} 1.5' in found
    assert 'edgepart_link_sent_bytes_total{peer="pi-b"} 10.0' in found
    assert 'edgepart_link_received_bytes_total{peer="pi-b"} 20.0' in found
    speeds = [line for line in found if line.startswith("edgepart_link_bytes_per_second")]
    assert speeds == [
        'edgepart_link_bytes_per_second{peer="pi-b"} 1e+08',
        'edgepart_link_bytes_per_second{peer="pi-c"} 2e+08',
    ]
    (build,) = [line for line in found if line.startswith("edgepart_build_info")]
    assert f'onnxruntime="{version("onnxruntime")}"' in build and 'version="0.0"' in build


def test_series_end_with_their_deployments_though_nobody_reads_them(metrics: Metrics, node: FullNode) -> None:
    """Each of many deployments is gone when the next one is asked."""
    for number in range(3):
        node.sessions = {f"net-{number}": node.sessions.popitem()[1]}
        metrics.answered(f"net-{number}", RESULT)
    samples = [sample for family in metrics._registry.collect() for sample in family.samples]
    assert {sample.labels["model"] for sample in samples if "model" in sample.labels} == {"net-2"}


def test_series_of_a_deployment_end_with_it(metrics: Metrics, node: FullNode) -> None:
    assert "long-gone" not in metrics.text().decode()
    assert 'edgepart_requests_total{model="add",outcome="answered"} 1.0' in lines(metrics)
    del node.sessions["add"]
    assert 'model="add"' not in metrics.text().decode()
    node.sessions = FullNode().sessions
    metrics.answered("add", RESULT)
    assert 'edgepart_requests_total{model="add",outcome="answered"} 1.0' in lines(metrics)


def _expressions(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (text for key, text in value.items() if key in ("expr", "definition"))
        value = list(value.values())
    if isinstance(value, list):
        for entry in value:
            yield from _expressions(entry)


def test_the_dashboard_asks_for_metrics_that_exist(metrics: Metrics) -> None:
    board = json.loads(DASHBOARD.read_text())
    assert board["title"] == "edgepart" and board["schemaVersion"] >= 36
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)
    asked = {name for text in _expressions(board) for name in re.findall(r"\b(?:edgepart|nv)_\w+", text)}
    assert len(asked) > 15
    assert not asked - names(metrics.text().decode())


def test_the_manual_lists_every_metric(metrics: Metrics) -> None:
    page = OPERATIONS.read_text()
    named = set(re.findall(r"\bedgepart_\w+", page)) | {
        f"nv_inference_{end}" for end in re.findall(r"`(\w+)`", page[page.index("| `nv_inference_*`") :])
    }
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", metrics.text().decode(), re.MULTILINE))
    assert not kinds.keys() - named
    assert not {name for name in named if name.startswith("edgepart_")} - kinds.keys() - {"edgepart_model"}
