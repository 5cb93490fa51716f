"""Caches that workers write in place: an operator's output lies where its input was, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from edgepart.agent.execution.executor import Executor
from edgepart.agent.execution.runtime.sessions import Sessions
from edgepart.agent.execution.schedule import Progress, make_schedule
from edgepart.agent.storage.store import Store
from edgepart.agent.verify.local_run import LocalRun
from edgepart.agent.wire.inference import Epoch, RequestMessage, SequenceStep, Tensors
from edgepart.agent.wire.tensors import Value
from edgepart.agent.workers.device_workers import Workers
from edgepart.agent.workers.orders import WorkerSettings
from edgepart.agent.workers.remote_program import RemoteProgram
from edgepart.planner.devices.cluster import Cluster, Device
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.model.blobs import pack_constant
from edgepart.planner.model.stateful import load_with_states
from edgepart.planner.planner import choose_plan
from edgepart.planner.plans.plan import GATEWAY, Run
from edgepart.planner.region import Array
from tests.agent.workers.bench import kill
from tests.planner.model.test_context_shapes import HEADS, buffered

BOUND_S = 60.0
CONTEXT = 16
SIZE = 8
MODEL = buffered(SIZE)
EPOCH = Epoch(1, 1)
GRAPH = load_with_states(MODEL, {}, context=CONTEXT)[0]
CLUSTER = Cluster((Device("a", "virtual", 1e9, 1e9, 1e12),))
PLAN = choose_plan(Problem(GRAPH, CLUSTER, "a"), "single", "0" * 64)[0]
PROGRAM = PLAN.programs["a"]


def inputs_of(step: int) -> dict[str, Array]:
    x = np.random.default_rng(step).standard_normal((1, 1, HEADS * SIZE)).astype(np.float32)
    return {"x": x, "attention_mask": (np.arange(CONTEXT) <= step).astype(np.int64)[None]}


def alone(steps: int) -> list[Array]:
    """The answers of one session that gets its own caches back."""
    session = ort.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    states = {
        state.input: np.zeros(GRAPH.tensors[state.input].shape or (), np.float32) for state in GRAPH.states
    }
    answers = []
    for step in range(steps):
        names = ["y", *(state.output for state in GRAPH.states)]
        y, *after = session.run(names, {**inputs_of(step), **states})
        states = dict(zip(states, after, strict=True))
        answers.append(y)
    return answers


@pytest.fixture
def there(tmp_path: Path) -> Iterator[RemoteProgram]:
    """The program in a worker."""
    store = Store(tmp_path / "store")
    for ref in {ref.digest: ref for segment in PROGRAM.segments for ref in segment.weights}.values():
        store.put_bytes(pack_constant(GRAPH.constants[ref.source], ref.region).tobytes())
    workers = Workers(WorkerSettings(store.root, tmp_path / "compiled", 0, 1), 1 << 28)
    yield workers.prepare("m", "0" * 64, PROGRAM, PLAN.transfers)
    workers.stop()


def begun(prepared: Any, step: int, states: Sequence[Value]) -> Progress:
    """A step that has everything it reads."""
    progress = Progress(make_schedule(PROGRAM, PLAN.transfers, prepared.dtypes, prepared.kept))
    assert not progress.begun and progress.next_work() is None
    progress.begin(states)
    inputs = inputs_of(step)
    for transfer in PLAN.transfers:
        if transfer.source == GATEWAY:
            progress.keep_pieces(
                transfer.number, [one.region.crop(inputs[one.tensor]) for one in transfer.pieces]
            )
    return progress


def zeros(prepared: Any) -> list[Array]:
    made = [prepared.empty(one.read.region.shape, np.dtype(np.float32)) for one in PROGRAM.kept]
    for one in made:
        one.fill(0)
    return made


def test_only_the_caches_may_be_written_over() -> None:
    schedule = make_schedule(PROGRAM, PLAN.transfers)
    (pairs,) = schedule.overwrites.values()
    (index,) = schedule.overwrites
    step = PROGRAM.steps[index]
    assert isinstance(step, Run)
    segment = PROGRAM.segments[step.segment]
    names = {segment.inputs[a].piece.tensor: segment.outputs[b].piece.tensor for a, b in pairs}
    assert names == {state.input: state.output for state in GRAPH.states}


def test_a_worker_writes_the_caches_where_they_are_and_computes_the_same(there: RemoteProgram) -> None:
    here = Sessions(1, lambda ref: pack_constant(GRAPH.constants[ref.source], ref.region)).prepare(
        PROGRAM, PLAN.transfers
    )
    states = zeros(there)
    copies: list[Any] = list(zeros(here))
    offsets = [there.exchange.memory.offset(one) for one in states]
    assert None not in offsets
    for number in range(3):
        progress, twin = begun(there, number, states), begun(here, number, copies)
        work, same = progress.next_work(), twin.next_work()
        assert work is not None and same is not None
        assert isinstance(work.step, Run) and len(work.overwrites) == 2
        found = there.run(work.step.segment, work.values(), overwrites=work.overwrites)
        expected = here.run(work.step.segment, same.values())
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
        progress.done(found)
        twin.done(expected)
        kept: Any = progress.keep_state()
        assert [there.exchange.memory.offset(one) for one in kept] == offsets
        assert all(one is other for one, other in zip(kept, states, strict=True))
        copies = list(twin.keep_state())
        assert np.count_nonzero(states[0].any(axis=(0, 1, 3))) == number + 1  # one more row


def test_without_overwrites_a_worker_leaves_its_inputs_as_they_are(there: RemoteProgram) -> None:
    states = zeros(there)
    work = begun(there, 0, states).next_work()
    assert work is not None and isinstance(work.step, Run)
    there.run(work.step.segment, work.values())
    assert not any(one.any() for one in states)


class Steps:
    """The steps of one sequence by an executor and a worker."""

    def __init__(self, prepared: Any) -> None:
        self._mail: Queue[Any] = Queue()
        self.executor = Executor(self._take)
        self.executor.install("m", EPOCH, prepared, PLAN.transfers, {"a": "node"})
        self.executor.start()

    def _take(self, node: str, message: RequestMessage, values: Sequence[Value]) -> None:
        self._mail.put(values[0] if isinstance(message, Tensors) else message)

    def ask(self, request: str, number: int, inputs: Mapping[str, Array]) -> Any:
        step = SequenceStep("gate/0/p", number, number + 1)
        for transfer in PLAN.transfers:
            if transfer.source == GATEWAY:
                message = Tensors("m", EPOCH, f"gate/0/{request}", transfer.number, (), step=step)
                pieces = [one.region.crop(inputs[one.tensor]) for one in transfer.pieces]
                self.executor.deliver(message, pieces)
        return self._mail.get(timeout=BOUND_S)


def test_many_steps_give_what_one_session_gives_through_repetitions_and_the_worker_s_end(
    there: RemoteProgram,
) -> None:
    expected = alone(CONTEXT)
    steps = Steps(there)
    for number in range(CONTEXT):
        np.testing.assert_allclose(
            steps.ask(f"{number}", number, inputs_of(number)), expected[number], rtol=1e-5
        )
        if number == 5:
            kill(there)  # What it has written stays.
        if number == 9:
            for again in (3, 4, 5, 6, 7, 8, 9):
                found = steps.ask(f"again {again}", again, inputs_of(again))
                np.testing.assert_allclose(found, expected[again], rtol=1e-5)
    count, nbytes, _ = steps.executor.count_sequences()
    assert (count, nbytes) == (1, PROGRAM.sequence_bytes)
    steps.executor.stop()


def test_a_local_run_s_steps_are_one_session_s() -> None:
    run = LocalRun(PLAN, GRAPH)
    sequence = run.begin()
    for number, expected in enumerate(alone(CONTEXT)):
        found: Any = run.run(inputs_of(number), sequence=sequence)["y"]
        np.testing.assert_allclose(found, expected, rtol=1e-5)
