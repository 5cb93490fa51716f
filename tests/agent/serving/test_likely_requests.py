"""Requests that want the most likely entries of their outputs alone, through executors and the codec."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
from onnx import helper

from edgepart.agent.serving.requester import Requester
from edgepart.agent.wire.inference import Failed, RequestMessage, Tensors
from edgepart.agent.wire.likely_entries import LikelyEntries, find_likely
from edgepart.agent.wire.tensors import Value, value_bytes
from edgepart.planner.errors import RunError
from edgepart.planner.plans.plan import (
    GATEWAY,
    Piece,
    Plan,
    Port,
    Program,
    Receive,
    Run,
    Send,
    Transfer,
    ValueInfo,
)
from edgepart.planner.region import Array, Region
from tests.agent import handmade
from tests.agent.serving.test_requester import E1, Cluster, in_cluster

SHAPE = (2, 1, 400)
X = np.random.default_rng(5).standard_normal(SHAPE).astype(np.float32) * 3


def columns(tensor: str, start: int, stop: int) -> Piece:
    return Piece(tensor, Region.box((0, 2), (0, 1), (start, stop)))


def negating(number: int, device: str, read: Piece, write: Piece, back: int) -> Program:
    node = helper.make_node("Neg", ["in"], ["out"])
    made = handmade.segment([node], [Port("in", read)], [Port("out", write)])
    return Program(device, (Receive(number), Run(0), Send(back)), (made,), 0, 0)


def plan_of(programs: Sequence[Program], transfers: Sequence[Transfer]) -> Plan:
    by_device = {program.device: program for program in programs}
    x, logits = (ValueInfo(name, "float", SHAPE) for name in ("x", "logits"))
    return Plan("0" * 64, "by hand", by_device, tuple(transfers), (x,), (logits,))


def halves(first_stop: int = 240, second_start: int = 240) -> Plan:
    """Devices b and c each make some columns of -x."""
    parts = {"b": (0, first_stop), "c": (second_start, 400)}
    programs, transfers = [], []
    for number, (device, bounds) in enumerate(parts.items()):
        x, logits = columns("x", *bounds), columns("logits", *bounds)
        programs.append(negating(number, device, x, logits, number + 4))
        transfers.append(Transfer(number, GATEWAY, device, (x,), 0))
        transfers.append(Transfer(number + 4, device, GATEWAY, (logits,), 0))
    return plan_of(programs, transfers)


def chain() -> Plan:
    """Device b makes -x, and device c makes x of it again; only what goes to the gateway may be reduced."""
    x, middle, logits = (columns(name, 0, 400) for name in ("x", "middle", "logits"))
    programs = [negating(0, "b", x, middle, 1), negating(1, "c", middle, logits, 4)]
    transfers = [
        Transfer(0, GATEWAY, "b", (x,), 0),
        Transfer(1, "b", "c", (middle,), 0),
        Transfer(4, "c", GATEWAY, (logits,), 0),
    ]
    return plan_of(programs, transfers)


async def ask(cluster: Cluster, x: Array, likely: int) -> Value:
    outputs, _ = await cluster.gateway.run("m", {"x": x}, 20.0, ("logits",), likely=likely)
    return outputs["logits"]


@pytest.mark.parametrize(("plan", "sign"), [(halves(), -1), (chain(), 1)], ids=["halves", "chain"])
def test_what_is_likely_comes_alone_and_is_that_of_the_whole(
    plan: Plan, sign: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived: list[int] = []
    deliver = Requester.deliver

    def count(self: Requester, message: Tensors | Failed, values: Sequence[Value], source: str) -> None:
        arrived.extend(map(value_bytes, values))
        deliver(self, message, values, source)

    async def story(cluster: Cluster) -> None:
        cluster.install(E1, plan)
        assert np.array_equal(await ask(cluster, X, 0), sign * X)
        assert sum(arrived) == X.nbytes
        arrived.clear()
        for likely in (1, 7, 60):
            found, expected = await ask(cluster, X, likely), find_likely(sign * X, likely)
            assert isinstance(found, LikelyEntries) and found.shape == SHAPE
            assert np.array_equal(found.ids, expected.ids) and np.array_equal(found.values, expected.values)
            assert found.log_sums == pytest.approx(expected.log_sums, abs=1e-5)
        # From each device, for each row, an id and a number for each entry, and the sum.
        pieces = sum(transfer.target == GATEWAY for transfer in plan.transfers)
        assert sum(arrived) == pieces * 2 * 8 * (1 + 7 + 60 + 3)

    monkeypatch.setattr(Requester, "deliver", count)
    in_cluster(story)


def test_pieces_that_overlap_come_whole() -> None:
    """What their exponentials come to would be counted twice."""

    async def story(cluster: Cluster) -> None:
        cluster.install(E1, halves(300, 200))
        assert np.array_equal(await ask(cluster, X, 3), -X)

    in_cluster(story)


def test_pieces_that_are_short_come_whole_beside_others_that_do_not() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.install(E1, halves(390, 390))
        found, expected = await ask(cluster, X, 20), find_likely(-X, 20)
        assert isinstance(found, LikelyEntries) and np.array_equal(found.ids, expected.ids)
        assert np.array_equal(await ask(cluster, X, 300), -X), "Of either device everything comes."

    in_cluster(story)


def test_numbers_that_are_none_make_their_rows_unknown() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.install(E1, halves())
        x = X.copy()
        x[1, 0, 3] = np.nan
        found = await ask(cluster, x, 5)
        assert isinstance(found, LikelyEntries) and np.isfinite(found.log_sums).tolist() == [True, False]

    in_cluster(story)


@pytest.mark.parametrize(("likely", "sent_count"), [(0, 3), (5, 3)])
def test_entries_that_nobody_asked_for_end_the_request(likely: int, sent_count: int) -> None:
    asked: list[Tensors] = []

    def send(node: str, message: RequestMessage, values: Sequence[Value]) -> None:
        if isinstance(message, Tensors):
            asked.append(message)

    async def story() -> None:
        gateway = Requester("gate", send)
        gateway.activate("m", E1, halves(), handmade.NODES)
        answer = asyncio.create_task(gateway.run("m", {"x": X}, 20.0, ("logits",), likely=likely))
        await asyncio.sleep(0)
        assert {message.likely for message in asked} == {likely}
        entries = find_likely(X[..., :240], sent_count)
        gateway.deliver(Tensors("m", E1, asked[0].request, 4, ()), [entries], "node-b")
        with pytest.raises(RunError, match=f"3 likely entries .* not {likely}"):
            await answer

    asyncio.run(story())


def test_a_device_ends_a_request_whose_messages_want_different_numbers() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.install(E1, handmade.split_plan())
        x = handmade.request_input(1)
        answer = asyncio.create_task(cluster.gateway.infer("m", {"x": x}, likely=2))
        await asyncio.sleep(0)
        (flight,) = cluster.gateway._flights
        odd = Tensors("m", E1, cluster.gateway._name_of(flight), 3, (), likely=1)
        cluster.at["node-a"].deliver(odd, [handmade.part("c1")(4, 5).region.crop(x)], "node-b")
        with pytest.raises(RunError, match="wants 2 likely entries"):
            await answer

    in_cluster(story)
