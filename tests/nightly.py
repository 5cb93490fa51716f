"""Parameters of slow cases, which repeat a quick test with other values: `make test-all` runs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def nightly(*values: Any) -> Sequence[Any]:
    """Return the values as parameters that only `make test-all` tries."""
    return [pytest.param(value, marks=pytest.mark.nightly) for value in values]
