"""Garbage collection: keeps Python's collector from looking through what stays. Door: the interpreter's collector."""

from __future__ import annotations

import gc

THRESHOLD_YOUNG, MIDDLE, OLD = 100_000, 200, 100
"""The collector's thresholds: the number of new objects, less those freed, before it looks at the youngest generation; and
for either older generation, the number of collections of the next younger one before its own."""


def collect_rarely() -> None:
    """Look for cycles seldom from now on, and never among the objects that exist already.

    A search makes millions of small records that have no cycles and stay until it ends. With Python's own thresholds they
    would all be looked through again and again, which is up to a third of the time that planning takes. The price is some
    megabytes of garbage that stay longer.
    """
    gc.freeze()
    gc.set_threshold(THRESHOLD_YOUNG, MIDDLE, OLD)


def collect_nothing() -> None:
    """Look for no cycles until `collect_from_now_on`: a start makes hundreds of thousands of objects, nearly all of which
    stay, and would look through them again and again."""
    gc.disable()


def collect_from_now_on() -> None:
    """Look for cycles now, and then as usual, but never again among the objects that exist already."""
    gc.collect()
    gc.freeze()
    gc.enable()
