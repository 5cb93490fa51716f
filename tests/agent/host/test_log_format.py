"""The log: one line for each record in both forms, of the agent and of its children."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.host.log_format import FORMATS, JsonFormatter, LogSettings, TextFormatter

LOGGING = """
import logging, sys, warnings
from edgepart.agent.host.child_process import start_child
from edgepart.agent.host.log_format import LogSettings
from tests.agent.host.test_log_format import work

if __name__ == "__main__":
    LogSettings(logging.INFO, sys.argv[1]).apply()
    process, pipe = start_child(work, name="edgepart-plan")
    pipe.recv()
    process.join()
    try:
        raise ValueError("bad")
    except ValueError:
        logging.getLogger("parent").exception("it failed")
    warnings.warn("old")
    raise KeyError("the end")
"""


def work(pipe: Connection[Any, Any]) -> None:
    logging.getLogger("child").warning("two\nlines")
    pipe.send(1)


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("edgepart.x", logging.INFO, __file__, 1, "%s", (text,), None)


@given(st.text())
def test_a_record_is_one_line_whatever_is_in_it(text: str) -> None:
    line = JsonFormatter("agent").format(record(text))
    assert json.loads(line)["message"] == text and len(line.splitlines()) == 1
    assert len(TextFormatter({}).format(record(text)).splitlines()) == 1


@pytest.mark.parametrize("form", FORMATS)
def test_children_write_the_same_form(form: str, tmp_path: pytest.TempPathFactory) -> None:
    program = f"{tmp_path}/logs.py"
    with open(program, "w") as file:
        file.write(LOGGING)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, program, form], capture_output=True, text=True, timeout=60, env=environment
    )
    lines = done.stderr.splitlines()
    if form == "json":
        child, failed, warned, end = map(json.loads, lines)
        assert (child["process"], child["logger"], child["level"]) == ("plan", "child", "warning")
        assert child["message"] == "two\nlines" and child["pid"] != failed["pid"]
        assert failed["process"] == "agent" and failed["traceback"].endswith("ValueError: bad")
        assert "UserWarning: old" in warned["message"]
        assert end["level"] == "critical" and "KeyError" in end["traceback"]
    else:
        child, failed, *trace = lines
        assert child.endswith("WARNING child: two\\nlines") and failed.endswith("ERROR parent: it failed")
        assert trace[0] == "    Traceback (most recent call last):"


def test_the_journal_has_the_time_itself() -> None:
    assert TextFormatter({"JOURNAL_STREAM": "8:1"}).format(record("up")) == "INFO edgepart.x: up"


@pytest.mark.parametrize("form", FORMATS)
def test_a_warning_before_the_log_is_set_up_has_the_form(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = list(logging.getLogger().handlers)
    LogSettings(form=form).warn("AES is slow")
    told = capsys.readouterr().err
    assert told.endswith("WARNING edgepart: AES is slow\n") or json.loads(told)["message"] == "AES is slow"
    assert told.startswith("{") is (form == "json") and logging.getLogger().handlers == before
