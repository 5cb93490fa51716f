"""Blobs between agents: fetches the models and weights that this device lacks from members that hold them, from several at
once, in parts, verified by digest, and resumed where a broken transfer stopped. Door: the store and the links.

While requests are served at either end, that end slows the transfer down (throttle.py): a sender answers later, with fewer
bytes than were asked for; a fetching device asks later, and for fewer bytes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from edgepart.agent.net.rpc_client import RpcClient
from edgepart.agent.replication.multi_source import Gathering, Wrote, ignore_written
from edgepart.agent.replication.throttle import UNKNOWN_BYTES_S, Throttle, part_bytes
from edgepart.agent.storage.integrity import StoreIntegrity
from edgepart.agent.storage.store import (
    Manifest,
    ModelFile,
    Partial,
    Source,
    Store,
    manifest_from_text,
    manifest_to_json,
)
from edgepart.agent.wire.frames import Buffer
from edgepart.agent.wire.queries import Files, Part, WantFiles, WantPart
from edgepart.planner.errors import EdgepartError, FrameError, PeerError, Unavailable
from edgepart.planner.plans.plan import Plan, WeightRef
from edgepart.planner.plans.plan_bytes import pack_region, unpack_region
from edgepart.planner.region import Array

log = logging.getLogger(__name__)

PART_BYTES = 1 << 20
"""The size of a part that is asked for. Larger parts take fewer round trips; smaller ones take less memory for parts that
arrive out of order, and make tensors wait less behind a part."""
MOST_PART_BYTES = 4 << 20
"""The largest part that is sent, whatever is asked for."""
MOST_SOURCES = 4
"""The most sources from which one blob is fetched at once."""
LIAR_S = 600.0
"""Seconds for which a source is asked last after its blob had a wrong digest."""
MOST_CUT, MOST_CUT_BYTES = 1000, 64 << 20
"""The most weights, and about the most bytes, that are cut and flushed together. With more, there are fewer waits for the
disk; with fewer, a plan that is given up, and other users of a model, wait less for these."""
SPARE_BYTES = 64 << 20
"""Bytes that stay free on the disk, whatever is fetched."""

Cut = Callable[[Sequence[tuple[str, Source]]], object]
"""Cuts blobs, given by digest and source, from stored models, so that they are in the store. Raises EdgepartError or
OSError."""

Arrived = Callable[[str, int], None]
"""(digest, bytes): so many bytes of that blob are on the disk."""

Reply = Callable[[str, Any, Sequence[Buffer]], None]
"""(node, answer, payload). Raises Unavailable."""


def _uncounted(digest: str, nbytes: int) -> None:
    """Takes the arrival of a blob that nobody counts."""


def _idle() -> bool:
    return False


def _unknown(node: str) -> float:
    return UNKNOWN_BYTES_S


@dataclass(frozen=True)
class Load:
    """The load of one end, which slows bulk transfers down."""

    busy: Callable[[], bool] = _idle
    """Whether requests are served on this device."""
    bytes_s: Callable[[str], float] = _unknown
    """The rate of the link to a node, in bytes a second."""


class BlobServer:
    """Answers other agents' questions in a thread of its own, so that the disk and hashing delay no reader thread."""

    def __init__(self, store: Store, reply: Reply, cut: Cut | None = None, load: Load | None = None) -> None:
        self._store = store
        self._reply = reply
        self._cut: Cut = cut or store.cut
        self._load = load or Load()
        self._pace = Throttle()
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="serve-blobs")

    def stop(self) -> None:
        self._stopped.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def asked(self, node: str, question: WantFiles | WantPart) -> None:
        """Answer a question in this object's thread. Raises Unavailable if this agent stops."""
        try:
            self._pool.submit(self._answer, node, question)
        except RuntimeError as error:
            raise Unavailable("this agent stops") from error

    def _answer(self, node: str, question: WantFiles | WantPart) -> None:
        payload: list[Buffer] = []
        answer: Files | Part
        kind = Files if isinstance(question, WantFiles) else Part
        try:
            if isinstance(question, WantFiles):
                manifest = manifest_to_json(self._store.manifest(question.model))
                answer = Files(question.ticket, json.dumps(manifest))
            else:
                blob = self._blob(question)
                payload = [blob[question.offset : question.offset + self._length(node, question)].data]
                answer = Part(question.ticket, blob.nbytes)
        except Exception as error:  # a peer must get an answer whatever it asks for, and not wait in vain
            foreseen = isinstance(error, EdgepartError | OSError)
            log.info("cannot answer %s of %s", kind.__name__, node, exc_info=not foreseen)
            payload = []
            text = str(error) or repr(error)
            answer = kind(question.ticket, "" if kind is Files else 0, error=text)  # type: ignore[arg-type]
        self._send(node, answer, payload)

    def _length(self, node: str, want: WantPart) -> int:
        """Wait until the part may be sent, and return the number of bytes to send."""
        busy, bytes_s = self._load.busy(), self._load.bytes_s(node)
        length = part_bytes(max(0, min(want.length, MOST_PART_BYTES)), bytes_s, busy)
        self._stopped.wait(self._pace.wait_s(length, bytes_s, time.monotonic(), busy=busy))
        return length

    def _blob(self, want: WantPart) -> Array:
        if want.offset < 0:
            raise FrameError(f"a part cannot begin at {want.offset}")
        source = Source(want.model, want.constant, unpack_region(want.region), want.shapes)
        if want.model and not self._store.has(want.digest) and self._store.has_model(want.model):
            self._cut([(want.digest, source)])
        return self._store.get(want.digest)

    def _send(self, node: str, answer: Files | Part, payload: Sequence[Buffer]) -> None:
        try:
            self._reply(node, answer, payload)
        except Unavailable as error:
            log.info("cannot answer %s: %s", node, error)


