"""A device is measured again when what is kept is old and nothing is computed; what fails changes nothing."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from edgepart.agent.measure import remeasuring
from edgepart.agent.measure.probe_process import Probed
from edgepart.agent.measure.remeasuring import DISTURBED_S, OLD_S, QUIET_LOOKS, Remeasurement
from edgepart.planner.devices.cluster import Device
from edgepart.planner.errors import Unavailable

DEVICE = Device("box", "kind", 1e9, 1e9, 1e9)


def measured(
    kept: Path, monkeypatch: pytest.MonkeyPatch, quiet: list[bool], found: list[Device | None]
) -> list[Device]:
    """What was told until there was nothing more in `found`, of which None is a probe that fails. `quiet` is emptied by the
    looks, and true afterwards."""
    told: list[Device] = []
    ended = asyncio.Event()
    ended_in: asyncio.AbstractEventLoop

    def measure_again(known: Device, path: Path, made_with: str) -> Probed:
        assert path == kept and made_with == "1" and not quiet
        if not found:
            ended_in.call_soon_threadsafe(ended.set)
            return Probed(known, 0.0)
        device = found.pop(0)
        if device is None:
            raise Unavailable("no")
        return Probed(device, 0.0)

    async def main() -> None:
        nonlocal ended_in
        ended_in = asyncio.get_running_loop()
        made = Remeasurement(DEVICE, kept, "1", lambda: quiet.pop(0) if quiet else True, told.append)
        task = asyncio.create_task(made.run())
        await ended.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    monkeypatch.setattr(remeasuring, "measure_again", measure_again)
    monkeypatch.setattr(remeasuring, "LOOK_S", 0.0)
    monkeypatch.setattr(remeasuring, "OLD_S", 0.0)
    asyncio.run(main())
    return told


def test_it_waits_until_nothing_is_computed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slower = replace(DEVICE, flops_per_s=5e8)
    busy = [True] * (QUIET_LOOKS - 1) + [False] + [True] * QUIET_LOOKS
    assert measured(tmp_path / "none", monkeypatch, busy, [slower, None, DEVICE])[:2] == [slower, DEVICE]


def test_what_is_new_is_not_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept, slept = tmp_path / "measured.json", []
    kept.write_text("{}")

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "sleep", sleep)
    for age_s in (0.0, OLD_S / 2, OLD_S, 3 * OLD_S):
        os.utime(kept, (time.time() - age_s,) * 2)
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(Remeasurement(DEVICE, kept, "1", lambda: True, lambda _: None).run())
    assert slept == pytest.approx([OLD_S, OLD_S / 2, 0.0, 0.0], abs=600.0)


@pytest.mark.parametrize(("share", "wait_s"), [(0.1, OLD_S), (0.5, DISTURBED_S)])
def test_what_was_disturbed_again_is_measured_again_soon(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, share: float, wait_s: float
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) > 1 + QUIET_LOOKS:
            raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(remeasuring, "measure_again", lambda *_: Probed(DEVICE, share))
    told: list[Device] = []
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(Remeasurement(DEVICE, tmp_path / "none", "1", lambda: True, told.append).run())
    assert told == [DEVICE] and slept[-1] == wait_s
