"""Devices that keep rows of one sequence, mirror each other and carry states, with a fake wire between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from threading import RLock
from typing import Any

import numpy as np

from edgepart.agent.execution.carried_states import CarriedStates, PlanId
from edgepart.agent.execution.sequences import KeptSequences, SequenceKey
from edgepart.agent.serving.state_exchange import StateExchange
from edgepart.agent.wire.inference import (
    Epoch,
    ResumeSequence,
    SentRows,
    SequenceResumed,
    SequenceStep,
    StateMessage,
)
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import EdgepartError, StateLost, Unavailable
from edgepart.planner.plans.plan import KeptPiece, Piece, Plan, Program
from edgepart.planner.region import Array, Region

GATE = "gate"
SEQUENCE = f"{GATE}/0/text"
ROWS, HEADS, SIZE = 24, 4, 2
CACHES = ("keys", "values")


def row(cache: str, head: int, tokens: Sequence[int]) -> float:
    """What the row of the last of these tokens has to be."""
    total = CACHES.index(cache) + 1
    for token in tokens:
        total = (total * 31 + token * 7 + head + 1) % 1_000_003
    return float(total)


def truth(piece: Piece, tokens: Sequence[int]) -> Array:
    """The rows of a piece that these tokens have to leave."""
    heads = range(piece.region.spans[1][0].start, piece.region.spans[1][0].stop)
    rows = [[[row(piece.tensor, head, tokens[: n + 1])] * SIZE for n in range(len(tokens))] for head in heads]
    return np.array(rows, np.float32).reshape(1, len(heads), len(tokens), SIZE)


def program(device: str, heads: tuple[int, int], sequences: int = 2) -> Program:
    region = Region.box((0, 1), heads, (0, ROWS), (0, SIZE))
    kept = tuple(
        KeptPiece(
            Piece(cache, region), Piece(f"new {cache}", region), "float", region.nbytes(4), in_place=True
        )
        for cache in CACHES
    )
    return Program(device, (), (), 0, 0, kept=kept, sequences=sequences)


def plan_of(shares: Mapping[str, tuple[int, int]], mirrors: Mapping[str, str]) -> Plan:
    programs = {device: program(device, heads) for device, heads in shares.items()}
    return Plan("0" * 64, "by hand", programs, (), (), (), mirrors=dict(mirrors))


@dataclass(frozen=True)
class Held:
    plan: Plan
    nodes: Mapping[str, str]


@dataclass
class Prepared:
    """As much of a RunnableProgram as keeping states takes."""

    program: Program

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return np.full(shape, 7, dtype)


@dataclass(eq=False)
class Node:
    """One device. Its node id is its name."""

    name: str
    world: World
    kept: KeptSequences = field(default_factory=KeptSequences)
    plans: dict[PlanId, Held] = field(default_factory=dict)
    busy: set[SequenceKey] = field(default_factory=set)

    def __post_init__(self) -> None:
        states = CarriedStates(
            RLock(), self.kept, self.prepared, lambda _: None, lambda: self.busy, lambda: self.world.now
        )
        self.exchange = StateExchange(
            self.name, self.send, states, lambda name, epoch: self.plans.get((name, epoch))
        )

    def prepared(self, plan: PlanId) -> Any:
        held = self.plans.get(plan)
        mine = held.plan.programs.get(self.name) if held is not None else None
        return Prepared(mine) if mine is not None else None

    def send(self, node: str, message: StateMessage, values: Sequence[Value]) -> None:
        self.world.send(self.name, node, message, [np.array(value) for value in values])

    def install(self, plan: PlanId, held: Held) -> None:
        self.plans[plan] = held
        mirror = held.plan.mirrors.get(self.name)
        if mirror is not None:
            self.exchange.mirrors.begin(plan, mirror)

    def retire(self, plan: PlanId) -> None:
        self.kept.retire(*plan)
        self.exchange.retire(plan)
        self.plans.pop(plan, None)

    def step(self, plan: PlanId, step: SequenceStep, tokens: Sequence[int], now: float) -> None:
        """Make a step that reads the tokens behind `step.position`. Raises StateLost."""
        prepared, key = self.prepared(plan), (*plan, step.sequence)
        began = self.kept.begin(key, step, prepared, now)
        for piece, value in zip(prepared.program.kept, began, strict=True):
            rows = truth(piece.read, tokens[: step.after])
            value[:, :, step.position : step.after] = rows[:, :, step.position :]
        self.kept.finish(key, step, prepared, began, began, now)

    def rows(self, plan: PlanId) -> Mapping[str, tuple[Piece, Array]]:
        """What is kept by the plan, by the cache."""
        found = self.kept.rows(SEQUENCE)[plan]
        pieces = self.prepared(plan).program.kept
        return {one.read.tensor: (one.read, value) for one, value in zip(pieces, found.values, strict=True)}


class World:
    """Devices, and what is on its way between them: in order from one to another, otherwise in any order."""

    def __init__(self, names: Sequence[str], chance: Random) -> None:
        self.chance = chance
        self.nodes = {name: Node(name, self) for name in names}
        self.wires: dict[tuple[str, str], deque[tuple[StateMessage, list[Value]]]] = {}
        self.resumed: dict[str, int] = {}
        self.carried_bytes = 0
        """What has travelled of rows that were asked for."""
        self.faults: list[EdgepartError] = []
        """Errors in which messages ended."""
        self.tokens: list[int] = []
        self.revision = 1
        self.since = 0
        self.now = 0.0
        self.epoch = 0
        self.shares: Mapping[str, tuple[int, int]] = {}

    @property
    def plan(self) -> PlanId:
        return "m", Epoch(1, self.epoch)

    def send(self, source: str, target: str, message: StateMessage, values: list[Value]) -> None:
        if target == GATE:
            assert isinstance(message, SequenceResumed)
            self.resumed[source] = message.position
        elif target in self.nodes:
            if isinstance(message, SentRows):
                self.carried_bytes += sum(np.asarray(value).nbytes for value in values)
            self.wires.setdefault((source, target), deque()).append((message, values))
        else:
            raise Unavailable(f"no connection with {target}")

    def deliver(self, most: int = 1_000_000) -> None:
        """Deliver so many messages; all if there are no more."""
        for _ in range(most):
            busy = [pair for pair, waiting in self.wires.items() if waiting]
            if not busy:
                return
            source, target = self.chance.choice(busy)
            message, values = self.wires[source, target].popleft()
            try:
                self.nodes[target].exchange.take(message, values, source, self.now)
            except StateLost:
                continue  # It came late: the plan is not held any more.
            except EdgepartError as error:
                self.faults.append(error)

    def mirror(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            for node in self.nodes.values():
                node.exchange.send_grown()

    def kill(self, name: str) -> None:
        """End a device. What it had sent may still arrive before others notice."""
        del self.nodes[name]
        for pair in [pair for pair in self.wires if name in pair]:
            if pair[1] == name or self.chance.random() < 0.5:
                self.wires[pair].clear()
        self.deliver(self.chance.randrange(5))
        for pair in [pair for pair in self.wires if name in pair]:
            self.wires[pair].clear()
        for node in self.nodes.values():
            node.exchange.lose(name)

    def switch(self, shares: Mapping[str, tuple[int, int]], mirrors: Mapping[str, str]) -> None:
        """Let a new plan serve. The one before stays for a while."""
        self.epoch += 1
        held = Held(plan_of(shares, mirrors), {name: name for name in self.nodes})
        for node in self.nodes.values():
            node.install(self.plan, held)
            if self.epoch > 2:
                node.retire(("m", Epoch(1, self.epoch - 2)))
        self.shares = shares

    def resume(self) -> int:
        """Ask the devices of the plan for the states that there are; returns how far they reach."""
        self.resumed.clear()
        asked = ResumeSequence(
            *self.plan, SEQUENCE, self.revision, len(self.tokens), (*sorted(self.nodes), "gone"), self.since
        )
        for name in self.shares:
            self.wires.setdefault((GATE, name), deque()).append((asked, []))
        self.deliver()
        assert self.resumed.keys() == set(self.shares)
        at = min(self.resumed.values())
        for name in self.shares:
            if at:
                for piece, value in self.nodes[name].rows(self.plan).values():
                    np.testing.assert_array_equal(value[:, :, :at], truth(piece, self.tokens[:at]))
        return at

    def read(self, token: int) -> int:
        """Read one more token, and all those before it that devices have lost. Returns the number of the latter."""
        self.now += 1.0
        self.tokens.append(token)
        at, again = len(self.tokens) - 1, 0
        while at < len(self.tokens):
            step = SequenceStep(SEQUENCE, at, at + 1, self.revision, self.since)
            try:
                for name in self.shares:
                    self.nodes[name].step(self.plan, step, self.tokens, self.now)
            except StateLost:
                whole = self.tokens
                self.tokens = whole[:-1]
                at = self.resume()
                self.tokens = whole
                again += len(self.tokens) - 1 - at
                continue
            at += 1
        for name in self.shares:
            for piece, value in self.nodes[name].rows(self.plan).values():
                np.testing.assert_array_equal(value[:, :, : len(self.tokens)], truth(piece, self.tokens))
        return again

    def cut(self, length: int) -> None:
        """Go on differently from this token on."""
        if length < len(self.tokens):
            self.revision, self.since = self.revision + 1, length
        del self.tokens[length:]
