"""What people see of the demo, without the cluster behind it."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from edgepart.cli.demo import chat_scene
from edgepart.cli.demo.chat_scene import find_hindrance
from edgepart.cli.demo.command import show_page, slow_box
from edgepart.cli.demo.story import Speed, Story
from edgepart.cli.emulation import sitecustomize
from edgepart.cli.main import main


def test_a_heading_has_its_words_and_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    Story(as_json=False).chapter("edgepart deploy net.onnx --shape x=[1,3]")
    shown = capsys.readouterr().out
    assert "edgepart deploy net.onnx --shape x=[1,3] (0 s)" in shown
    assert "[bold]" not in shown and "[/]" not in shown


def test_a_long_heading_is_not_cut_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    command = f"edgepart deploy detector.onnx --name find-text --shape x={'1,' * 20}3 --devices attic,desk"
    Story(as_json=False).chapter(command)
    shown = " ".join(capsys.readouterr().out.split())
    assert shown == f"{command} (0 s)"


def test_the_table_of_speeds_says_how_much_sooner_more_boxes_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    speeds = [Speed(1, ("attic",), 1.2, 1.1), Speed(2, ("attic", "desk"), 0.6, 0.58)]
    Story(as_json=False).speeds(speeds)
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split()[:3] == ["boxes", "computed", "by"]
    assert shown[2].split() == ["1", "attic", "1.2", "s", "1.1", "s", "1.00x"]
    assert shown[3].split() == ["2", "attic,", "desk", "600", "ms", "580", "ms", "2.00x"]


def test_a_slow_box_is_told_how_slow_it_is_and_finds_what_its_user_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    env = slow_box(8.0)
    folder, mine = env["PYTHONPATH"].split(os.pathsep)
    assert (Path(folder) / "sitecustomize.py").is_file() and mine == "/mine"
    assert sitecustomize.factor_of(env[sitecustomize.VARIABLE]) == 8.0


@pytest.mark.parametrize("there", [True, False])
def test_the_page_is_opened_or_said_to_be_opened_by_hand(
    there: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def open_url(url: str) -> bool:
        opened.append(url)
        return there

    monkeypatch.setattr("webbrowser.open", open_url)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    show_page(Story(as_json=False), "http://127.0.0.1:8433")
    shown = capsys.readouterr().out
    assert opened == ["http://127.0.0.1:8433"] and opened[0] in shown
    assert ("open the page by hand" in shown) == (not there)


@pytest.mark.parametrize("given", [("--boxes", "1"), ("--boxes", "9"), ("--slow", "0.5")])
def test_boxes_that_cannot_be_emulated_are_refused(
    given: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["demo", *given])
    assert ended.value.code == 2 and given[0] in capsys.readouterr().err


def test_without_a_model_or_the_packages_the_chat_is_left_out_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--chat FOLDER" in find_hindrance(None)
    assert f"no folder {tmp_path / 'nowhere'}" in find_hindrance(tmp_path / "nowhere")
    assert find_hindrance(tmp_path) == ""
    monkeypatch.setattr(chat_scene, "PACKAGES", ("jinja2", "a_package_that_nobody_has"))
    assert "pip install 'edgepart[text]'" in find_hindrance(tmp_path)
