"""A minute of chaos: the client's agent killed, another box cut off, while requests keep coming. What must hold is looked
at, not how long it took."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.chaos import Settings, run

pytestmark = pytest.mark.processes

STOOD_STILL_S = 5.0
"""When the machine itself stands still for longer, what happens on it says nothing of the cluster."""


def test_a_minute_of_chaos_loses_nothing_answers_rightly_and_leaves_no_ghost(
    possible: None, tmp_path: Path
) -> None:
    settings = Settings(
        model="squeezenet",
        seconds=46,
        seed=4,
        kinds=("kill", "cut"),
        hosts=3,
        slow=2,
        disk="512M",
        options=("--compiled", "64M"),
    )
    assert [one.kind for one in settings.incidents] == ["kill", "cut off"]
    found = run(settings, tmp_path / "report", print)
    if found.stood_still_s > STOOD_STILL_S and not found.fine:
        pytest.skip(f"the machine stood still for {found.stood_still_s:.0f} s")
    assert (found.lost, found.wrong, found.ghosts, found.troubles) == (0, 0, (), ()), found.errors
    assert found.answered == found.sent > 50
    assert [row.kind for row in found.rows] == ["kill", "cut off"]
