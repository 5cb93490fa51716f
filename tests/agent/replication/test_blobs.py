"""Models and weights between agents: sources that lie, vanish or lack them, and resuming where another one stopped."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.net.rpc_client import RpcClient
from edgepart.agent.replication import blobs, throttle
from edgepart.agent.replication.blobs import BlobFetcher, BlobServer
from edgepart.agent.storage.store import Store
from edgepart.agent.wire.frames import Buffer
from edgepart.agent.wire.queries import Files, Part, Question, WantFiles, WantPart
from edgepart.planner.errors import Unavailable
from edgepart.planner.model.blobs import blob_digest
from edgepart.planner.model.load import load_graph
from edgepart.planner.model.model_file import model_files
from edgepart.planner.plans.plan import Plan, ValueInfo, WeightRef
from edgepart.planner.region import Region
from tests.agent.storage.test_store import model_in

ME = "me"
Change = Callable[[Any, bytes], tuple[Any, bytes]]
"""What a source makes of its answer and its payload."""


@dataclass
class Wire:
    """Joins one fetching agent with any number of serving ones, all in this process."""

    store: Store
    servings: dict[str, BlobServer] = field(default_factory=dict)
    asked: list[tuple[str, Question]] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.asks = RpcClient(self.send)
        self.fetching = BlobFetcher(self.store, self.asks)

    def add(self, node: str, store: Store, change: Change = lambda answer, data: (answer, data)) -> None:
        def reply(_: str, answer: Any, payload: Sequence[Buffer]) -> None:
            changed, data = change(answer, b"".join(payload))
            self.loop.call_soon_threadsafe(self.asks.answered, node, changed, memoryview(data))

        self.servings[node] = BlobServer(store, reply)

    def send(self, node: str, question: Question, _: Sequence[Buffer]) -> None:
        assert isinstance(question, WantFiles | WantPart)
        if node in self.gone or node not in self.servings:
            raise Unavailable(f"there is no link to {node} now")
        self.asked.append((node, question))
        self.servings[node].asked(ME, question)

    def parts_of(self, node: str) -> list[WantPart]:
        return [question for who, question in self.asked if who == node and isinstance(question, WantPart)]


def run(work: Callable[[Wire], Awaitable[None]], store: Store) -> Wire:
    """`work` with a wire, which is taken down afterwards."""

    async def main() -> Wire:
        wire = Wire(store)
        try:
            async with asyncio.timeout(20):
                await work(wire)
        finally:
            for serving in wire.servings.values():
                serving.stop()
        return wire

    return asyncio.run(main())


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "PART_BYTES", 100_000)


@pytest.fixture
def here(tmp_path: Path) -> Store:
    return Store(tmp_path / "here")


@pytest.fixture
def there(tmp_path: Path) -> Store:
    return Store(tmp_path / "there")


@pytest.fixture
def model(there: Store, tmp_path: Path) -> str:
    """Stored there; its weights are 360,000 bytes in a file of their own."""
    return there.put_model(model_files(model_in(tmp_path / "m")))


def flipped(answer: Any, data: bytes) -> tuple[Any, bytes]:
    return answer, data[:-1] + bytes([data[-1] ^ 1]) if data else data


def test_a_model_comes_in_parts_and_can_be_loaded(here: Store, there: Store, model: str) -> None:
    async def work(wire: Wire) -> None:
        wire.add("a", there)
        await asyncio.gather(*(wire.fetching.model(model, ["a"]) for _ in range(3)))
        assert not wire.fetching.busy

    wire = run(work, here)
    assert here.models() == (model,)
    assert load_graph(here.model_path(model)).constants["w"].load()[0, 5] == 5
    assert sum(isinstance(question, WantFiles) for _, question in wire.asked) == 1
    assert [want.offset for want in wire.parts_of("a")][-4:] == [0, 100_000, 200_000, 300_000]


def test_nothing_is_asked_for_what_is_here(there: Store, model: str) -> None:
    assert run(lambda wire: wire.fetching.model(model, ["a"]), there).asked == []


def test_a_liar_is_found_out_and_the_next_source_gives_all(here: Store, there: Store, model: str) -> None:
    async def work(wire: Wire) -> None:
        wire.add("liar", there, flipped)
        wire.add("honest", there)
        await wire.fetching.model(model, ["liar", "honest"])

    run(work, here)
    assert load_graph(here.model_path(model)).constants["w"].load()[0, 5] == 5


def test_only_liars_give_an_error_that_names_each(here: Store, there: Store, model: str) -> None:
    async def work(wire: Wire) -> None:
        wire.add("liar", there, flipped)
        with pytest.raises(Unavailable, match=r"liar: .*digest.*stranger: there is no link"):
            await wire.fetching.model(model, ["liar", "stranger"])
        assert not wire.fetching.busy

    run(work, here)
    assert here.models() == ()


def large_offsets(wire: Wire, node: str, digest: str) -> list[int]:
    return [want.offset for want in wire.parts_of(node) if want.digest == digest]


def weights_of(there: Store, model: str) -> str:
    """The digest of the model's large file."""
    return max(there.manifest(model).files, key=lambda file: file.nbytes).digest


