"""Refused: the row of a strategy that found no plan, in the documents and tables of `edgepart plan`. Rules only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgepart.planner.errors import Infeasible, NotInstalled


def refused_row(error: Infeasible | NotInstalled) -> dict[str, Any]:
    """The row as a document. `proven` says whether nothing can fit."""
    row = {"feasible": False, "why": str(error)}
    if isinstance(error, NotInstalled):
        return row | {"installed": False}
    return row | {"short_bytes": error.short_bytes, "proven": error.proven}


def in_short(row: Mapping[str, Any]) -> str:
    """A few words for a table.

    >>> in_short({"installed": False}), in_short({"proven": True}), in_short({"proven": False})
    ('not installed', 'does not fit', 'none found')
    """
    if not row.get("installed", True):
        return "not installed"
    return "does not fit" if row["proven"] else "none found"
