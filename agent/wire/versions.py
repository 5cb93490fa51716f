"""Versions: decides which agents understand each other. Rules: no door.

An agent's version is its release and, after a plus, the features that it understands: `0.3.1+traces.leaves.drains`. Members
whose releases are one minor release apart work together; messages of a feature are sent only to members that understand it.
"""

from __future__ import annotations

import re

_RELEASE = re.compile(r"(\d{1,6})(?:\.(\d{1,6}))?(?!\d)")


def release(version: str) -> tuple[int, int] | None:
    """The major and minor release of a version; None if it names no release.

    >>> release("0.3.1+traces"), release("2"), release("soon")
    ((0, 3), (2, 0), None)
    """
    found = _RELEASE.match(version)
    return (int(found[1]), int(found[2] or 0)) if found else None


def understands(version: str, feature: str) -> bool:
    """Whether an agent of this version understands the feature.

    >>> understands("1.2+traces.drains", "drains"), understands("1.2+traces", "drains"), understands("1.2", "drains")
    (True, False, False)
    """
    return feature in version.partition("+")[2].split(".")


def refusal(mine: str, theirs: str) -> str:
    """Return why two agents of these versions cannot be in one cluster; "" if they can. Both agents reach the same verdict.

    >>> refusal("0.3.1", "0.4.0"), refusal("0.3.1", "0.3.9+new"), refusal("0.3.1", "")
    ('', '', '')
    >>> refusal("0.3.1", "0.5.0")
    'it runs 0.5.0 and this device 0.3.1: they may be one minor release apart, no more; update this device'
    """
    ours, other = release(mine), release(theirs)
    if (
        ours is None or other is None
    ):  # A version without a release cannot be compared; the agent's messages are checked anyway.
        return ""
    if ours[0] == other[0] and abs(ours[1] - other[1]) <= 1:
        return ""
    behind = "it" if other < ours else "this device"
    apart = "they may be one minor release apart, no more"
    return f"it runs {bare(theirs)} and this device {bare(mine)}: {apart}; update {behind}"


def bare(version: str) -> str:
    """The release of a version, without its features.

    >>> bare("0.3.1+traces")
    '0.3.1'
    """
    return version.partition("+")[0]
