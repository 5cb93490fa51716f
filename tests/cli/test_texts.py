"""Laws over all that people read: brackets are no markup, figures have no exponents, and members are called by names."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text
from typer import Context
from typer.main import get_command

import edgepart
from edgepart.agent.cluster.membership.roster import replace_node_ids
from edgepart.agent.wire.inference import NODE_BITS, Epoch
from edgepart.cli import output
from edgepart.cli.main import app
from edgepart.planner.figures import format_bytes, format_figure, format_seconds

SOURCES = [
    path
    for room in ("agent", "cli", "planner")
    for path in sorted((Path(edgepart.__file__).parent / room).resolve().rglob("*.py"))
]
ROUNDS = re.compile(r":\.\dg\}")
"""A format that falls back to exponents."""
MAY_ROUND = {"figures.py": 9, "tensors.py": 1}
"""Files, and how many times: the one place that rounds for people, and the elements of an answer, of any size."""


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_only_one_place_rounds_and_one_makes_consoles(path: Path) -> None:
    text = path.read_text()
    assert len(ROUNDS.findall(text)) <= MAY_ROUND.get(path.name, 0), "use planner/figures.py"
    if path.name != "output.py":
        assert "Console(" not in text.replace('Console("', ""), (
            "use cli/output.py's console: it knows no markup"
        )
    assert "from_markup" not in text


@given(st.floats(min_value=1e-9, max_value=1e15))
def test_figures_have_no_exponents_and_keep_their_digits(value: float) -> None:
    assert float(format_figure(value)) == pytest.approx(value, rel=5e-3)
    for text in (format_figure(value), format_seconds(value), format_bytes(value)):
        assert re.fullmatch(r"[0-9.]+( ?[a-zA-Z]+)?", text), text


@given(st.text(st.sampled_from("[]/ab=#@: 'exact"), max_size=40))
def test_brackets_are_printed_as_they_are(text: str) -> None:
    out = output.console()
    out.file = io.StringIO()
    out.print(text)
    out.print(output.table(("a",), [(text,)]))
    assert out.file.getvalue().startswith(text + "\n")


@pytest.mark.parametrize(("columns", "lines"), [(None, 3), ("40", 8)])
def test_a_table_in_a_pipe_is_not_folded_unless_it_is_asked_for(
    columns: str | None, lines: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """rich takes 80 columns for whatever is no terminal, and breaks words of the table."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    output.console().print(output.table(["member", "note"], [("pi-a", 40 * "0123")]))
    assert len(capfd.readouterr().out.splitlines()) == lines


def test_a_hint_keeps_its_brackets(capfd: pytest.CaptureFixture[str]) -> None:
    output.say("pip install 'edgepart[exact]'")
    output.note("pip install 'edgepart[exact]'")
    printed = capfd.readouterr()
    assert "edgepart[exact]" in printed.out
    assert "edgepart[exact]" in printed.err


def commands(group: Any) -> list[Any]:
    found = [group.get_command(Context(group), name) for name in group.list_commands(Context(group))]
    return [
        each
        for command in found
        for each in (commands(command) if hasattr(command, "commands") else [command])
    ]


def test_help_loses_nothing_to_markup() -> None:
    for command in commands(get_command(app)):
        for option in command.params:
            text = getattr(option, "help", None) or ""
            assert Text.from_markup(text).plain == text, (command.name, option.name)


NODES = st.text("0123456789abcdef", min_size=16, max_size=16)


def test_an_epoch_is_read_as_a_term_and_a_number() -> None:
    epoch = Epoch(2 << NODE_BITS | 7, 5)
    assert f"{epoch}" == str(epoch) == "2.5"


@given(st.dictionaries(NODES, st.sampled_from(["pi-a", "pi-b", "nas"]), max_size=3), NODES)
def test_members_are_called_by_their_names(names: dict[str, str], stranger: str) -> None:
    for node, name in names.items():
        assert (
            replace_node_ids(f"node {node}: its link ended, {node}/x", names)
            == f"node {name}: its link ended, {name}/x"
        )
    if stranger not in names:
        assert replace_node_ids(stranger, names) == stranger
    digest = "0" * 64
    assert replace_node_ids(digest, names) == digest
