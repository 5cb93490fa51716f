"""OR-tools, when somebody asks for it: an extra of the package, imported only by what needs it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from edgepart.planner.errors import NotInstalled


def cp_model() -> Any:
    """`ortools.sat.python.cp_model`: CP-SAT. NotInstalled where it is not."""
    return _module("ortools.sat.python.cp_model")


def model_builder() -> Any:
    """`ortools.linear_solver.python.model_builder`: linear and mixed-integer programs ("HIGHS", "GLOP", "PDLP").
    NotInstalled where it is not."""
    return _module("ortools.linear_solver.python.model_builder")


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise NotInstalled(
            "this placer needs OR-tools, which is not installed: pip install 'edgepart[exact]'"
        ) from error
