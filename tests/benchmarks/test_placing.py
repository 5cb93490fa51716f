"""The comparison of placers runs, keeps what it measured, and writes its tables."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.placing_report import BEGIN, END, better, page, ratios, rewritten, saving, sentences
from benchmarks.placing_scale import faults
from benchmarks.placing_trial import Case, Cell, Limits, Trial

from benchmarks import placing
from edgepart.planner.errors import InternalError

ROOT = Path(__file__).parents[2]

CELL = Cell("gpt-330M", "inter-server", "original", "moirai", 1.0, 10, 2.0, 1.8, 1.0, 3.0, 4.0, 5)


def cells(*several: Cell) -> dict[tuple[str, str, str, str], Cell]:
    return {cell.key: cell for cell in several}


def test_it_measures_each_cell_once_and_writes_the_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, document = tmp_path / "placing.json", tmp_path / "placing.md"
    document.write_text(f"before\n{BEGIN}\nstale figures\n{END}\nafter\n")
    asked = ["--quick", "--settings", "inter-server", "--placers", "single", "heft", "--json", str(kept)]
    assert placing.main([*asked, "--docs", str(document)]) == 0
    found = json.loads(kept.read_text())["cells"]
    assert len(found) == 3 * 2 * 2
    assert not any(cell["violations"] for cell in found)
    by_key = placing.read(kept)
    for cell in by_key.values():
        assert cell.makespan_s is not None and cell.as_run_s is not None
        assert cell.as_run_s <= cell.makespan_s or cell.placer != "single"
    written = document.read_text()
    assert written.startswith(f"before\n{BEGIN}\n") and written.endswith(f"{END}\nafter\n")
    assert "gpt-tiny" in written and "stale" not in written
    capsys.readouterr()
    assert placing.main(asked) == 0
    assert "MiB)" not in capsys.readouterr().err  # Nothing was measured again.


def test_a_placer_that_is_late_is_killed_and_tried_again() -> None:
    trial = Trial(Case("gpt-tiny", "inter-server", "original"))
    (cell,) = trial.cells(["heft"], Limits(1.0, 0.0, 8 << 30))
    assert cell.failed and "killed" in cell.why and cell.makespan_s is None
    known = cells(cell)
    assert placing.jobs([trial.case], ["heft"], known, 1.0, 1.0)
    assert not placing.jobs([trial.case], ["heft"], cells(replace(cell, failed=False)), 1.0, 1.0)


def test_where_nothing_fits_the_cell_says_so() -> None:
    (cell,) = Trial(Case("gpt-13B", "inter-server", "original")).cells(
        ["single"], Limits(1.0, 600.0, 8 << 30)
    )
    assert cell.makespan_s is None and not cell.failed and "lacks" in cell.why


def test_moirai_s_cell_is_sound_and_has_a_bound() -> None:
    pytest.importorskip("ortools")
    trial = Trial(Case("gpt-tiny", "intra-server", "coarsened"))
    heft, ours = trial.cells(["heft", "moirai"], Limits(1.0, 600.0, 8 << 30))
    assert not ours.failed and not ours.violations
    assert heft.makespan_s and ours.makespan_s and ours.bound_s
    assert ours.bound_s <= ours.makespan_s <= heft.makespan_s


def test_moirai_is_measured_after_the_others_and_alone() -> None:
    case = Case("gpt-tiny", "inter-server", "original")
    todo = placing.jobs([case], ["moirai", "heft", "m-etf"], {}, 2.0, 1.0)
    assert [(names, limits.budget_s) for _, names, limits in todo] == [
        (("heft", "m-etf"), 2.0),
        (("moirai",), 1.0),
    ]


def test_ratios_and_savings() -> None:
    found = cells(
        CELL,
        replace(CELL, placer="m-sct", makespan_s=3.0),
        replace(CELL, placer="getf", makespan_s=None),
        replace(CELL, graph="coarsened", makespan_s=1.71),
        replace(CELL, graph="coarsened", placer="m-sct", makespan_s=1.7),
    )
    assert ratios(found, "m-sct", "inter-server", "original") == {"gpt-330M": 1.5}
    assert ratios(found, "getf", "inter-server", "original") == {}
    assert saving(found, "inter-server") == pytest.approx({"gpt-330M": 0.05})
    assert better(found) == [
        "gpt-330M, inter-server, coarsened: m-sct's schedule takes 0.9942 times as long as moirai's"
    ]
    said = list(sentences(found))
    assert "up to 1.50 times as long as moirai (gpt-330M)" in said[0] and said[0].endswith("up to 1.77.")
    assert "5.0%" in page(found, "a machine") and "| 50.0% |" in page(found, "a machine")


def test_the_document_has_room_for_figures() -> None:
    assert rewritten((ROOT / "docs" / "placing.md").read_text(), "figures").count("figures") > 1
    with pytest.raises(InternalError, match="has 0 places"):
        rewritten("nothing", "figures")


def test_scale_s_limits() -> None:
    ours = replace(CELL, setting="two inter-server", search_s=121.0)
    theirs = replace(ours, placer="m-etf", makespan_s=1.9, search_cpu_s=61.0, search_s=1.0)
    late = replace(ours, placer="metis", failed=True, makespan_s=None, why="killed after 1 s")
    assert [fault.partition(":")[0] for fault in faults(cells(ours, theirs, late))] == [
        "gpt-330M, moirai takes 121 s, 4 CPU s and 0.0 GB",
        "gpt-330M, m-etf takes 1 s, 61 CPU s and 0.0 GB",
        "gpt-330M, metis",
        "gpt-330M",
    ]
