"""Waiting for what nobody announces."""

from __future__ import annotations

import time
from collections.abc import Callable

BOUND_S = 60.0
"""The longest that anything here takes, on a machine with much else to do."""


def eventually(condition: Callable[[], object], bound_s: float = BOUND_S) -> None:
    """Wait until the condition holds; fail after `bound_s`."""
    deadline = time.monotonic() + bound_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
