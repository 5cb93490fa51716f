"""Requester: requests through three executors with real sessions, replays included, and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgepart.agent.execution.copies import Scratch
from edgepart.agent.execution.executor import Executor
from edgepart.agent.execution.nchwc_array import PLAIN
from edgepart.agent.execution.runtime.sessions import Sessions
from edgepart.agent.serving.active_plan import activate_plan
from edgepart.agent.serving.request_state import RequestWindow
from edgepart.agent.serving.requester import Requester
from edgepart.agent.wire.inference import Cancel, EndSequence, Epoch, Failed, RequestMessage, Tensors
from edgepart.agent.wire.tensors import Value, pack_arrays, unpack_arrays
from edgepart.planner.errors import ClusterError, InternalError, RequestError, RunError, Unavailable
from edgepart.planner.plans.plan import (
    GATEWAY,
    Piece,
    Plan,
    Port,
    Program,
    Receive,
    Replica,
    Run,
    Send,
    Transfer,
    ValueInfo,
)
from edgepart.planner.region import Region
from tests.agent import handmade

BOUND_S = 20.0
E1, E2, E3 = Epoch(1, 1), Epoch(1, 2), Epoch(2, 1)
GATE = "node-a"


class Cluster:
    """A gateway on node-a and an executor on each node. Frames between nodes go through the codec."""

    def __init__(self, window: RequestWindow | None = None) -> None:
        self.dead: set[str] = set()
        self.cancelled: list[tuple[str, str]] = []
        self.sessions = Sessions(1, handmade.read_weight)
        self.at = {node: Executor(self.sender(node)) for node in handmade.NODES.values()}
        self.gateway = Requester(GATE, self.sender(GATE), window)
        for executor in self.at.values():
            executor.start()

    def sender(self, source: str) -> Callable[[str, RequestMessage, Sequence[Value]], None]:
        def send(node: str, message: RequestMessage, values: Sequence[Value]) -> None:
            if source in self.dead:
                return
            if node in self.dead:
                raise Unavailable(f"no connection with {node}")
            if node != source and values:
                metas, buffers = pack_arrays(values)
                values = unpack_arrays(metas, memoryview(b"".join(buffers)))
            if isinstance(message, Cancel):
                self.cancelled.append((node, message.request))
                self.at[node].cancel(message.request)
            elif isinstance(message, EndSequence):
                self.at[node].end_sequence(message.sequence)
            elif isinstance(message, Failed) or self.comes_back(message):
                self.gateway.deliver(message, values, source)
            else:
                self.at[node].deliver(message, values, source)

        return send

    def comes_back(self, message: Tensors) -> bool:
        return message.transfer in {4, 5, 8, 10, 11}

    def install(self, epoch: Epoch, plan: Plan) -> None:
        for device, program in plan.programs.items():
            prepared = self.sessions.prepare(program)
            executor = self.at[handmade.NODES[device]]
            executor.install("m", epoch, prepared, plan.transfers, handmade.NODES)
        self.gateway.activate("m", epoch, plan, handmade.NODES)

    def kill(self, node: str) -> None:
        self.dead.add(node)
        self.gateway.lost(node)
        for name, executor in self.at.items():
            if name not in self.dead:
                executor.lost(node)

    def stop(self) -> None:
        for executor in self.at.values():
            executor.stop()


def in_cluster(story: Callable[[Cluster], Awaitable[None]], window: RequestWindow | None = None) -> None:
    async def live() -> None:
        cluster = Cluster(window)
        try:
            await asyncio.wait_for(story(cluster), BOUND_S)
        finally:
            await asyncio.to_thread(cluster.stop)

    asyncio.run(live())


def assert_right(outputs: dict[str, Value], seed: int) -> None:
    expected = handmade.expected(handmade.request_input(seed))
    assert list(outputs) == list(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(outputs[name], value, rtol=1e-4, atol=1e-3)


def on_a_alone() -> Plan:
    """The same model with all of it on device a: transfers numbered so that `comes_back` knows them."""
    full = handmade.rows(0, 8)
    x, c1, y = (Piece(name, full) for name in ("x", "c1", "y"))
    total = Piece("total", Region.full((1,)))
    summing = handmade.segment(handmade.summing_nodes(), [Port("in", y)], [Port("out", total)])
    segments = (
        handmade.conv(x, c1, "w1", (1, 1)),
        handmade.conv(c1, y, "w2.", (1, 1)),
        summing,
    )
    steps = (Receive(0), Run(0), Run(1), Send(4), Run(2), Send(8))
    transfers = (
        Transfer(0, GATEWAY, "a", (x,), 0),
        Transfer(4, "a", GATEWAY, (y,), 0),
        Transfer(8, "a", GATEWAY, (total,), 0),
    )
    plan = handmade.split_plan()
    program = Program("a", steps, segments, 0, 0)
    return replace(plan, strategy="alone", programs={"a": program}, transfers=transfers)


def test_many_at_once_are_answered_right() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.install(E1, handmade.split_plan())
        asked = [cluster.gateway.infer("m", {"x": handmade.request_input(n)}) for n in range(40)]
        for n, (outputs, info) in enumerate(await asyncio.gather(*asked)):
            assert_right(outputs, n)
            assert (info.epoch, info.replays, info.strategy) == (E1, 0, "by hand")
        only, _ = await cluster.gateway.infer("m", {"x": handmade.request_input(1)}, outputs=["total"])
        assert list(only) == ["total"]
        assert cluster.gateway.counts() == {"m": (0, 0)}

    in_cluster(story)


def on_c_as_well() -> Plan:
    """`on_a_alone` twice, on devices a and c; the second one's transfers are 9 to 11."""
    plan = on_a_alone()
    numbers = {0: 9, 4: 10, 8: 11}
    steps = tuple(s if isinstance(s, Run) else type(s)(numbers[s.transfer]) for s in plan.programs["a"].steps)
    second = replace(plan.programs["a"], device="c", steps=steps)
    moved = tuple(
        replace(t, number=numbers[t.number], source=t.source and "c", target=t.target and "c")
        for t in plan.transfers
    )
    replicas = (Replica(("a",), 0.1, 0.1), Replica(("c",), 0.15, 0.15))
    programs = {**plan.programs, "c": second}
    return replace(plan, programs=programs, transfers=(*plan.transfers, *moved), replicas=replicas)


