"""What people see of the demo, without the cluster behind it."""

from __future__ import annotations

import pytest

from edgepart.cli.demo import Story


def test_a_heading_has_its_words_and_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    Story(as_json=False).chapter("edgepart deploy net.onnx --shape x=[1,3]")
    shown = capsys.readouterr().out
    assert "edgepart deploy net.onnx --shape x=[1,3] (0 s)" in shown
    assert "[bold]" not in shown and "[/]" not in shown
