"""Fields of JSON documents that describe devices, links and what can be bought: each is checked as it is read. Pure rules.

`where` is the place in the document, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgepart.planner.errors import UsageError

SMALLEST_FIGURE, LARGEST_FIGURE = 1e-30, 1e30
"""Bounds for figures of devices and links: a figure outside them is not a measurement, and would make results infinite."""


def mapping_at(value: Any, where: str) -> Mapping[str, Any]:
    """The object. Raises UsageError for anything else."""
    if not isinstance(value, Mapping):
        raise UsageError(f"{where}: expected an object, found {type(value).__name__}")
    return value


def list_at(root: Mapping[str, Any], key: str, where: str) -> list[Any]:
    """The list under `key`. Raises UsageError if there is none."""
    if not isinstance(root.get(key), list):
        raise UsageError(f"{where}: expected a list under {key!r}")
    return list(root[key])


def text_at(entry: Mapping[str, Any], key: str, where: str) -> str:
    """The text under `key`. Raises UsageError if there is none, or an empty one."""
    if not isinstance(entry.get(key), str) or not entry[key]:
        raise UsageError(f"{where}: expected a name under {key!r}")
    return str(entry[key])


def positive_at(
    entry: Mapping[str, Any], key: str, where: str, *, default: float | None = None, or_zero: bool = False
) -> float:
    """The number under `key`, or `default`. Raises UsageError unless it is positive (or 0, if `or_zero`) and within the
    bounds for figures."""
    value = entry.get(key, default)
    good = isinstance(value, int | float) and not isinstance(value, bool)
    # A negated comparison, because it rejects NaN as well.
    if (
        not good
        or value is None
        or not (SMALLEST_FIGURE <= value <= LARGEST_FIGURE or (value == 0 and or_zero))
    ):
        raise UsageError(f"{where}: expected a positive number under {key!r}, found {str(value)[:40]}")
    return float(value)
