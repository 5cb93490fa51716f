"""Upkeep: what an agent does beside serving to keep its disk in order. Door: the clock, and the store's files.

It deletes what nothing uses, writes what could not be written while the disk was full, and reads once what an earlier life
left, to see whether it is still what it was.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edgepart.agent.cluster.core.core import Core
from edgepart.agent.cluster.state import events
from edgepart.agent.replication.blobs import Fetching
from edgepart.agent.serving.loaded_plans import LoadedPlans
from edgepart.agent.state_files import StateFiles
from edgepart.agent.storage.integrity import Soundness
from edgepart.agent.storage.store import Store
from edgepart.agent.storage.write_queue import DiskQueue
from edgepart.planner.errors import EdgepartError

log = logging.getLogger(__name__)

GARBAGE_S = 60.0
"""How often blobs that nothing uses are looked for."""
BEHIND_S, LOOK_S = 2.0, 15.0
"""How often files are tried again that could not be written, and how often the disk is looked at."""
SLOW_S = 1.0
"""A disk that takes so long for a file is one that users should know of."""
SCRUB_AFTER_S = 60.0
"""An agent that has just started has better things to do than to read models."""
SCRUB_BYTES_S = 50e6
"""Models are read at this speed: slower disturbs less, and finds damage later."""


@dataclass(frozen=True)
class MaintainedState:
    """What it keeps in order, and whom it asks what is needed."""

    core: Core
    files: StateFiles
    disk: DiskQueue
    store: Store
    soundness: Soundness
    plans: LoadedPlans
    fetching: Fetching
    uploading: Callable[[], int]
    """Deployments under way here, whose models nothing else says to keep."""
    post: Callable[[events.Event], None]
    caught_up: Callable[[], None]
    """Told when all state files are on disk again."""


class Upkeep:
    """The upkeep of an agent, on the event loop's thread. Each method runs until it is cancelled."""

    def __init__(self, kept: MaintainedState) -> None:
        self._kept = kept
        self._told = ""

    async def collect_garbage(self) -> None:
        while True:
            await asyncio.sleep(GARBAGE_S)
            try:
                await self.collect()
            except (EdgepartError, OSError):
                log.exception("what nothing uses any more could not be deleted")

    async def collect(self) -> None:
        """Deletes what nothing uses, unless something may be about to."""
        kept = self._kept
        if kept.plans.loading or kept.fetching.busy or kept.uploading():
            return
        living = {entry.model for entry in kept.core.deployments.list_live()}
        # Not in a thread: meanwhile somebody could come to need what is set aside.
        if kept.store.prune(living | kept.plans.weights()):
            kept.post(events.ModelsStored(kept.store.models()))
            freed = await asyncio.to_thread(kept.store.empty_trash)
            log.info("freed %.1f MB that nothing uses any more", freed / 1e6)

    async def watch_disk(self) -> None:
        while True:
            await self.look_at_disk()
            await asyncio.sleep(BEHIND_S if self._kept.files.behind else LOOK_S)

    async def look_at_disk(self) -> None:
        """Tries again what could not be written, and says what has changed."""
        files = self._kept.files
        if await self._kept.disk.write("what is behind", files.catch_up):
            self._kept.caught_up()
        trouble = disk_trouble(files, self._kept.disk)
        if bool(trouble) != bool(self._told):
            log.warning("%s", trouble or "the disk has room again, and all state files are written")
        self._told = trouble

    async def scrub(self) -> None:
        """Once: reads all models, slowly."""
        await asyncio.sleep(SCRUB_AFTER_S)
        kept, loop = self._kept, asyncio.get_running_loop()
        before = kept.store.models()
        await asyncio.to_thread(kept.soundness.scrub, lambda nbytes: time.sleep(nbytes / SCRUB_BYTES_S))
        if kept.store.models() != before:
            loop.call_soon(kept.post, events.ModelsStored(kept.store.models()))


def disk_trouble(files: StateFiles, disk: DiskQueue) -> str:
    """What is wrong with the disk, in a sentence; "" where nothing is."""
    if files.trouble or disk.write_s < SLOW_S:
        return files.trouble
    return (
        f"the disk is slow: writing a small file takes {disk.write_s:.1f} s. Deploying and a change of the leader wait "
        "for it; requests do not"
    )


def disk_document(files: StateFiles, disk: DiskQueue) -> dict[str, Any]:
    """The state of the disk as the status shows it."""
    return {
        "free_bytes": files.free_bytes,
        "trouble": disk_trouble(files, disk),
        "damaged": list(files.damaged),
    }
