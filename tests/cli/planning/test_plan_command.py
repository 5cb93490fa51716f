"""`edgepart plan` as a person types it, mounted on an application of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from edgepart.cli import verification
from edgepart.cli.planning import comparison
from edgepart.cli.planning.plan_command import plan
from edgepart.cli.planning.plan_inputs import bytes_option, shape_option
from edgepart.planner.errors import Infeasible, ModelError, UsageError
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.plans.plan import Plan
from edgepart.planner.strategies.registry import MODULES
from tests.planner.small_models import residual

CLUSTER: dict[str, Any] = {
    "devices": [
        {"name": f"pi-{n}", "kind": "k", "flops_per_s": 2e6, "memory_bytes_per_s": 1e6, "memory_bytes": 1e9}
        for n in "abc"
    ],
    "default_link": {"bytes_per_s": 1e8, "latency_s": 1e-4},
}


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    model, cluster = tmp_path / "model.onnx", tmp_path / "cluster.json"
    model.write_bytes(residual())
    cluster.write_text(json.dumps(CLUSTER))
    return str(model), str(cluster)


def run(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(plan)
    return CliRunner().invoke(app, list(arguments))


def test_json_is_one_document_with_what_the_design_promises(files: tuple[str, str]) -> None:
    result = run(files[0], "--cluster", files[1], "--json", "--budget", "1")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert {"strategy", "predicted_latency_s", "predicted_throughput_per_s", "search_s", "devices", "syncs",
            "baselines", "why"} <= set(document)  # fmt: skip
    assert document["baselines"]["single"]["predicted_latency_s"] > document["predicted_latency_s"] > 0
    assert len(document["devices"]) == 3 and document["syncs"] > 0
    for row in document["devices"].values():
        assert {"compute_s", "sent_bytes", "received_bytes", "weight_bytes", "peak_memory_bytes",
                "segments"} <= set(row)  # fmt: skip
        assert any("height" in part for part in row["layers"].values())


@pytest.mark.nightly
def test_a_plan_for_this_machine_is_measured_on_it(files: tuple[str, str]) -> None:
    result = run(files[0], "--verify", "--json", "--budget", "1")
    assert result.exit_code == 0, result.output
    verified = json.loads(result.stdout)["verified"]
    (device,) = verified["devices"].values()
    assert 0 < device["measured_compute_s"] <= verified["measured_latency_s"]
    assert verified["off"] == pytest.approx(
        verified["predicted_latency_s"] / verified["measured_latency_s"] - 1, abs=1e-3
    )
    assert "a request alone" in run(files[0], "--verify", "--budget", "1").stdout


def test_each_plan_of_a_comparison_is_measured_and_equal_plans_once(
    files: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Plan] = []

    def verify(
        problem: Problem, plan: Plan, predicted_s: float, compute_s: Mapping[str, float]
    ) -> dict[str, Any]:
        asked.append(plan)
        return verification.comparison(predicted_s, 2 * predicted_s, {}, 1)

    monkeypatch.setattr(comparison, "verify_here", verify)
    one = {**CLUSTER, "devices": CLUSTER["devices"][:1]}
    Path(files[1]).write_text(json.dumps(one))
    options = (files[0], "--cluster", files[1], "--compare", "--verify", "--budget", "0.2")
    result = run(*options, "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["strategies"]
    feasible = {name: row for name, row in rows.items() if row["feasible"]}
    assert len(feasible) > 1
    for row in feasible.values():
        assert row["verified"]["predicted_latency_s"] == pytest.approx(row["predicted_latency_s"])
        assert row["verified"]["off"] == -0.5
    assert len(asked) == len({plan.structure for plan in asked}) < len(feasible)
    text = run(*options).stdout
    assert "measured" in text and "-50.0 %" in text
    assert "measured" not in run(*options[:4], *options[5:]).stdout


def test_a_comparison_that_cannot_be_measured_is_refused_before_the_search(
    files: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "_study", lambda problem: pytest.fail("it searches"))
    several = run(files[0], "--cluster", files[1], "--compare", "--verify", "--budget", "1")
    assert isinstance(several.exception, UsageError) and "that a file describes" in str(several.exception)
    deployed = run("photos", "--compare", "--verify")
    assert isinstance(deployed.exception, UsageError) and "leave --compare out" in str(deployed.exception)


def test_what_cannot_be_measured_from_here_is_said(files: tuple[str, str]) -> None:
    result = run(files[0], "--cluster", files[1], "--verify", "--budget", "1")
    assert isinstance(result.exception, UsageError)
    assert "--verify" in str(result.exception)


def test_compare_puts_every_strategy_side_by_side(files: tuple[str, str]) -> None:
    result = run(files[0], "--cluster", files[1], "--compare", "--json", "--budget", "1")
    rows = json.loads(result.stdout)["strategies"]
    assert tuple(rows) == MODULES
    assert rows["auto"]["predicted_latency_s"] <= rows["single"]["predicted_latency_s"]
    text = run(files[0], "--cluster", files[1], "--compare", "--budget", "1").stdout
    assert "bbgrap" in text and "ms" in text


def test_throughput_is_shown_and_stages_answer_more_requests(files: tuple[str, str]) -> None:
    wanted = ("--cluster", files[1], "--budget", "1", "--objective", "throughput")
    rows = json.loads(run(files[0], *wanted, "--compare", "--json").stdout)["strategies"]
    rates = {name: row["predicted_throughput_per_s"] for name, row in rows.items() if row["feasible"]}
    assert set(MODULES) - set(rates) == {"placeto", "gdp"}  # They need a network of the user's.
    assert rates["auto"] >= rates["pipeline"] > 1.5 * rates["single"]
    text = run(files[0], *wanted).stdout
    assert f"{rates['auto']:.4g} requests/s with many in flight" in text
    assert "x as many requests as" in " ".join(text.split())


def test_people_see_a_table_and_one_sentence_and_all_reasons_on_request(files: tuple[str, str]) -> None:
    wanted = (files[0], "--cluster", files[1], "--strategy", "bbgrap")
    first, *more = json.loads(run(*wanted, "--json").stdout)["why"].splitlines()
    brief, full = (" ".join(run(*wanted, *given).stdout.split()) for given in ((), ("--why",)))
    assert first in brief and first in full
    assert more and not any(line in brief for line in more) and all(line in full for line in more)


def test_html_draws_everybody(files: tuple[str, str], tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    result = run(files[0], "--cluster", files[1], "--strategy", "bbgrap", "--html", str(page))
    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert text.startswith("<!doctype html>") and "<script" not in text and "http" not in text
    assert all(f"pi-{n}" in text for n in "abc")
    assert "pi-b to pi-a" in text or "pi-b to pi-c" in text
    assert "height 8:16" in text


def test_devices_and_limits_are_kept_to(files: tuple[str, str]) -> None:
    result = run(files[0], "--cluster", files[1], "--devices", "pi-b,pi-c", "--json", "--budget", "1")
    assert set(json.loads(result.stdout)["devices"]) == {"pi-b", "pi-c"}
    result = run(files[0], "--cluster", files[1], "--memory-limit", "10K")
    assert isinstance(result.exception, Infeasible)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["--strategy", "magic"], UsageError, "magic"),
        (["--axis", "diagonal"], UsageError, "diagonal"),
        (["--devices", "pi-z"], UsageError, "pi-z"),
        (["--gateway", "pi-z"], UsageError, "pi-z"),
        (["--shape", "x"], UsageError, "--shape"),
        (["--shape", "x=1,3"], UserWarning, ""),
        (["--memory-limit", "much"], UsageError, "much"),
        (["--memory-limit", "pi-z=1G"], UsageError, "pi-z"),
        (["--budget", "0"], UsageError, "--search-budget"),
        (["--compare", "--html", "x.html"], UsageError, "--compare"),
    ],
)
def test_wrong_options_are_refused(
    files: tuple[str, str], arguments: list[str], error: type[Exception], message: str
) -> None:
    result = run(files[0], "--cluster", files[1], *arguments)
    if error is UserWarning:  # Whose fault it is depends on the model: the loader says which.
        assert isinstance(result.exception, UsageError | ModelError)
    else:
        assert isinstance(result.exception, error) and message in str(result.exception)


def test_wrong_files_are_refused(files: tuple[str, str], tmp_path: Path) -> None:
    assert isinstance(run("nowhere.onnx", "--cluster", files[1]).exception, UsageError)
    assert isinstance(run(files[0], "--cluster", "nowhere.json").exception, UsageError)
    broken = tmp_path / "broken.json"
    for text in ("{", "[]", '{"devices": []}', '{"devices": [{"name": "a"}]}'):
        broken.write_text(text)
        assert isinstance(run(files[0], "--cluster", str(broken)).exception, UsageError), text
    broken.write_bytes(b"\xff\xfe\x00")
    assert isinstance(run(files[0], "--cluster", str(broken)).exception, UsageError)
    assert isinstance(run(str(broken), "--cluster", files[1]).exception, ModelError)


def test_sizes_and_shapes_are_read() -> None:
    assert bytes_option("512M") == 512 * 2**20
    assert bytes_option("100") == 100
    assert shape_option("a=b=1,2") == ("a=b", (1, 2))
    assert shape_option("scalar=") == ("scalar", ())
