"""Blobs between agents: what a plan or a deployment needs and this device lacks is fetched from members that hold it,
in parts, verified by digest, resumed where a broken transfer stopped. Door: the store and the links.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

from edgepart.agent.asks import Asks
from edgepart.agent.exchange import Files, Part, WantFiles, WantPart
from edgepart.agent.frames import Buffer
from edgepart.agent.store import Partial, Source, Store, manifest_from_json, manifest_to_json
from edgepart.planner.errors import EdgepartError, FrameError, PeerError, Unavailable
from edgepart.planner.plan import Plan, WeightRef, pack_region, unpack_region
from edgepart.planner.region import Array

log = logging.getLogger(__name__)

PART_BYTES = 4 << 20
"""More: fewer round trips; less: less memory per transfer, and tensors wait less behind one."""

Cut = Callable[[str, Source], object]
"""Has a blob in the store that is to be cut from a model there. EdgepartError."""

Reply = Callable[[str, Any, Sequence[Buffer]], None]
"""(node, answer, payload); raises Unavailable."""


class Serving:
    """Answers other agents' questions, in one thread of its own so that disk and hashing hold up no reader."""

    def __init__(self, store: Store, reply: Reply, cut: Cut | None = None) -> None:
        self._store = store
        self._reply = reply
        self._cut: Cut = cut or store.blob
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="serve-blobs")

    def stop(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def asked(self, node: str, question: WantFiles | WantPart) -> None:
        """A question came."""
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
                stop = question.offset + max(0, min(question.length, PART_BYTES))
                payload = [blob[question.offset : stop].data]
                answer = Part(question.ticket, blob.nbytes)
        except Exception as error:  # whatever a peer asks for; it must not wait in vain
            foreseen = isinstance(error, EdgepartError | OSError)
            log.info("cannot answer %s of %s", kind.__name__, node, exc_info=not foreseen)
            payload = []
            text = str(error) or repr(error)
            answer = kind(question.ticket, "" if kind is Files else 0, error=text)  # type: ignore[arg-type]
        self._send(node, answer, payload)

    def _blob(self, want: WantPart) -> Array:
        if want.offset < 0:
            raise FrameError(f"a part cannot begin at {want.offset}")
        source = Source(want.model, want.constant, unpack_region(want.region), want.shapes)
        if want.model and not self._store.has(want.digest) and self._store.has_model(want.model):
            self._cut(want.digest, source)
        return self._store.get(want.digest)

    def _send(self, node: str, answer: Files | Part, payload: Sequence[Buffer]) -> None:
        try:
            self._reply(node, answer, payload)
        except Unavailable as error:
            log.info("cannot answer %s: %s", node, error)


class Fetching:
    """Brings models and weights into the store. Methods are for the event loop's thread."""

    def __init__(self, store: Store, asks: Asks, cut: Cut | None = None) -> None:
        self._store = store
        self._asks = asks
        self._cut: Cut = cut or store.blob
        self._models: dict[str, asyncio.Task[None]] = {}
        self._blobs: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By digest, while somebody fetches it."""

    @property
    def busy(self) -> bool:
        """Whether a model is on its way in."""
        return bool(self._models)

    async def model(self, digest: str, sources: Sequence[str]) -> None:
        """Have this model in the store. EdgepartError where no source has it whole and sound."""
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
        async def from_one(node: str) -> None:
            answer, _ = await self._asks.ask(node, WantFiles(0, digest))
            if answer.error:
                raise Unavailable(f"{node}: {answer.error}")
            manifest = manifest_from_json(_json(answer.manifest))
            if manifest.digest != digest:
                raise PeerError(f"{node} lists other files than those of model {digest}")
            for file in manifest.files:
                want = WantPart(0, file.digest, 0, PART_BYTES)
                await self._blob(want, file.nbytes, node)
            await asyncio.to_thread(self._store.adopt_model, manifest)

        await self._from_any(sources, from_one, f"model {digest}")

    async def weights(self, plan: Plan, refs: Sequence[WeightRef], sources: Sequence[str]) -> None:
        """Have these weights of the plan in the store: cut from the model where it is here, else fetched as just
        the slices that are needed. EdgepartError where one cannot be had."""
        shapes = {info.name: info.shape for info in plan.inputs if info.shape is not None}
        model = plan.model_digest
        for ref in {ref.digest: ref for ref in refs}.values():
            if self._store.has(ref.digest):
                continue
            if self._store.has_model(model):
                source = Source(model, ref.source, ref.region, shapes)
                await asyncio.to_thread(self._cut, ref.digest, source)
                continue
            region = tuple(tuple(bounds) for bounds in pack_region(ref.region))
            want = WantPart(0, ref.digest, 0, PART_BYTES, model, ref.source, region, shapes)

            async def from_one(node: str, want: WantPart = want, nbytes: int = ref.nbytes) -> None:
                await self._blob(want, nbytes, node)

            await self._from_any(sources, from_one, f"weight {ref.source!r} of model {model}")

    async def constants(self, plan: Plan, sources: Sequence[str]) -> Mapping[str, Array]:
        """Values of the plan's outputs that are constants of the model."""
        shapes = {info.name: info.shape for info in plan.inputs if info.shape is not None}
        names = [name for name in plan.constant_outputs if name not in {info.name for info in plan.inputs}]
        if not names:
            return {}
        from edgepart.planner.model import load_graph  # Few models need it.

        await self.model(plan.model_digest, sources)
        path = self._store.model_path(plan.model_digest)
        graph = await asyncio.to_thread(load_graph, path, shapes=shapes)
        return {name: await asyncio.to_thread(graph.constants[name].load) for name in names}

    async def _from_any(self, sources: Sequence[str], fetch: Callable[[str], Any], what: str) -> None:
        refusals: list[str] = []
        for node in sources:
            try:
                await fetch(node)
            except (Unavailable, PeerError) as error:
                refusals.append(f"{node}: {error}")
            else:
                return
        raise Unavailable(f"{what} could not be fetched: {'; '.join(refusals) or 'no member holds it'}")

    async def _blob(self, want: WantPart, nbytes: int, node: str) -> None:
        """Fetch what is missing of one blob; two that want the same one wait for each other."""
        lock = self._blobs.setdefault(want.digest, asyncio.Lock())
        async with lock:
            if self._store.has(want.digest):
                return
            if nbytes == 0:
                self._store.put_bytes(b"")
                return
            partial = self._store.partial(want.digest, nbytes)
            resumed = partial.arrived > 0
            try:
                await self._arrive(partial, want, node)
            except PeerError:
                if not resumed or partial.arrived:
                    raise
                # Thrown away: an earlier source may be to blame for what it had sent, so this one is asked for all.
                await self._arrive(partial, want, node)

    async def _arrive(self, partial: Partial, want: WantPart, node: str) -> None:
        """The rest of a blob from one source. PeerError where it is wrong; then nothing of it is left."""
        whole = False
        while not whole:
            offset = partial.arrived
            answer, payload = await self._asks.ask(node, replace(want, offset=offset))
            if answer.error:
                raise Unavailable(answer.error)
            if not payload.nbytes:
                raise PeerError(f"an empty part at {offset} of {partial.nbytes}")
            whole = await asyncio.to_thread(partial.append, offset, payload)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise PeerError(f"a list of files that is no JSON: {error}") from error
