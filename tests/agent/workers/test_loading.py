"""Loading: a model that crashes, is refused, takes its memory or takes for ever while its sessions are made."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepart.agent.workers import loading, orders
from edgepart.agent.workers.process import WorkerProcess
from edgepart.agent.workers.program_exchange import ProgramExchange
from edgepart.planner.errors import CrashError, InternalError, Unavailable
from edgepart.planner.plans.plan import Segment
from tests.agent import handmade
from tests.agent.workers.bench import (
    LOWEST,
    Bench,
    counting,
    divide,
    division,
    in_a_thread,
    kill,
    port,
    process_of,
)
from tests.waiting import eventually


def folding() -> Segment:
    """What ends the process when ONNX Runtime computes its constants, which is while it loads."""
    constants = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.full(2, value)))
        for name, value in (("a", LOWEST), ("b", -1))
    ]
    nodes = [
        *constants,
        helper.make_node("Div", ["a", "b"], ["c"]),
        helper.make_node("Add", ["x", "c"], ["y"]),
    ]
    return handmade.segment(nodes, [port("x", 2)], [port("y", 2)], dtype=TensorProto.INT64)


def test_a_model_that_crashes_while_it_is_loaded_is_named_and_what_served_goes_on(bench: Bench) -> None:
    program = bench.prepare(division())
    with pytest.raises(CrashError, match=r"while it is loaded .*SIGFPE"):
        bench.prepare(folding())
    assert bench.crashed and "while it is loaded" in bench.crashed[0][2]
    assert divide(program, 9, 2) == [4, 4]


def test_a_model_that_is_refused_is_no_crash(bench: Bench) -> None:
    nonsense = handmade.segment([helper.make_node("Nonsense", ["x"], ["y"])], [port("x", 2)], [port("y", 2)])
    with pytest.raises(InternalError, match="cannot load segment"):
        bench.prepare(nonsense)
    assert not bench.crashed and not any(bench.workers.deaths().values())


@pytest.mark.parametrize("compiled_bytes", [0, 1 << 30])
def test_weights_take_of_the_limit_what_they_take_and_no_more(tmp_path: Path, compiled_bytes: int) -> None:
    """96 MiB of weights, of which ONNX Runtime maps the files while it packs them, and a worker's own 40 MB."""
    bench = Bench(tmp_path, compiled_bytes=compiled_bytes, memory_bytes=192 << 20)
    try:
        array = np.full((2048, 2048), 0.5, np.float32)
        refs = [handmade.weight_ref(f"w{n}", array + n) for n in range(6)]
        for n in range(6):
            bench.store.put_bytes((array + n).tobytes())
        nodes = [
            helper.make_node("MatMul", ["x" if n == 0 else f"t{n}", f"w{n}"], [f"t{n + 1}"]) for n in range(6)
        ]
        made = handmade.segment(nodes, [port("x", 1, 2048)], [port("t6", 1, 2048)], weights=refs)
        program = bench.prepare(made)
        (found,) = program.run(0, [np.zeros((1, 2048), np.float32)])
        assert found.shape == (1, 2048) and not found.any()
    finally:
        bench.workers.stop()


def weighing(bench: Bench, value: float) -> tuple[Segment, Path]:
    """A segment that adds a weight, and the file of that weight."""
    weight = np.full((1, 2), value, np.float32)
    path = bench.store.path(bench.store.put_bytes(weight.tobytes()))
    node = helper.make_node("Add", ["x", "w"], ["y"])
    ports = [port("x", 1, 2)], [port("y", 1, 2)]
    return handmade.segment([node], *ports, weights=[handmade.weight_ref("w", weight)]), path


def test_what_could_not_be_loaded_again_serves_once_it_can_be(bench: Bench) -> None:
    segment, weight = weighing(bench, 3.0)
    program = bench.prepare(segment)
    weight.rename(weight.with_name("away"))
    before = process_of(program)
    kill(program)
    eventually(lambda: program.runs._supervisor.process not in (None, before))
    with pytest.raises(Unavailable, match="cannot be run"):
        program.run(0, [np.zeros((1, 2), np.float32)])
    weight.with_name("away").rename(weight)
    before = process_of(program)
    kill(program)
    eventually(lambda: program.runs._supervisor.process not in (None, before))
    (found,) = program.run(0, [np.zeros((1, 2), np.float32)])
    assert found.tolist() == [[3.0, 3.0]]


def test_a_program_released_while_a_process_starts_is_not_kept_there(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = bench.prepare(division())
    program = bench.prepare(weighing(bench, 5.0)[0])
    worker = bench.workers._workers["net", "digest"]
    told: list[tuple[WorkerProcess, object]] = []
    load, tell = worker._loading.load, WorkerProcess.tell

    def release_then_load(
        process: WorkerProcess, one: ProgramExchange, rest: Callable[[float], None]
    ) -> None:
        if one is program.exchange:
            worker.release(one)
        load(process, one, rest)

    def note(process: WorkerProcess, order: orders.Order) -> None:
        told.append((process, order))
        tell(process, order)

    monkeypatch.setattr(worker._loading, "load", release_then_load)
    monkeypatch.setattr(WorkerProcess, "tell", note)
    before = process_of(other)
    kill(other)
    eventually(lambda: other.runs._supervisor.process not in (None, before))
    assert divide(other, 9, 2) == [4, 4]
    assert (process_of(other), orders.ReleaseProgram(program.exchange.number)) == told[-1]


def all_stand_still(pid: int) -> bool:
    """Whether all threads of a process have stopped. Its first one takes the signal, and the others go on until it does."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def test_loading_that_never_ends_ends_when_nobody_waits_for_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "ABANDONED_S", 0.5)
    process = process_of(bench.prepare(division()))
    worker = bench.workers._workers["net", "digest"]
    os.kill(process._process.pid, signal.SIGSTOP)  # as one that computes for ever
    eventually(lambda: all_stand_still(process._process.pid))
    thread, caught = in_a_thread(lambda: bench.prepare(counting()))
    while worker._loading._now is None:
        assert thread.is_alive()
    bench.workers.abandon("net", "digest")
    thread.join(60)
    assert len(caught) == 1 and isinstance(caught[0], Unavailable) and "nobody waits" in str(caught[0])
    assert divide(bench.prepare(division(), deployment="other"), 7, 2) == [3, 3]
    assert not bench.crashed
