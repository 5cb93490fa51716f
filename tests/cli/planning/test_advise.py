"""`edgepart plan MODEL --advise` as a person types it, with the planner as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgepart.planner.errors import UsageError
from tests.cli.planning.test_plan_command import CLUSTER, files, run

__all__ = ["files"]

OFFERS = [
    {"what": "box", "name": "another board", "price_eur": 50, "dated": "2026-02", "source": "the drawer", "kind": "k",
     "memory_bytes": 4e9, "bytes_per_s": 1e8, "latency_s": 1e-4},
    {"what": "box", "name": "a mini PC", "price_eur": 140, "dated": "2026-02", "source": "a shop", "kind": "n100",
     "memory_bytes": 8e9, "bytes_per_s": 1e8, "latency_s": 1e-4},
    {"what": "network", "name": "a switch", "price_eur": 25, "each_eur": 5, "dated": "2026-02", "source": "a shop",
     "bytes_per_s": 1e8, "latency_s": 1e-4},
    {"what": "memory", "name": "a module", "price_eur": 30, "dated": "2026-02", "source": "a shop", "kinds": ["k"],
     "memory_bytes": 16e9},
]  # fmt: skip


@pytest.fixture
def offers(tmp_path: Path) -> str:
    path = tmp_path / "offers.json"
    path.write_text(json.dumps({"schema": "edgepart-catalogue/1", "offers": OFFERS}))
    return str(path)


def advice(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--advise", "--budget", "0.1", "--json")
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_what_helps_is_ranked_and_the_rest_has_reasons(
    files: tuple[str, str], offers: str, objective: str
) -> None:
    given = ("--cluster", files[1], "--catalogue", offers, "--objective", objective, "--spend", "150")
    found = advice(files[0], *given)
    key = "predicted_latency_s" if objective == "latency" else "predicted_throughput_per_s"
    rows = {row["buy"]: row for row in found["offers"]}
    # The boards of this cluster are very slow.
    mini = rows["a mini PC"]
    assert mini["helps"] and mini["times"] > 10 and "n100-1" in mini["devices"]
    assert mini["gain_per_100_eur"] == pytest.approx(100 * (mini["times"] - 1) / 140)
    assert mini["joins_bits_per_s"] == 8e8 and "Linpack" in mini["speed_source"]
    assert rows["another board"]["speed_source"] == "as measured in this cluster"
    assert rows["a switch"]["why_not"] == "all links are as fast already"
    modules = [row for name, row in rows.items() if name.startswith("a module for pi-")]
    assert len(modules) == 3 and all("not what takes the time" in row["why_not"] for row in modules)
    assert found["together"]["buy"] == ["a mini PC"] and found["together"]["price_eur"] == 140
    for row in [*found["offers"], found["together"]]:
        assert row[key] <= found["today"][key] if objective == "latency" else row[key] >= found["today"][key]


def test_people_see_the_order_the_reasons_and_that_prices_change(files: tuple[str, str], offers: str) -> None:
    given = ("--cluster", files[1], "--catalogue", offers, "--advise", "--budget", "0.1", "--spend", "20")
    text = run(files[0], *given).stdout
    assert text.index("a mini PC") < text.index("Would not help:") < text.index("a switch (40 EUR)")
    assert "they change" in text and "For 20 EUR nothing" in text and "Linpack" not in text
    assert "Linpack" in run(files[0], *given, "--why").stdout


def test_where_nothing_fits_what_would_fit_helps(files: tuple[str, str], offers: str, tmp_path: Path) -> None:
    small = tmp_path / "small.json"
    devices = [
        {**device, "memory_bytes": 1000} for device in json.loads(Path(files[1]).read_text())["devices"]
    ]
    small.write_text(json.dumps(CLUSTER | {"devices": devices}))
    found = advice(files[0], "--cluster", str(small), "--catalogue", offers)
    assert found["today"]["predicted_latency_s"] is None and found["together"] is None
    helpful = {row["buy"]: row for row in found["offers"] if row["helps"]}
    assert "a mini PC" in helpful and "a module for pi-a" in helpful
    assert all(row["times"] is None and row["predicted_latency_s"] > 0 for row in helpful.values())


@pytest.mark.parametrize(
    "options",
    [
        ("--advise", "--compare"),
        ("--advise", "--add", "kind=pi5"),
        ("--spend", "100"),
        ("--catalogue", "offers.json"),
        ("--advise", "--spend", "0"),
        ("--advise", "--catalogue", "nowhere.json"),
    ],
)
def test_what_goes_not_together_is_said(files: tuple[str, str], options: tuple[str, ...]) -> None:
    result = run(files[0], "--cluster", files[1], *options)
    assert isinstance(result.exception, UsageError)
    assert options[-1] in str(result.exception) or options[-2] in str(result.exception)


def test_a_catalogue_that_is_no_json_is_named(files: tuple[str, str], tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{")
    result = run(files[0], "--cluster", files[1], "--advise", "--catalogue", str(wrong))
    assert isinstance(result.exception, UsageError) and "is not JSON" in str(result.exception)


def test_a_workload_has_no_boxes_to_buy(tmp_path: Path) -> None:
    workload = tmp_path / "w.json"
    workload.write_text(
        json.dumps(
            {
                "schema": "edgepart-workload/1",
                "devices": [{"name": "a", "kind": "k", "memory_bytes": 1}],
                "nodes": [{"id": "x", "op": "x", "compute_s": {"a": 1}, "memory_bytes": 0}],
                "edges": [],
                "default_link": {"bytes_per_s": 1, "latency_s": 0},
            }
        )
    )
    result = run(str(workload), "--advise")
    assert isinstance(result.exception, UsageError) and "--advise" in str(result.exception)
