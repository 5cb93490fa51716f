"""Remeasuring: measures this device again once what is kept of it is old, while nothing is computed. Door: the clock, and
the age of a file.

A start takes over what an earlier one measured, so that the agent serves at once. A box may change meanwhile (its cooling,
its clock, its other programs), and a first measurement may have been disturbed: such a one counts as old at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from edgepart.agent.measure.probe_process import age_s, measure_again
from edgepart.planner.devices.cluster import Device
from edgepart.planner.errors import Unavailable

OLD_S = 24 * 3600.0
"""Age from which on a measurement is made again. Measuring takes all cores for some seconds, so it should be seldom."""
DISTURBED_S = 300.0
"""Seconds after which a measurement that was disturbed is made again, once the device is quiet."""
LOOK_S = 10.0
"""Seconds between two looks whether anything is computed."""
QUIET_LOOKS = 6
"""How many looks in a row must find nothing before the device is measured."""

log = logging.getLogger(__name__)


class Remeasurement:
    """Measures one device again and again, a day apart or more."""

    def __init__(
        self,
        device: Device,
        kept: Path,
        made_with: str,
        is_quiet: Callable[[], bool],
        measured: Callable[[Device], None],
    ) -> None:
        """`kept` is the file that keeps measurements by the software `made_with`. `is_quiet` says whether nothing was
        computed since it was last asked; `measured` is told what was found."""
        self._device = device
        self._kept = kept
        self._made_with = made_with
        self._is_quiet = is_quiet
        self._measured = measured

    async def run(self) -> None:
        """Measure until cancelled."""
        wait_s = OLD_S - age_s(self._kept, time.time())
        while True:
            await asyncio.sleep(max(0.0, wait_s))
            looks = 0
            while looks < QUIET_LOOKS:
                await asyncio.sleep(LOOK_S)
                looks = looks + 1 if self._is_quiet() else 0
            wait_s = OLD_S
            try:
                found = await asyncio.to_thread(measure_again, self._device, self._kept, self._made_with)
            except Unavailable as error:
                log.warning("what was measured before counts on: %s", error)
            else:
                self._device = found.device
                log.info("this device was measured again: %.3g FLOP/s", self._device.flops_per_s)
                self._measured(self._device)
                wait_s = DISTURBED_S if found.is_disturbed else OLD_S
