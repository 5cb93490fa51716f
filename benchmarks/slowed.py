"""The environment that makes an agent on this machine a slow device, without a laboratory: no root, and links as loopback
has them (tests/lab/slow says how)."""

from __future__ import annotations

import os
from pathlib import Path

SLOW = Path(__file__).resolve().parents[1] / "tests" / "lab" / "slow"


def slow_environment(factor: float) -> dict[str, str]:
    """`factor`: times as slow as this machine."""
    paths = (str(SLOW), os.environ.get("PYTHONPATH", ""))
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "EDGEPART_LAB_SLOW": str(factor)}