def test_several_sources_share_the_work(here: Store, there: Store, model: str) -> None:
    async def work(wire: Wire) -> None:
        for node in "abc":
            wire.add(node, there)
        await wire.fetching.model(model, ["a", "b", "c"])

    wire = run(work, here)
    found = [large_offsets(wire, node, weights_of(there, model)) for node in "abc"]
    assert sorted(offset for one in found for offset in one) == [0, 100_000, 200_000, 300_000]
    assert sum(map(bool, found)) > 1


@pytest.mark.parametrize("sources", [["a", "b"], ["a", "b", "c"]])
def test_a_source_that_dies_in_the_middle_is_replaced_and_nothing_comes_twice(
    here: Store, there: Store, model: str, sources: list[str]
) -> None:
    async def work(wire: Wire) -> None:
        def vanish(answer: Any, data: bytes) -> tuple[Any, bytes]:
            if len(data) == 100_000 and not wire.gone:
                wire.gone.add("a")
                wire.loop.call_soon_threadsafe(wire.asks.lost, "a")
            return answer, data

        wire.add("a", there, vanish)
        for node in sources[1:]:
            wire.add(node, there)
        await wire.fetching.model(model, sources)

    wire = run(work, here)
    assert here.models() == (model,)
    assert wire.gone == {"a"}
    answered = [large_offsets(wire, node, weights_of(there, model)) for node in sources[1:]]
    offsets = sorted(offset for one in answered for offset in one)
    assert len(set(offsets)) == len(offsets) <= 4


def test_a_fetch_that_was_broken_off_goes_on_where_it_stopped(here: Store, there: Store, model: str) -> None:
    digest = weights_of(there, model)
    data = there.get(digest)
    here.partial(digest, data.nbytes).append(0, data[:250_000].data)

    async def work(wire: Wire) -> None:
        wire.add("a", there)
        await wire.fetching.model(model, ["a"])

    wire = run(work, here)
    assert here.models() == (model,)
    assert large_offsets(wire, "a", digest) == [250_000, 350_000]


def test_a_corrupt_source_among_sound_ones_is_found_named_and_asked_last(
    here: Store, there: Store, model: str, caplog: pytest.LogCaptureFixture
) -> None:
    digest = weights_of(there, model)

    def lie(answer: Any, data: bytes) -> tuple[Any, bytes]:
        return (
            flipped(answer, data)
            if isinstance(answer, Part) and answer.total_bytes > 100_000
            else (answer, data)
        )

    async def work(wire: Wire) -> None:
        wire.add("liar", there, lie)
        wire.add("honest", there)
        await wire.fetching.model(model, ["liar", "honest"])
        here.prune(())
        wire.asked.clear()
        await wire.fetching.model(model, ["liar", "honest"])

    wire = run(work, here)
    assert here.models() == (model,)
    assert "liar is not asked any more" in caplog.text
    assert "honest is not asked" not in caplog.text
    assert large_offsets(wire, "liar", digest) == []


