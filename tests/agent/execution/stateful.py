"""A device by hand whose program keeps a state, with the gateway played by the test.

s' = 2 (s + x) + z      `x` and `z` come one after the other from the gateway, and the answer is s'
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import Queue
from typing import Any

import numpy as np
from onnx import helper

from edgepart.agent.execution.executor import Executor
from edgepart.agent.execution.runtime.sessions import Sessions
from edgepart.agent.wire.inference import Epoch, Failed, RequestMessage, SequenceStep, Tensors
from edgepart.agent.wire.tensors import Value
from edgepart.planner.plans.plan import (
    GATEWAY,
    KeptPiece,
    Piece,
    Port,
    Program,
    Receive,
    Run,
    Send,
    Transfer,
)
from edgepart.planner.region import Region
from tests.agent import handmade

BOUND_S = 20.0
EPOCH = Epoch(3, 1)
GATE = "gate"
X, Z, ANSWER = 0, 1, 2
"""The numbers of the transfers."""


def piece(name: str) -> Piece:
    return Piece(name, Region.full((2,)))


def transfers_of(device: str, x: int = X, z: int = Z, answer: int = ANSWER) -> tuple[Transfer, ...]:
    """The transfers of a device that computes all, with these numbers."""
    return (
        Transfer(x, GATEWAY, device, (piece("x"),), 8),
        Transfer(z, GATEWAY, device, (piece("z"),), 8),
        Transfer(answer, device, GATEWAY, (piece("sn"),), 8),
    )


TRANSFERS = transfers_of("a")


def program(sequences: int = 4, device: str = "a", x: int = X, z: int = Z, answer: int = ANSWER) -> Program:
    def port(name: str) -> Port:
        return Port(name, piece(name))

    segments = (
        handmade.segment([helper.make_node("Add", ["s", "x"], ["m"])], [port("s"), port("x")], [port("m")]),
        handmade.segment(
            [helper.make_node("Sum", ["m", "m", "z"], ["sn"])], [port("m"), port("z")], [port("sn")]
        ),
    )
    steps = (Receive(x), Run(0), Receive(z), Run(1), Send(answer))
    kept = KeptPiece(piece("s"), piece("sn"), "float", 8)
    return Program(device, steps, segments, 0, 0, kept=(kept,), sequences=sequences)


def stateless_program() -> Program:
    """A program that makes x + z as its part of the model, and keeps nothing."""
    ports = [Port(name, piece(name)) for name in ("x", "z", "sn")]
    segment = handmade.segment([helper.make_node("Add", ["x", "z"], ["sn"])], ports[:2], ports[2:])
    return Program("a", (Receive(X), Receive(Z), Run(0), Send(ANSWER)), (segment,), 0, 0)


def after(steps: Sequence[int]) -> float:
    """The state after steps with these numbers as `x` and as `z`: a plain twin."""
    state = 0.0
    for number in steps:
        state = 2 * (state + number) + number
    return state


class Device:
    """One executor, and the mail of its gateways in the order in which it was sent."""

    def __init__(self, deployments: Sequence[str] = ("m",), sequences: int = 4) -> None:
        self.mail: Queue[tuple[Tensors | Failed, Sequence[Value]]] = Queue()
        self.executor = Executor(self._send)
        self.sequences = sequences
        for name in deployments:
            self.install(name)
        self.executor.start()

    def _send(self, node: str, message: RequestMessage, values: Sequence[Value]) -> None:
        if isinstance(message, Tensors | Failed):
            self.mail.put((message, values))

    def install(self, deployment: str = "m", made: Program | None = None) -> None:
        prepared = Sessions(1, handmade.read_weight).prepare(made or program(self.sequences))
        self.executor.install(deployment, EPOCH, prepared, TRANSFERS, {"a": "node-a"})

    def give(
        self,
        request: str,
        number: int,
        *transfers: int,
        step: SequenceStep | None = None,
        deployment: str = "m",
    ) -> None:
        """Deliver these transfers of a request, all numbers of which are `number`."""
        name = request if "/" in request else f"{GATE}/0/{request}"
        for transfer in transfers or (X, Z):
            message = Tensors(deployment, EPOCH, name, transfer, (), step=step)
            self.executor.deliver(message, [np.full(2, number, np.float32)], GATE)

    def next(self) -> tuple[str, float | Failed]:
        """The request that is answered next, and its answer."""
        message, values = self.mail.get(timeout=BOUND_S)
        name = message.request.rpartition("/")[2]
        if isinstance(message, Failed):
            return name, message
        answer: Any = values[0]
        assert (answer == answer[0]).all()
        return name, float(answer[0])

    def answer(self, request: str) -> float:
        name, found = self.next()
        assert name == request and isinstance(found, float), found
        return found

    def failure(self, request: str) -> Failed:
        name, found = self.next()
        assert name == request and isinstance(found, Failed), found
        return found

    def stop(self) -> None:
        self.executor.stop()


def on_device(story: Callable[[Device], None], **wanted: Any) -> None:
    device = Device(**wanted)
    try:
        story(device)
    finally:
        device.stop()


def step_of(position: int, sequence: str = f"{GATE}/0/p") -> SequenceStep:
    return SequenceStep(sequence, position, position + 1)
