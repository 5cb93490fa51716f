"""A process that plans leaves alone what is there, and looks for garbage seldom; it still looks."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc
from edgepart.agent.garbage import collect_seldom

before = gc.get_threshold()
collect_seldom()
assert gc.isenabled() and gc.get_freeze_count() > 0
assert gc.get_threshold()[0] > before[0]
rounds = gc.get_stats()[0]["collections"]
kept = []
for _ in range(3 * gc.get_threshold()[0]):
    kept.append([])
assert gc.get_stats()[0]["collections"] > rounds
"""


def test_garbage_is_looked_for_seldom() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)
