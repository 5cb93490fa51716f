"""The names that deployments may have. Rules, without I/O."""

from __future__ import annotations

import re

from edgepart.planner.errors import UsageError


def check_name(name: str) -> str:
    """Check a deployment's name, which is part of URLs and of metric labels, and return it. Raises UsageError
    if the name does not fit there."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", name):
        raise UsageError(
            f"deployment name {name[:200]!r}: up to 128 letters, digits, '.', '_', '-'; a letter or digit first"
        )
    return name
