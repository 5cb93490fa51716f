"""Figures for people: a number becomes text with a few significant digits, a unit, and never an exponent. Pure functions.

No other module rounds for people; output for programs has all digits."""

from __future__ import annotations

import math
from decimal import Decimal


def format_figure(value: float, digits: int = 3) -> str:
    """`value` with `digits` significant digits; "-" if it is infinite or NaN.

    >>> format_figure(14_812.3), format_figure(0.0000123), format_figure(999.7), format_figure(2.0)
    ('14800', '0.0000123', '1000', '2')
    """
    return format(Decimal(f"{value:.{digits}g}"), "f") if math.isfinite(value) else "-"


def format_seconds(value: float | None, digits: int = 3) -> str:
    """A duration in ms below one second, else in s; "-" for None, infinity and NaN.

    >>> format_seconds(0.00042), format_seconds(0.0421), format_seconds(14.8123)
    ('0.42 ms', '42.1 ms', '14.8 s')
    >>> format_seconds(None), format_seconds(0.9997), format_seconds(1234.5)
    ('-', '1 s', '1234 s')
    """
    if value is None or not math.isfinite(value):
        return "-"
    if float(f"{value:.{digits}g}") < 1:
        return f"{format_figure(value * 1e3, digits)} ms"
    return f"{format_figure(value, digits)} s" if value < 100 else f"{value:.0f} s"


def format_bytes(value: float | None) -> str:
    """A number of bytes with a decimal unit, B to TB; "-" for None, infinity and NaN.

    >>> format_bytes(999), format_bytes(1_170_000), format_bytes(3.5e9), format_bytes(999_900)
    ('999 B', '1.17 MB', '3.5 GB', '1 MB')
    """
    if value is None or not math.isfinite(value):
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if float(f"{value:.3g}") < 1000:
            return f"{format_figure(value)} {unit}"
        value /= 1000
    return f"{format_figure(value)} TB"


def format_count(number: int, thing: str) -> str:
    """A number of things, whose name is in the singular and has a plural with "s".

    >>> format_count(1, "device"), format_count(0, "device"), format_count(12_000, "step")
    ('1 device', '0 devices', '12,000 steps')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
