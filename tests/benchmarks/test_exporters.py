"""Exporters are tried where they are installed. Here is what does not need them: cases, texts of one session, the table."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path

import pytest
from benchmarks.exporters_alone import PlainDecoder
from benchmarks.exporters_cases import ARCHITECTURES, HEAD, VARIANTS, Case, Variant, all_cases
from benchmarks.exporters_making import MAKERS
from benchmarks.exporters_report import Ending, Trial, ending_of, page, sentences, tabled
from benchmarks.generation_bare import BareDecoder
from benchmarks.machine import as_markdown

from benchmarks import exporters
from edgepart.planner.errors import ClusterError
from tests.processes.tiny_language import SIZE, tiny_language, tiny_optimum

EXACT = Variant("optimum", "plain", "as it is", ("llama",))
DAY = date(2026, 1, 2)
ROUNDED = replace(EXACT, name="fp16", exact=False)
EQUAL = Trial(
    "optimum-plain-llama",
    "optimum",
    "plain",
    "llama",
    Ending.EQUAL,
    equal_tokens=80,
    tokens=80,
    in_blocks=True,
    kept_tokens=45,
    devices=("a", "b"),
    version="optimum-onnx 0.1.0",
)
REFUSED = Trial(
    "optimum-plain-gemma",
    "optimum",
    "plain",
    "gemma",
    Ending.REFUSED,
    why="no position_ids",
    version="optimum-onnx 0.1.0",
)
NEAR = replace(
    EQUAL,
    name="genai-int4-llama",
    exporter="genai",
    variant="int4",
    ending=Ending.NEAR,
    equal_tokens=50,
    itself_tokens=48,
)


def test_each_case_has_a_name_of_its_own_and_a_way_to_be_made() -> None:
    names = [case.name for case in all_cases()]
    assert len(set(names)) == len(names)
    assert {case.architecture for case in all_cases()} == set(ARCHITECTURES)
    built = {(one.exporter, one.name) for one in VARIANTS if one.exporter != "genai"}
    assert built == set(MAKERS)


def test_an_exact_text_is_compared_with_transformers_and_another_one_with_one_session() -> None:
    assert ending_of(EXACT, [1, 2], [1, 2], [1, 3], 2) == (Ending.EQUAL, 2)
    assert ending_of(EXACT, [1, 3], [1, 2], [1, 3], 2) == (Ending.AS_ONE_SESSION, 2)
    assert ending_of(EXACT, [1, 4], [1, 2], [1, 3], 1) == (Ending.DIFFERENT, 1)
    assert ending_of(ROUNDED, [1, 3], [1, 2], [1, 3], 2) == (Ending.EQUAL, 2)
    assert ending_of(ROUNDED, [1, 2], [1, 2], [1, 3], 2) == (Ending.DIFFERENT, 1)
    assert ending_of(ROUNDED, [1, 2], [1, 2], [1, 3], 1) == (Ending.NEAR, 1)


def test_the_table_has_a_row_for_each_variant_and_columns_for_what_came_of_any() -> None:
    trials = {one.name: one for one in (EQUAL, REFUSED, NEAR)}
    lines = list(as_markdown(tabled(trials)))
    assert lines[0] == "|  | equal | as far as it rounds | refused by edgepart |"
    assert lines[2] == "| optimum-onnx, as it is | Llama |  | Gemma |"
    near = "Llama (50 of 80 tokens; one session with itself 48)"
    assert lines[3] == f"| onnxruntime-genai, `-p int4` |  | {near} |  |"


def test_sentences_say_what_the_table_does_not() -> None:
    alone = replace(EQUAL, name="optimum-plain-gpt2", in_blocks=False, kept_tokens=0, devices=("a",))
    said = list(sentences([EQUAL, REFUSED, alone]))
    assert said == [
        "optimum-onnx: optimum-onnx 0.1.0.",
        "Not read in blocks: optimum-plain-gpt2.",
        "A second turn read everything again: optimum-plain-gpt2.",
        "Computed by one device: optimum-plain-gpt2.",
        "optimum-plain-gemma: refused by edgepart: no position_ids",
    ]


def test_the_page_has_the_table_and_the_sentences() -> None:
    lines = page({EQUAL.name: EQUAL, REFUSED.name: replace(REFUSED, why="a < b")}, DAY).splitlines()
    assert lines[1] == "Last written on 2026-01-02."
    assert lines[3] == "|  | equal | refused by edgepart |"
    assert lines[-1] == "- optimum-plain-gemma: refused by edgepart: a &lt; b"


@pytest.mark.parametrize("optimum", [True, False])
def test_one_session_says_what_a_loop_with_caches_of_a_fixed_length_does(
    tmp_path: Path, optimum: bool
) -> None:
    assert SIZE == HEAD
    folder = tiny_optimum(tmp_path / "tiny")
    expected = BareDecoder(folder, 64).continued([5, 9, 200], 20).tokens
    if not optimum:  # Of the other style, whose caches are buffers, any text will do that does not end.
        folder = replace(folder, path=tiny_language(tmp_path / "genai"), style="genai")
        expected = BareDecoder(folder, 64).continued([5, 9, 200], 20).tokens
    decoder = PlainDecoder(folder.model, 64)
    for at_once in (0, 1, 2) if optimum else (0, 1):
        assert decoder.continued([5, 9, 200], 20, at_once) == expected


def test_what_went_well_before_is_shown_and_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exporters, "all_cases", lambda: [Case(EXACT, "llama")])
    kept = tmp_path / "trials.json"
    kept.write_text(json.dumps([asdict(EQUAL)]))
    assert exporters.main(["--json", str(kept), "--markdown"]) == 0
    assert "| optimum-onnx, as it is | Llama |" in capsys.readouterr().out


def test_a_fault_is_tried_again_and_told_by_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporters, "all_cases", lambda: [Case(EXACT, "llama")])
    monkeypatch.setattr(
        exporters, "trials_of", lambda cases, *_: [replace(EQUAL, ending=Ending.DIFFERENT) for _ in cases]
    )
    kept = tmp_path / "trials.json"
    for _ in range(2):
        assert exporters.main(["--json", str(kept)]) == 1
        assert json.loads(kept.read_text())[0]["ending"] == "different"


def test_an_unknown_name_and_a_missing_environment_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no case begins so"):
        exporters.main(["--only", "nonsense"])
    with pytest.raises(SystemExit, match=r"run `make exporters`.*--genai"):
        exporters._versions(tmp_path / "bin/python", "genai")


def test_errors_are_told_apart() -> None:
    assert exporters._last_line("Traceback\nerror: no /models/x.onnx\n", Path("/models")) == "no x.onnx"
    assert exporters.CRASHED.search(str(ClusterError("Traceback (most recent call last)")))
