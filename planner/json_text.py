"""Documents: JSON as it comes from files and from others. Rules only."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """ValueError for what is no JSON, and for what is nested so deeply that Python gives up.

    >>> parse_json("[1, 2]")
    [1, 2]
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
