"""`edgepart plan MODEL --add --remove --sweep` as a person types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgepart.planner.errors import UsageError
from tests.cli.planning.test_plan_command import files, run

__all__ = ["files"]


def test_variants_stand_beside_the_cluster_as_it_is(files: tuple[str, str]) -> None:
    options = ("--add", "kind=pi5,link=1Gbit/s,name=new", "--remove", "pi-c", "--sweep", "links=10M,1G")
    result = run(files[0], "--cluster", files[1], *options, "--json", "--budget", "1")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    rows = {(row["variant"], row["links_bits_per_s"]): row for row in document["variants"]}
    assert len(rows) == len(document["variants"]) == 8
    first, more = rows["as it is", None], rows["+ new (pi5)", None]
    assert set(more["devices"]) == {*first["devices"], "new"}
    # The boards of this cluster are very slow.
    assert more["predicted_latency_s"] < 0.1 * first["predicted_latency_s"]
    assert more["predicted_throughput_per_s"] > 10 * first["predicted_throughput_per_s"]
    assert rows["- pi-c", None]["predicted_latency_s"] > first["predicted_latency_s"]
    assert rows["as it is", 1e7]["predicted_latency_s"] > rows["as it is", 1e9]["predicted_latency_s"]
    assert "https://" in document["kinds"]["pi5"]


def test_people_see_a_table_with_sources(files: tuple[str, str]) -> None:
    text = run(
        files[0], "--cluster", files[1], "--add", "kind=n100", "--add", "kind=k", "--budget", "1"
    ).stdout
    assert "as it is" in text and "+ n100-1" in text and "Linpack" in text
    assert "as measured in this cluster" in text


def test_what_does_not_fit_is_a_row(files: tuple[str, str], tmp_path: Path) -> None:
    document = json.loads(Path(files[1]).read_text())
    for device in document["devices"]:
        device["memory_bytes"] = 1000
    small = tmp_path / "small.json"
    small.write_text(json.dumps(document))
    result = run(files[0], "--cluster", str(small), "--add", "kind=n100", "--json", "--budget", "1")
    one, other = json.loads(result.stdout)["variants"]
    assert not one["feasible"] and one["short_bytes"] and other["feasible"]


@pytest.mark.parametrize("option", ["--compare", "--verify"])
def test_what_goes_not_together_is_said(files: tuple[str, str], option: str) -> None:
    result = run(files[0], "--cluster", files[1], "--remove", "pi-c", option)
    assert isinstance(result.exception, UsageError)