def test_half_a_lie_does_not_fall_back_on_who_completes_it(
    here: Store, there: Store, model: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What an earlier source left is wrong; the honest one is not blamed for the sum, and asked for all."""
    digest = weights_of(there, model)
    here.partial(digest, there.size(digest)).append(0, bytes(150_000))

    async def work(wire: Wire) -> None:
        wire.add("honest", there)
        await wire.fetching.model(model, ["honest"])

    wire = run(work, here)
    assert here.models() == (model,)
    assert large_offsets(wire, "honest", digest)[-4:] == [0, 100_000, 200_000, 300_000]
    assert "is not asked any more" not in caplog.text


def test_a_disk_without_room_fetches_nothing_and_says_so(here: Store, there: Store, model: str) -> None:
    async def work(wire: Wire) -> None:
        wire.add("a", there)
        wire.fetching = BlobFetcher(here, wire.asks, free_bytes=lambda: blobs.SPARE_BYTES)
        with pytest.raises(Unavailable, match="MB are free"):
            await wire.fetching.model(model, ["a"])

    assert run(work, here).parts_of("a") == []


def test_whoever_serves_requests_sends_less_at_once_and_later(
    here: Store, there: Store, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In imaginary time: the sending end waits as the pace says, and the fetch goes on with what it gets."""
    waited: list[float] = []

    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            return self.now

    clock = Clock()
    bytes_s = 1e7

    class Waiting(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0.0)
            clock.now += timeout or 0.0
            return False

    async def work(wire: Wire) -> None:
        wire.add("a", there)
        serving = wire.servings["a"]
        serving._load, serving._stopped = blobs.Load(lambda: True, lambda node: bytes_s), Waiting()
        monkeypatch.setattr(blobs, "time", clock)
        await wire.fetching.model(model, ["a"])

    run(work, here)
    assert here.models() == (model,)
    total = sum(file.nbytes for file in there.manifest(model).files)
    part = throttle.HOLD_S * bytes_s
    assert sum(waited) >= (total - 4 * part) / (throttle.SHARE * bytes_s)
    assert len(waited) >= total / part


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a, d: (replace(a, manifest="{") if isinstance(a, Files) else a, d), "no JSON"),
        (lambda a, d: (replace(a, manifest="[]") if isinstance(a, Files) else a, d), "is empty"),
        (
            lambda a, d: (
                (replace(a, manifest=a.manifest.replace("sub/", "../")), d)
                if isinstance(a, Files)
                else (a, d)
            ),
            "cannot be",
        ),
        (
            lambda a, d: (
                (
                    replace(a, manifest='[{"path": "x", "digest": "' + "0" * 64 + '", "nbytes": 1}]'),
                    d,
                )
                if isinstance(a, Files)
                else (a, d)
            ),
            "other files",
        ),
        (lambda a, d: (a, b"") if isinstance(a, Part) else (a, d), "an empty part"),
        (lambda a, d: (a, d * 5) if isinstance(a, Part) else (a, d), "do not go on"),
        (lambda a, d: (replace(a, error="no disk") if isinstance(a, Part) else a, d), "no disk"),
    ],
)
def test_what_a_source_may_say_wrong(
    here: Store, there: Store, model: str, change: Change, words: str
) -> None:
    async def work(wire: Wire) -> None:
        wire.add("a", there, change)
        with pytest.raises(Unavailable, match=words):
            await wire.fetching.model(model, ["a"])

    run(work, here)
    assert here.models() == ()
    assert not list(here.root.rglob("*.onnx"))


def plan_and_ref(model: str, store: Store) -> tuple[Plan, WeightRef]:
    """A plan of the model that uses rows 10 to 20 of its weight."""
    constant = load_graph(store.model_path(model), shapes={"x": (1, 300)}).constants["w"]
    region = Region.box((10, 20), (0, 300))
    ref = WeightRef("w", blob_digest(constant, region), "w", region, "float", (10, 300), 12_000)
    plan = Plan(model, "test", {}, (), (ValueInfo("x", "float", (1, 300)),), (), constant_outputs=("z",))
    return plan, ref


def test_of_a_weight_only_the_slice_travels(here: Store, there: Store, model: str) -> None:
    plan, ref = plan_and_ref(model, there)

    async def work(wire: Wire) -> None:
        wire.add("a", there)
        await wire.fetching.weights(plan, [ref, ref], ["a"])

    wire = run(work, here)
    assert hashlib.sha256(here.get(ref.digest).data).hexdigest() == ref.digest
    assert [(want.offset, want.digest) for want in wire.parts_of("a")] == [(0, ref.digest)]
    assert here.models() == ()


