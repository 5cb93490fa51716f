"""Cases that take long and try again, with other values, what a quick one tries: `make test-all` has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def nightly(*values: Any) -> Sequence[Any]:
    """The values as parameters that only `make test-all` tries."""
    return [pytest.param(value, marks=pytest.mark.nightly) for value in values]
