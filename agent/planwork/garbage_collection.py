"""Garbage: how often Python looks for it in a process that plans. Door: the interpreter's collector."""

from __future__ import annotations

import gc

YOUNG, MIDDLE, OLD = 100_000, 200, 100
"""Records made beyond those given up until the youngest are looked at, and looks at each age until one at the next."""


def collect_seldom() -> None:
    """From now on, look for cycles seldom, and never again among what is there already.

    A search makes millions of small records that have no cycles and stay until it ends: by Python's own measure they
    would all be looked through again and again, which is up to a third of the time that planning takes. In the price are
    some megabytes of what is given up in between."""
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