def test_replicas_answer_the_same_and_share_the_requests() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.install(E1, on_c_as_well())
        asked = [cluster.gateway.infer("m", {"x": handmade.request_input(n)}) for n in range(30)]
        for n, (outputs, _) in enumerate(await asyncio.gather(*asked)):
            assert_right(outputs, n)
        done = {node: executor.counters().requests_done for node, executor in cluster.at.items()}
        assert done["node-b"] == 0 and done["node-a"] + done["node-c"] == 30
        assert min(done["node-a"], done["node-c"]) > 0

    in_cluster(story)


def test_a_replica_dies_and_the_other_answers_at_once() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.install(E1, on_c_as_well())
        cluster.dead.add("node-c")  # and nobody has noticed yet
        asked = [
            asyncio.create_task(cluster.gateway.infer("m", {"x": handmade.request_input(n)}))
            for n in range(6)
        ]
        await asyncio.sleep(0)
        cluster.kill("node-c")
        for n, (outputs, info) in enumerate(await asyncio.gather(*asked)):
            assert_right(outputs, n)
            assert info.epoch == E1
        assert {node for node, _ in cluster.cancelled} <= {"node-c"}

    in_cluster(story)


def test_outputs_of_another_replica_are_refused() -> None:
    async def story(cluster: Cluster) -> None:
        plan = on_c_as_well()
        cluster.gateway.activate("m", E1, plan, handmade.NODES)
        sent: list[str] = []
        cluster.gateway._send = lambda node, message, _: sent.append(getattr(message, "request", ""))
        asked = asyncio.create_task(cluster.gateway.infer("m", {"x": handmade.request_input(1)}))
        await asyncio.sleep(0)
        full = handmade.request_input(1)
        cluster.gateway.deliver(Tensors("m", E1, sent[0], 10, ()), [full])
        with pytest.raises(RunError, match="10"):
            await asked

    in_cluster(story)