@dataclass
class _Doubts:
    """The sources whose blobs had wrong digests, each with the time until which it is asked last."""

    until: dict[str, float] = field(default_factory=dict)

    def cast(self, node: str, now: float) -> None:
        self.until[node] = now + LIAR_S

    def order(self, sources: Sequence[str], now: float) -> tuple[list[str], list[str]]:
        """Split sources into those without doubts and those with doubts, each in the given order."""
        doubted = [node for node in sources if self.until.get(node, now) > now]
        return [node for node in sources if node not in doubted], doubted


class BlobFetcher:
    """Brings models and weights into the store. Its methods belong to the event loop's thread."""

    def __init__(
        self,
        store: Store,
        asks: RpcClient,
        cut: Cut | None = None,
        *,
        load: Load | None = None,
        integrity: StoreIntegrity | None = None,
        free_bytes: Callable[[], float] = lambda: float("inf"),
    ) -> None:
        """Set up fetching. `free_bytes` returns the free space on the disk."""
        self._store = store
        self._asks = asks
        self._cut: Cut = cut or store.cut
        self._load = load or Load()
        self._pace = Throttle()
        self._integrity = integrity or StoreIntegrity(store)
        self._free_bytes = free_bytes
        self._doubts = _Doubts()
        self._models: dict[str, asyncio.Task[None]] = {}
        self._blobs: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """The lock of each blob that is being fetched, by digest."""

    @property
    def busy(self) -> bool:
        """Whether a model is being fetched."""
        return bool(self._models)

    async def model(self, digest: str, sources: Sequence[str]) -> None:
        """Make sure that the model is in the store. Raises EdgepartError if no source has it complete and intact, and
        OSError if the disk is full."""
        if self._store.has_model(digest):
            return
        if digest not in self._models:
            task = asyncio.get_running_loop().create_task(
                self._model(digest, sources), name=f"fetch {digest[:8]}"
            )
            self._models[digest] = task
            task.add_done_callback(lambda _: self._models.pop(digest, None))
        await asyncio.shield(self._models[digest])

    async def _model(self, digest: str, sources: Sequence[str]) -> None:
        refusals: dict[str, str] = {}
        manifest = await self._manifest(digest, sources, refusals)
        for file in manifest.files:
            await self._file(file, digest, sources, refusals)
        await asyncio.to_thread(self._store.adopt_model, manifest)

    async def _manifest(self, digest: str, sources: Sequence[str], refusals: dict[str, str]) -> Manifest:
        """The list of a model's files, from the first source that has it. Raises Unavailable if none has."""
        for node in sources:
            try:
                answer, _ = await self._asks.ask(node, WantFiles(0, digest))
                if answer.error:
                    raise Unavailable(answer.error)
                manifest = manifest_from_text(answer.manifest)
                if manifest.digest != digest:
                    raise PeerError(f"lists other files than those of model {digest}")
                return manifest
            except (Unavailable, PeerError) as error:
                refusals[node] = str(error)
        raise _nobody(f"model {digest}", refusals)

    async def _file(
        self, file: ModelFile, model: str, sources: Sequence[str], refusals: dict[str, str]
    ) -> None:
        want = WantPart(0, file.digest, 0, PART_BYTES)
        await self._blob(want, file.nbytes, sources, f"model {model}", refusals)

    async def files(
        self, model: str, names: Collection[str], most_bytes: int, sources: Sequence[str]
    ) -> dict[str, bytes]:
        """What is in those of a model's files that have these names, by name. They are fetched alone if the model is not in
        the store. Raises EdgepartError if a file has more than `most_bytes` or no source has it, and OSError if the disk
        is full."""
        refusals: dict[str, str] = {}
        manifest = (
            await asyncio.to_thread(self._store.manifest, model)
            if self._store.has_model(model)
            else await self._manifest(model, sources, refusals)
        )
        found = {}
        for file in manifest.files:
            if file.path in names:
                if file.nbytes > most_bytes:
                    raise PeerError(
                        f"{file.path} of model {model} has {file.nbytes} bytes; {most_bytes} are allowed"
                    )
                await self._file(file, model, sources, refusals)
                found[file.path] = bytes(await asyncio.to_thread(self._store.get, file.digest))
        return found

    async def weights(
        self, plan: Plan, refs: Sequence[WeightRef], sources: Sequence[str], arrived: Arrived = _uncounted
    ) -> None:
        """Make sure that these weights of the plan are in the store. They are cut from the model if it is stored, otherwise
        only the needed slices are fetched. `arrived` is told how much of each is there, as they come. Raises EdgepartError
        if one cannot be obtained, and OSError if the disk is full."""
        shapes = plan.bound_shapes
        model = plan.model_digest
        absent = await asyncio.to_thread(self._absent_weights, refs)
        lacking = {ref.digest for ref in absent}
        for ref in refs:
            if ref.digest not in lacking:
                arrived(ref.digest, ref.nbytes)
        if self._store.has_model(model):
            for batch in _batches(absent):
                wanted = [(ref.digest, Source(model, ref.source, ref.region, shapes)) for ref in batch]
                await asyncio.to_thread(self._cut, wanted)
                for ref in batch:
                    self._integrity.trust(ref.digest)
                    arrived(ref.digest, ref.nbytes)
            return
        for ref in absent:
            region = tuple(tuple(bounds) for bounds in pack_region(ref.region))
            want = WantPart(0, ref.digest, 0, PART_BYTES, model, ref.source, region, shapes)
            what = f"weight {ref.source!r} of model {model}"
            await self._blob(want, ref.nbytes, sources, what, {}, partial(arrived, ref.digest))
            arrived(ref.digest, ref.nbytes)

    def _absent_weights(self, refs: Sequence[WeightRef]) -> list[WeightRef]:
        """Return one reference for each blob that is not stored, or not intact."""
        return [
            ref for ref in {ref.digest: ref for ref in refs}.values() if not self._integrity.here(ref.digest)
        ]

    async def constants(self, plan: Plan, sources: Sequence[str]) -> Mapping[str, Array]:
        """Return the values of the plan's outputs that are constants of the model, by name."""
        shapes = plan.bound_shapes
        names = [name for name in plan.constant_outputs if name not in {info.name for info in plan.inputs}]
        if not names:
            return {}
        from edgepart.planner.model.load import load_planned  # Imported here, because few models need it.

        await self.model(plan.model_digest, sources)
        path = self._store.model_path(plan.model_digest)
        graph = await asyncio.to_thread(load_planned, path, shapes)
        return {name: await asyncio.to_thread(graph.constants[name].load) for name in names}

    async def _blob(
        self,
        want: WantPart,
        nbytes: int,
        sources: Sequence[str],
        what: str,
        refusals: dict[str, str],
        wrote: Wrote = ignore_written,
    ) -> None:
        """Fetch the missing bytes of one blob; two callers that want the same blob wait for each other. `wrote` is told how
        much of it is on the disk. Raises Unavailable, with the reason of each source, if no source has it complete and
        intact, or if the disk has no room."""
        lock = self._blobs.setdefault(want.digest, asyncio.Lock())
        async with lock:
            if self._store.has(want.digest):
                return
            if nbytes == 0:
                self._store.put_bytes(b"")
                return
            begun = self._store.partial(want.digest, nbytes)
            if (free := self._free_bytes()) < (needed := nbytes - begun.arrived + SPARE_BYTES):
                raise Unavailable(
                    f"{what} needs {needed / 1e6:.0f} MB on this device's disk, and {free / 1e6:.0f} MB are free"
                )
            if not await self._fetch(begun, want, sources, refusals, wrote):
                raise _nobody(what, refusals)
            self._integrity.trust(want.digest)

    async def _fetch(
        self,
        begun: Partial,
        want: WantPart,
        sources: Sequence[str],
        refusals: dict[str, str],
        wrote: Wrote,
    ) -> bool:
        """Fetch a blob from several sources without doubts at once. If the result has a wrong digest, fetch from one source
        after the other to find the one to doubt. Return whether the blob is complete."""
        trusted, doubted = self._doubts.order(sources, time.monotonic())
        several, rest = trusted[:MOST_SOURCES], trusted[MOST_SOURCES:]
        alone = len(several) == 1 and begun.arrived == 0
        try:
            if several and await self._gather(begun, want, several, refusals, wrote):
                return True
        except PeerError as error:
            if alone:
                self._doubt(several[0], error, refusals)
            else:
                rest = trusted
        for node in (*rest, *doubted):
            try:
                if await self._gather(begun, want, [node], refusals, wrote):
                    return True
            except PeerError as error:
                self._doubt(node, error, refusals)
        return False

    def _doubt(self, node: str, error: PeerError, refusals: dict[str, str]) -> None:
        refusals[node] = str(error)
        self._doubts.cast(node, time.monotonic())
        log.warning("%s is not asked any more while others can be: %s", node, error)

    async def _gather(
        self,
        begun: Partial,
        want: WantPart,
        nodes: Sequence[str],
        refusals: dict[str, str],
        wrote: Wrote,
    ) -> bool:
        """Fetch a blob from these nodes, and return whether it is complete. Raises PeerError if it was complete but had a
        wrong digest; all its bytes are then deleted."""

        async def ask(node: str, offset: int, length: int) -> memoryview:
            busy, bytes_s = self._load.busy(), self._load.bytes_s(node)
            length = part_bytes(length, bytes_s, busy)
            await asyncio.sleep(self._pace.wait_s(length, bytes_s, time.monotonic(), busy=busy))
            question = replace(want, offset=offset, length=length)
            answer, payload = await self._asks.ask(node, question)
            if answer.error:
                raise Unavailable(answer.error)
            return payload

        gathering = Gathering(begun, ask, PART_BYTES, wrote)
        whole = await gathering.run(nodes)
        refusals.update(gathering.refusals)
        return whole


def _batches(refs: Sequence[WeightRef]) -> Iterator[list[WeightRef]]:
    """Yield all references in order, in batches that end at MOST_CUT references, or at the one that reaches
    MOST_CUT_BYTES."""
    batch, nbytes = list[WeightRef](), 0
    for ref in refs:
        batch.append(ref)
        nbytes += ref.nbytes
        if len(batch) >= MOST_CUT or nbytes >= MOST_CUT_BYTES:
            yield batch
            batch, nbytes = [], 0
    if batch:
        yield batch


def _nobody(what: str, refusals: Mapping[str, str]) -> Unavailable:
    told = "; ".join(f"{node}: {why}" for node, why in refusals.items())
    return Unavailable(f"{what} could not be fetched: {told or 'no member holds it'}")
