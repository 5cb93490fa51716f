"""Figures for people: a number becomes text with a few significant digits, a unit, and never an exponent. Pure functions.

No other module rounds for people; output for programs has all digits."""

from __future__ import annotations

import math
from decimal import Decimal


def figure(value: float, digits: int = 3) -> str:
    """`value` with `digits` significant digits; "-" if it is infinite or NaN.

    >>> figure(14_812.3), figure(0.0000123), figure(999.7), figure(2.0)
    ('14800', '0.0000123', '1000', '2')
    """
    return format(Decimal(f"{value:.{digits}g}"), "f") if math.isfinite(value) else "-"


def seconds(value: float | None, digits: int = 3) -> str:
    """A duration in ms below one second, else in s; "-" for None, infinity and NaN.

    >>> seconds(0.00042), seconds(0.0421), seconds(14.8123), seconds(None), seconds(0.9997), seconds(1234.5)
    ('0.42 ms', '42.1 ms', '14.8 s', '-', '1 s', '1234 s')
    """
    if value is None or not math.isfinite(value):
        return "-"
    if float(f"{value:.{digits}g}") < 1:
        return f"{figure(value * 1e3, digits)} ms"
    return f"{figure(value, digits)} s" if value < 100 else f"{value:.0f} s"


def nbytes(value: float | None) -> str:
    """A number of bytes with a decimal unit, B to TB; "-" for None, infinity and NaN.

    >>> nbytes(999), nbytes(1_170_000), nbytes(3.5e9), nbytes(999_900)
    ('999 B', '1.17 MB', '3.5 GB', '1 MB')
    """
    if value is None or not math.isfinite(value):
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if float(f"{value:.3g}") < 1000:
            return f"{figure(value)} {unit}"
        value /= 1000
    return f"{figure(value)} TB"