def test_a_device_dies_and_no_request_is_lost() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.install(E1, handmade.split_plan())
        cluster.dead.add("node-c")  # it is dead, and nobody has noticed yet
        asked = [
            asyncio.ensure_future(cluster.gateway.infer("m", {"x": handmade.request_input(n)}))
            for n in range(10)
        ]
        await asyncio.sleep(0)
        cluster.kill("node-c")
        for _ in range(100):  # the loop goes round; nothing can be answered on that epoch
            await asyncio.sleep(0)
        assert not any(one.done() for one in asked)
        cluster.install(E2, on_a_alone())
        for n, (outputs, info) in enumerate(await asyncio.gather(*asked)):
            assert_right(outputs, n)
            assert (info.epoch, info.strategy) == (E2, "alone")
            assert info.replays >= (n < 5)

    in_cluster(story, RequestWindow(in_flight=5))


def test_a_device_that_left_the_epoch_makes_it_be_tried_again() -> None:
    async def story(cluster: Cluster) -> None:
        plan = handmade.split_plan()
        cluster.install(E1, plan)
        (prepared,) = cluster.at["node-b"].retire("m", E1)
        asked = asyncio.ensure_future(cluster.gateway.infer("m", {"x": handmade.request_input(3)}))
        while not cluster.cancelled:
            await asyncio.sleep(0.001)
        cluster.at["node-b"].install("m", E1, prepared, plan.transfers, handmade.NODES)
        outputs, info = await asked
        assert_right(outputs, 3)
        assert info.replays >= 1

    in_cluster(story)


def test_the_model_s_own_complaint_is_the_answer() -> None:
    async def story(cluster: Cluster) -> None:
        plan = handmade.split_plan()
        cluster.install(E1, plan)
        cluster.at["node-a"].retire("m", E1)

        class Complains:
            program, dtypes, kept = plan.programs["a"], dict[str, Any](), PLAIN

            def scratch(self) -> Scratch:
                return Scratch()

            def run(self, segment: int, inputs: Sequence[Value], *rest: object) -> list[Value]:
                raise RequestError("Reshape_7: the input tensor cannot be reshaped")

        stand_in: Any = Complains()
        cluster.at["node-a"].install("m", E1, stand_in, plan.transfers, handmade.NODES)
        with pytest.raises(RunError, match="cannot be reshaped"):
            await cluster.gateway.infer("m", {"x": handmade.request_input(1)})
        assert {node for node, _ in cluster.cancelled} == set(handmade.NODES.values())

    in_cluster(story)


def test_the_deadline_is_kept() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.gateway.activate("m", E1, handmade.split_plan(), handmade.NODES)  # nobody has it installed
        with pytest.raises(ClusterError, match="deadline"):
            await cluster.gateway.infer("m", {"x": handmade.request_input(1)}, deadline_s=0.05)
        assert cluster.gateway.counts() == {"m": (0, 0)}

    in_cluster(story)


def test_a_client_that_hangs_up_leaves_nothing_behind() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.gateway.activate("m", E1, handmade.split_plan(), handmade.NODES)
        asked = asyncio.ensure_future(cluster.gateway.infer("m", {"x": handmade.request_input(1)}))
        await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert cluster.gateway.counts() == {"m": (0, 0)}
        assert cluster.cancelled

    in_cluster(story)


