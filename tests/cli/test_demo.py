"""What people see of the demo, without the cluster behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgepart.cli import demo_chat
from edgepart.cli.demo import Story
from edgepart.cli.demo_chat import find_hindrance


def test_a_heading_has_its_words_and_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    Story(as_json=False).chapter("edgepart deploy net.onnx --shape x=[1,3]")
    shown = capsys.readouterr().out
    assert "edgepart deploy net.onnx --shape x=[1,3] (0 s)" in shown
    assert "[bold]" not in shown and "[/]" not in shown


def test_without_a_model_or_the_packages_the_chat_is_left_out_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--chat FOLDER" in find_hindrance(None)
    assert f"no folder {tmp_path / 'nowhere'}" in find_hindrance(tmp_path / "nowhere")
    assert find_hindrance(tmp_path) == ""
    monkeypatch.setattr(demo_chat, "PACKAGES", ("jinja2", "a_package_that_nobody_has"))
    assert "pip install 'edgepart[text]'" in find_hindrance(tmp_path)
