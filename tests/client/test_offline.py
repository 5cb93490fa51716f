"""`edgepart.plan`: what it takes, and that it says the same as the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgepart
from edgepart.planner.devices.cluster_json import cluster_from_json
from edgepart.planner.errors import Infeasible, ModelError, UsageError
from tests.agent.http.fakes import add_model

DEVICE = {"kind": "x", "flops_per_s": 1e9, "memory_bytes_per_s": 1e9, "memory_bytes": 1e9, "threads": 1}
DOCUMENT: dict[str, Any] = {"devices": [{"name": "a", **DEVICE}, {"name": "b", **DEVICE}], "gateway": "b"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "add.onnx"
    path.write_bytes(add_model())
    return path


def written(folder: Path) -> Path:
    path = folder / "cluster.json"
    path.write_text(json.dumps(DOCUMENT))
    return path


GIVEN: list[Callable[[Path], Any]] = [
    lambda _: DOCUMENT,
    lambda folder: written(folder),
    lambda folder: str(written(folder)),
    lambda _: cluster_from_json(DOCUMENT),
]


@pytest.mark.parametrize("given", GIVEN)
def test_a_cluster_is_a_document_a_file_or_a_cluster(
    given: Callable[[Path], Any], model: Path, tmp_path: Path
) -> None:
    found = edgepart.plan(model, given(tmp_path), search_budget_s=0.5)
    assert found.latency_s > 0 and found.document["model"] == "add"
    assert found.best_single and found.best_single[0] in ("a", "b")
    assert found.throughput_per_s and found.throughput_per_s > 0
    assert found.why in str(found) and found.plan.programs.keys() <= {"a", "b"}


def test_options_are_those_of_the_command(model: Path) -> None:
    found = edgepart.plan(
        str(model), DOCUMENT, strategy="single", objective="throughput", devices=["a"],
        memory_limit_bytes={"a": 1e8}, shapes={"a": [2, 3]}, search_budget_s=0.5,
    )  # fmt: skip
    assert found.document["strategy"] == "single" and found.best_single and found.best_single[0] == "a"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"strategy": "nothing"}, "strategy"),
        ({"objective": "beauty"}, "objective"),
        ({"axis": "time"}, "time"),
        ({"devices": ["z"]}, "z"),
        ({"search_budget_s": 0}, "search_budget_s"),
        ({"memory_limit_bytes": {"z": 1}}, "no device 'z'"),
        ({"memory_limit_bytes": -1.0}, "positive"),
        ({"transfer_dtype": "int3"}, "transfer_dtype"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], said: str, model: Path) -> None:
    with pytest.raises(UsageError, match=said):
        edgepart.plan(model, DOCUMENT, **options)


def test_what_cannot_be_planned_is_said(model: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(UsageError, match="is not JSON"):
        edgepart.plan(model, tmp_path / "bad.json")
    with pytest.raises(UsageError, match="give the path of a cluster"):
        edgepart.plan(model, tmp_path / "none.json")
    with pytest.raises(UsageError, match="there is no model"):
        edgepart.plan(tmp_path / "none.onnx", DOCUMENT)
    with pytest.raises(ModelError):
        edgepart.plan(tmp_path / "bad.onnx", DOCUMENT)
    with pytest.raises(Infeasible):
        edgepart.plan(model, DOCUMENT, memory_limit_bytes=1.0)
