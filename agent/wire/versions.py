"""Versions: which agents understand each other. Rules: no door.

An agent calls itself by its release and, after a plus, what it understands besides: `0.3.1+traces.leaves.drains`. Members
whose releases are one minor release apart work together; what only one of them understands is not sent to the other.
"""

from __future__ import annotations

import re

_RELEASE = re.compile(r"(\d{1,6})(?:\.(\d{1,6}))?(?!\d)")


def release(version: str) -> tuple[int, int] | None:
    """Major and minor release; None where it names none.

    >>> release("0.3.1+traces"), release("2"), release("soon")
    ((0, 3), (2, 0), None)
    """
    found = _RELEASE.match(version)
    return (int(found[1]), int(found[2] or 0)) if found else None


def understands(version: str, feature: str) -> bool:
    """Whether an agent that calls itself that has said that it understands something.

    >>> understands("1.2+traces.drains", "drains"), understands("1.2+traces", "drains"), understands("1.2", "drains")
    (True, False, False)
    """
    return feature in version.partition("+")[2].split(".")


def refusal(mine: str, theirs: str) -> str:
    """Why two agents of these versions cannot be in one cluster; "" where they can. Of both it is the same answer.

    >>> refusal("0.3.1", "0.4.0"), refusal("0.3.1", "0.3.9+new"), refusal("0.3.1", "")
    ('', '', '')
    >>> refusal("0.3.1", "0.5.0")
    'it runs 0.5.0 and this device 0.3.1: they may be one minor release apart, no more; update this device'
    """
    ours, other = release(mine), release(theirs)
    if (
        ours is None or other is None
    ):  # It says nothing that could be compared: what it sends is checked all the same.
        return ""
    if ours[0] == other[0] and abs(ours[1] - other[1]) <= 1:
        return ""
    behind = "it" if other < ours else "this device"
    apart = "they may be one minor release apart, no more"
    return f"it runs {bare(theirs)} and this device {bare(mine)}: {apart}; update {behind}"


def bare(version: str) -> str:
    """Without what it understands.

    >>> bare("0.3.1+traces")
    '0.3.1'
    """
    return version.partition("+")[0]
