"""OR-tools: an optional extra of the package, imported only when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from edgepart.planner.errors import NotInstalled


def cp_model() -> Any:
    """Return `ortools.sat.python.cp_model` (CP-SAT). Raises NotInstalled without OR-tools."""
    return _module("ortools.sat.python.cp_model")


def model_builder() -> Any:
    """Return `ortools.linear_solver.python.model_builder`, for linear and mixed-integer programs ("HIGHS",
    "GLOP", "PDLP"). Raises NotInstalled without OR-tools."""
    return _module("ortools.linear_solver.python.model_builder")


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise NotInstalled(
            "this placer needs OR-tools, which is not installed: pip install 'edgepart[exact]'"
        ) from error
