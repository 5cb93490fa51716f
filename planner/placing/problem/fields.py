"""Fields of a workload file: what is under a key, or a ModelError that names the place. Rules only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgepart.planner.errors import ModelError

LEAST, MOST = 1e-30, 1e30
"""The smallest and the largest number other than 0: with others, sums become infinite."""


def known_number(name: str, numbers: Mapping[str, int], where: str, what: str) -> int:
    if name not in numbers:
        raise ModelError(f"{where}: there is no {what} {name!r:.80}")
    return numbers[name]


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ModelError(f"{where}: expected an object, found {type(value).__name__}")
    return value


def listed(root: Mapping[str, Any], key: str, where: str) -> list[Any]:
    if not isinstance(root.get(key), list):
        raise ModelError(f"{where}: expected a list under {key!r}")
    return list(root[key])


def text(entry: Mapping[str, Any], key: str, where: str, default: str | None = None) -> str:
    value = entry.get(key, default)
    if not isinstance(value, str) or not (value or default == ""):
        raise ModelError(f"{where}: expected a text under {key!r}, found {value!r:.40}")
    return value


def truth(entry: Mapping[str, Any], key: str, where: str, *, default: bool) -> bool:
    value = entry.get(key, default)
    if not isinstance(value, bool):
        raise ModelError(f"{where}: expected true or false under {key!r}, found {value!r:.40}")
    return value


def number(entry: Mapping[str, Any], key: str, where: str, default: float | None = None) -> float:
    """Return the number under `key`: 0, or from LEAST to MOST. Raises ModelError if it is missing without a
    default, negative, not finite, or not a number."""
    value = entry.get(key, default)
    if key not in entry and default is not None:
        return default
    good = isinstance(value, int | float) and not isinstance(value, bool)
    # Written so that the comparison is false for NaN.
    if not good or value is None or not (value == 0 or LEAST <= value <= MOST):
        said = "nothing" if key not in entry else f"{value!r:.40}"
        raise ModelError(f"{where}: expected a number of 0 or more under {key!r:.80}, found {said}")
    return float(value)
