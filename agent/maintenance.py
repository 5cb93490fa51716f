"""Maintenance: keeps the agent's disk in order while the agent serves. Door: the clock, and the store's files.

It deletes blobs that nothing uses, writes files that could not be written while the disk was full, and once
reads all models that an earlier run left, to check that they are undamaged.
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
from edgepart.agent.replication.blobs import BlobFetcher
from edgepart.agent.serving.loaded_plans import LoadedPlans
from edgepart.agent.state_files import StateFiles
from edgepart.agent.storage.integrity import StoreIntegrity
from edgepart.agent.storage.store import Store
from edgepart.agent.storage.write_queue import DiskQueue
from edgepart.planner.errors import EdgepartError

log = logging.getLogger(__name__)

GARBAGE_S = 60.0
"""The interval at which blobs that nothing uses are deleted."""
BEHIND_S, LOOK_S = 2.0, 15.0
"""The interval at which the disk is checked while files could not be written, and the interval otherwise.
Each check tries to write such files again."""
SLOW_S = 1.0
"""Users are warned of a disk that takes this long to write a small file."""
SCRUB_AFTER_S = 60.0
"""The time from the agent's start until it checks models, because it has more urgent work at first."""
SCRUB_BYTES_S = 50e6
"""The speed at which models are read for the check: a lower speed disturbs less, and finds damage later."""


@dataclass(frozen=True)
class MaintainedState:
    """The state that Maintenance keeps in order, and the parts that know what is in use."""

    core: Core
    files: StateFiles
    disk: DiskQueue
    store: Store
    integrity: StoreIntegrity
    plans: LoadedPlans
    fetching: BlobFetcher
    uploading: Callable[[], int]
    """Returns the number of deployments under way here. Their models must be kept although no entry names
    them yet."""
    post: Callable[[events.Event], None]
    caught_up: Callable[[], None]
    """Called when all state files are on disk again."""


class Maintenance:
    """The upkeep of an agent, in the event loop's thread. `collect_garbage` and `watch_disk` run until
    cancelled."""

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
        """Delete blobs that nothing uses. Do nothing while a plan is loaded, a file is fetched or a model is
        uploaded, because these may be about to use some."""
        kept = self._kept
        if kept.plans.loading or kept.fetching.busy or kept.uploading():
            return
        living = {model for entry in kept.core.deployments.list_live() for model, _ in entry.models}
        # Not in another thread: a plan could come to need a blob while it is moved to the trash.
        if kept.store.prune(living | kept.plans.weights()):
            kept.integrity.forget_deleted()
            kept.post(events.ModelsStored(kept.store.models()))
            freed = await asyncio.to_thread(kept.store.empty_trash)
            log.info("freed %.1f MB that nothing uses any more", freed / 1e6)

    async def watch_disk(self) -> None:
        while True:
            await self.look_at_disk()
            await asyncio.sleep(BEHIND_S if self._kept.files.behind else LOOK_S)

    async def look_at_disk(self) -> None:
        """Write the files that could not be written before, and log when trouble with the disk begins or
        ends."""
        files = self._kept.files
        if await self._kept.disk.write("what is behind", files.catch_up):
            self._kept.caught_up()
        trouble = disk_trouble(files, self._kept.disk)
        if bool(trouble) != bool(self._told):
            log.warning("%s", trouble or "the disk has room again, and all state files are written")
        self._told = trouble

    async def scrub(self) -> None:
        """Read and check all models once, slowly."""
        await asyncio.sleep(SCRUB_AFTER_S)
        kept, loop = self._kept, asyncio.get_running_loop()
        before = kept.store.models()
        await asyncio.to_thread(kept.integrity.scrub, lambda nbytes: time.sleep(nbytes / SCRUB_BYTES_S))
        if kept.store.models() != before:
            loop.call_soon(kept.post, events.ModelsStored(kept.store.models()))


def disk_trouble(files: StateFiles, disk: DiskQueue) -> str:
    """Return a sentence about what is wrong with the disk; "" if nothing is."""
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
