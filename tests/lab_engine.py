"""An engine that does not exist (cli/emulation/lab_engine.py), for the processes that a test starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgepart.cli.emulation import lab_engine, sitecustomize

LAB = "lab"


def lab_environment(text: str) -> dict[str, str]:
    """The environment of processes that have the engine `text`."""
    here = str(Path(sitecustomize.__file__).parent)
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")])),
        lab_engine.VARIABLE: text,
    }


def give_lab_engine(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Give the engine to all processes that are started from now on."""
    for name, value in lab_environment(text).items():
        monkeypatch.setenv(name, value)
