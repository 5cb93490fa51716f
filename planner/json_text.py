"""Parses JSON text that came from a file or from another process. A pure function."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """The parsed document. Raises ValueError if the text is not JSON, or is nested too deeply for Python's parser.

    >>> parse_json("[1, 2]")
    [1, 2]
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