def test_it_is_told_how_much_of_each_weight_is_there(
    here: Store, there: Store, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, ref = plan_and_ref(model, there)
    monkeypatch.setattr(blobs, "PART_BYTES", 5_000)
    told: list[tuple[str, int]] = []

    async def work(wire: Wire) -> None:
        wire.add("a", there)
        await wire.fetching.weights(plan, [ref], ["a"], lambda *what: told.append(what))

    run(work, here)
    assert told == [(ref.digest, nbytes) for nbytes in (5_000, 10_000, 12_000, 12_000)]
    told.clear()
    run(work, here)  # it has come
    assert told == [(ref.digest, 12_000)]
    told.clear()
    run(work, there)  # it is cut
    assert told == [(ref.digest, 12_000)]


def test_a_weight_is_cut_here_where_the_model_is(there: Store, model: str) -> None:
    plan, ref = plan_and_ref(model, there)
    wire = run(lambda wire: wire.fetching.weights(plan, [ref], ["a"]), there)
    assert there.has(ref.digest)
    assert wire.asked == []


@given(st.lists(st.integers(0, 90 << 20), max_size=30), st.integers(1, 5))
def test_weights_are_cut_in_batches_of_bounded_size(sizes: list[int], most: int) -> None:
    def ref(number: int, nbytes: int) -> WeightRef:
        return WeightRef(
            str(number), str(number), str(number), Region.full((nbytes,)), "uint8", (nbytes,), nbytes
        )

    refs = [ref(number, nbytes) for number, nbytes in enumerate(sizes)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(blobs, "MOST_CUT", most)
        found = list(blobs._batches(refs))
    assert [ref for batch in found for ref in batch] == refs
    for batch in found:
        assert 1 <= len(batch) <= most
        assert sum(ref.nbytes for ref in batch[:-1]) < blobs.MOST_CUT_BYTES


def test_a_weight_that_is_not_in_the_model_is_refused_by_its_source(
    here: Store, there: Store, model: str
) -> None:
    plan, ref = plan_and_ref(model, there)

    async def work(wire: Wire) -> None:
        wire.add("a", there)
        for wrong in (replace(ref, source="nothing"), replace(ref, region=Region.box((0, 301), (0, 300)))):
            with pytest.raises(Unavailable, match="has no"):
                await wire.fetching.weights(plan, [replace(wrong, digest="0" * 64)], ["a"])

    run(work, here)


def test_constants_of_a_plan_come_from_the_model(here: Store, there: Store, model: str) -> None:
    plan, _ = plan_and_ref(model, there)

    async def work(wire: Wire) -> None:
        wire.add("a", there)
        values = await wire.fetching.constants(plan, ["a"])
        assert values["z"].shape == (1, 300)

    run(work, here)


@pytest.mark.parametrize(
    "question",
    [
        WantFiles(7, "../../etc/passwd"),
        WantFiles(7, "0" * 64),
        WantPart(7, "x", 0, 1),
        WantPart(7, "0" * 64, -1, 1),
        WantPart(7, "0" * 64, 0, 1, model="0" * 64, constant="w", region=((0,),)),
        WantPart(7, "0" * 64, 0, 1, model="MODEL", constant="w", region=((0, 1), (5, 3))),
        WantPart(7, "0" * 64, 0, 1, model="MODEL", constant="v", shapes={"x": (-1,), "nothing": ()}),
    ],
    ids=str,
)
def test_every_question_gets_an_answer(there: Store, model: str, question: Any) -> None:
    """However wrong it is: whoever asks would wait in vain otherwise."""
    if getattr(question, "model", "") == "MODEL":
        question = replace(question, model=model)

    async def work(wire: Wire) -> None:
        wire.add("a", there)
        answer, payload = await wire.asks.ask("a", question, timeout_s=15)
        assert answer.error
        assert not payload

    run(work, there)


def test_what_is_asked_of_an_agent_that_stops_is_refused_at_once(there: Store) -> None:
    serving = BlobServer(there, lambda *_: None)
    serving.stop()
    with pytest.raises(Unavailable, match="stops"):
        serving.asked(ME, WantFiles(1, "0" * 64))


def test_an_answer_counts_only_from_whom_it_was_asked_and_in_time(there: Store) -> None:
    async def work(_: Wire) -> None:
        asks = RpcClient(lambda *_: None)
        asking = asyncio.create_task(asks.ask("a", WantFiles(0, "0")))
        await asyncio.sleep(0)
        asks.answered("b", Part(1, 0), memoryview(b"wrong"))
        asks.answered("a", Part(2, 0), memoryview(b"wrong"))
        asks.lost("b")
        asks.answered("a", Part(1, 0), memoryview(b"right"))
        asks.answered("a", Part(1, 0), memoryview(b"late"))
        assert bytes((await asking)[1]) == b"right"
        with pytest.raises(Unavailable, match="a did not answer WantFiles"):
            await asks.ask("a", WantFiles(0, "0"), timeout_s=0.01)
        asking = asyncio.create_task(asks.ask("a", WantFiles(0, "0")))
        await asyncio.sleep(0)
        asks.lost("a")
        with pytest.raises(Unavailable, match="the link to a went down"):
            await asking

    run(work, there)
