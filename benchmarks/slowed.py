"""The environment that makes an agent on this machine a slow device without a laboratory.

It needs no root, and links are as fast as loopback (tests/lab/slow says how it works).
"""

from __future__ import annotations

import os
from pathlib import Path

SLOW = Path(__file__).resolve().parents[1] / "tests" / "lab" / "slow"


def slow_environment(factor: float) -> dict[str, str]:
    """Return the environment of an agent that is `factor` times as slow as this machine."""
    paths = (str(SLOW), os.environ.get("PYTHONPATH", ""))
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "EDGEPART_LAB_SLOW": str(factor)}
