"""Model intake: has the models that users deploy examined and stored on this device. Door: the disk, another process, and
other members.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edgepart.agent.api.node_parts import ModelFiles
from edgepart.agent.api.stages import Progress
from edgepart.agent.cluster.core.core import Core
from edgepart.agent.cluster.state import events
from edgepart.agent.wire.inference import DeployOptions
from edgepart.planner.errors import ModelError
from edgepart.planner.plans.plan import ValueInfo


@dataclass(frozen=True)
class StoredModel:
    """A model that a user sent, examined and in this device's store."""

    model: str
    model_bytes: int
    options: DeployOptions
    asked: DeployOptions
    """The options as the user gave them."""
    notes: Sequence[str]
    inputs: Sequence[ValueInfo]
    outputs: Sequence[ValueInfo]


class ModelIntake:
    """For the event loop's thread."""

    def __init__(self, core: Core, files: ModelFiles, post: Callable[[events.Event], None]) -> None:
        self._core = core
        self._files = files
        self._post = post
        self.uploading = 0
        """The number of deployments under way here. Their models must be kept although no entry names them
        yet."""

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Count a deployment as under way."""
        self.uploading += 1
        try:
            yield
        finally:
            self.uploading -= 1

    async def take_in(self, given: Path | str, options: DeployOptions, progress: Progress) -> StoredModel:
        """Examine the model in this folder, or the stored one of this digest, and have it in this device's store.
        Raises ModelError; UsageError; Unavailable if no member has the stored one."""
        stored = given if isinstance(given, str) else ""
        path = await self._fetch(stored, progress) if isinstance(given, str) else _graph_file(given)
        progress("checking the model", 0, 0)
        notes, files, found, (inputs, outputs) = await asyncio.to_thread(self._files.examine, path, options)
        nbytes = sum(file.stat().st_size for file in files)
        if stored and len(files) == len(self._files.store.manifest(stored).files):
            model = stored
        else:  # It was sent, or has other companions with these options.
            progress("storing", 0, 0)
            model = await asyncio.to_thread(self._files.store.put_model, files)
        self._post(events.ModelsStored(self._files.store.models()))
        return StoredModel(model, nbytes, found, options, notes, inputs, outputs)

    async def _fetch(self, model: str, progress: Progress) -> Path:
        """The file of a stored model, once it is in this device's store."""
        progress("looking for the stored model", 0, 0)
        members = [member.node for member in self._core.membership.members()]
        await self._files.fetch(model, [node for node in members if node != self._core.node])
        return self._files.store.model_path(model)


def _graph_file(folder: Path) -> Path:
    found = sorted(folder.glob("*.onnx"))
    if len(found) != 1:
        raise ModelError(
            f"expected one .onnx file among the uploaded ones, found {len(found)}. Nothing was stored"
        )
    return found[0]