def test_undeployed_or_unknown() -> None:
    async def story(cluster: Cluster) -> None:
        with pytest.raises(Unavailable, match="no plan of 'm'"):
            await cluster.gateway.infer("m", {})
        cluster.gateway.activate("m", E1, handmade.split_plan(), handmade.NODES)
        cluster.kill("node-b")
        asked = asyncio.ensure_future(cluster.gateway.infer("m", {"x": handmade.request_input(1)}))
        await asyncio.sleep(0)
        cluster.gateway.remove("m")
        with pytest.raises(ClusterError, match="undeployed"):
            await asked
        assert cluster.gateway.active("m") is None

    in_cluster(story)


def test_too_many_are_refused() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.gateway.activate("m", E1, handmade.split_plan(), handmade.NODES)
        x = {"x": handmade.request_input(1)}
        held = [asyncio.ensure_future(cluster.gateway.infer("m", x)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="2 requests wait for"):
            await cluster.gateway.infer("m", x)
        for one in held:
            one.cancel()
        await asyncio.gather(*held, return_exceptions=True)

    in_cluster(story, RequestWindow(in_flight=1, waiting=2))


X = handmade.request_input(0)


@pytest.mark.parametrize(
    ("inputs", "outputs", "why"),
    [
        ({}, [], r"input 'x' is missing; the model takes x: float \[1, 2, 8, 6\]"),
        ({"x": X, "z": X}, [], "there is no input 'z'"),
        ({"x": X.astype(np.float64)}, [], "is of double; expected x: float"),
        ({"x": X[0]}, [], r"has shape \[2, 8, 6\]"),
        ({"x": X.tolist()}, [], "is a list"),
        ({"x": X}, ["z"], "has no output 'z'"),
    ],
)
def test_a_request_that_does_not_fit_says_what_does(
    inputs: dict[str, Value], outputs: list[str], why: str
) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.gateway.activate("m", E1, handmade.split_plan(), handmade.NODES)
        with pytest.raises(RequestError, match=why):
            await cluster.gateway.infer("m", inputs, outputs=outputs)

    in_cluster(story)


def test_a_replay_on_another_model_is_checked_again() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.gateway.activate("m", E1, handmade.split_plan(), handmade.NODES)
        cluster.kill("node-b")
        asked = asyncio.ensure_future(cluster.gateway.infer("m", {"x": X}))
        await asyncio.sleep(0)
        other = replace(on_a_alone(), inputs=(ValueInfo("x", "float", (9,)),))
        cluster.gateway.activate("m", E2, other, handmade.NODES)
        with pytest.raises(RequestError, match=r"expected x: float \[9\]"):
            await asked

    in_cluster(story)


def test_constant_outputs_text_and_values_of_no_known_shape() -> None:
    async def story(cluster: Cluster) -> None:
        infos = (ValueInfo("text", "string", None), ValueInfo("list", "sequence", None))
        constant = ValueInfo("k", "float", (2,))
        plan = Plan("0", "none", {}, (), infos, (infos[0], constant), ("text", "k"))
        with pytest.raises(InternalError, match="'k'"):
            cluster.gateway.activate("m", E1, plan, {})
        cluster.gateway.activate("m", E1, plan, {}, {"k": np.ones(2, np.float32)})
        outputs, _ = await cluster.gateway.infer("m", {"text": np.array(["é"]), "list": [X]})
        assert outputs["text"].tolist() == ["é"] and outputs["text"].dtype == object
        assert outputs["k"].tolist() == [1, 1]
        with pytest.raises(RequestError, match="of any shape"):
            await cluster.gateway.infer("m", {"text": "é", "list": []})

    in_cluster(story)


def test_frames_that_are_not_for_this_run_or_do_not_fit_are_dropped_or_fail_it() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.install(E1, handmade.split_plan())
        for name in ("", "node-a/0/0", "x/y", "node-a/zz/-1"):
            cluster.gateway.deliver(Tensors("m", E1, name, 4, ()), [X])
        seen: list[str] = []

        def listen(message: Tensors, values: Sequence[Value], source: str = "") -> None:
            seen.append(message.request)

        cluster.at["node-b"].deliver = listen  # type: ignore[method-assign]
        asked = asyncio.ensure_future(cluster.gateway.infer("m", {"x": X}))
        while not seen:
            await asyncio.sleep(0.001)
        cluster.gateway.deliver(Tensors("m", E1, seen[0] + "0", 4, ()), [X])
        cluster.gateway.deliver(Tensors("m", E2, seen[0], 4, ()), [X])
        cluster.gateway.deliver(Tensors("m", E1, seen[0], 4, ()), [X])
        with pytest.raises(RunError, match=r"in shape \(1, 2, 8, 6\), not \(1, 2, 4, 6\)"):
            await asked

    in_cluster(story)


def test_an_older_plan_is_not_activated() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.gateway.activate("m", E3, on_a_alone(), handmade.NODES)
        cluster.gateway.activate("m", E2, handmade.split_plan(), handmade.NODES)
        active = cluster.gateway.active("m")
        assert active is not None and active.strategy == "alone"

    in_cluster(story)


def test_a_plan_without_all_of_an_output_is_refused() -> None:
    plan = handmade.split_plan()
    with pytest.raises(InternalError, match="all of output 'y'"):
        activate_plan(replace(plan, transfers=plan.transfers[:5]), handmade.NODES, {})
    with pytest.raises(InternalError, match=r"\['b', 'c'\]"):
        activate_plan(plan, {"a": "1"}, {})


def test_who_knows_one_request_s_name_cannot_name_the_next() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.install(E1, handmade.split_plan())
        names: list[str] = []
        for _ in range(3):
            _, info = await cluster.gateway.infer("m", {"x": X})
            names.append(info.request)
        runs, lasts = zip(*(name.rsplit("/", 1) for name in names), strict=True)
        assert len(set(runs)) == 1
        numbers, tags = zip(*(last.split("-") for last in lasts), strict=True)
        assert list(map(int, numbers)) == sorted(set(map(int, numbers)))
        assert len(set(tags)) == 3 and all(len(tag) == 16 for tag in tags)

        wanted: list[str] = []
        computes = cluster.at["node-b"].deliver

        def listen(message: Tensors, values: Sequence[Value], source: str = "") -> None:
            wanted.append(message.request)
            following = int(message.request.rpartition("/")[2].partition("-")[0])
            for guess in (following, f"{following}-{tags[-1]}", f"{following}-", f"{following}-{'0' * 16}"):
                told = f"{runs[0]}/{guess}"
                cluster.gateway.deliver(Failed("m", E1, told, False, "no"), (), "node-b")
            computes(message, values, source)

        cluster.at["node-b"].deliver = listen  # type: ignore[method-assign]
        outputs, info = await cluster.gateway.infer("m", {"x": X})
        assert_right(outputs, 0)
        assert wanted and info.replays == 0

    in_cluster(story)


def test_nobody_answers_but_who_is_to_by_the_plan() -> None:
    """Not even a member that took part in another request, and knows how requests are called."""

    async def story(cluster: Cluster) -> None:
        cluster.install(E1, handmade.split_plan())
        seen: list[str] = []
        computes = cluster.at["node-b"].deliver

        def listen(message: Tensors, values: Sequence[Value], source: str = "") -> None:
            seen.append(message.request)
            for liar in ("node-x", "node-b", "node-c"):
                cluster.gateway.deliver(Tensors("m", E1, message.request, 4, ()), [X[:, :, :4] * 0], liar)
            cluster.gateway.deliver(Failed("m", E1, message.request, False, "no"), (), "node-x")
            computes(message, values, source)

        cluster.at["node-b"].deliver = listen  # type: ignore[method-assign]
        outputs, info = await cluster.gateway.infer("m", {"x": X})
        assert_right(outputs, 0)
        assert seen and info.replays == 0

    in_cluster(story)
