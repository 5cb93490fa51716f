"""Workers: real processes that compute, crash, do not end or take too much memory, and what the agent makes of that."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import psutil
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepart.agent.execution.prepared import LoadUrgency
from edgepart.agent.execution.runtime.sessions import Sessions
from edgepart.agent.storage.store import Store
from edgepart.agent.workers import supervisor
from edgepart.agent.workers.orders import WorkerSettings
from edgepart.agent.workers.process import WorkerProcess
from edgepart.agent.workers.supervisor import CRASHES_TOLERATED, RemoteProgram, Workers
from edgepart.planner.errors import (
    CrashError,
    EdgepartError,
    InternalError,
    RequestError,
    Unavailable,
    WorkerDied,
)
from edgepart.planner.plans.plan import Piece, Port, Program, Receive, Run, Segment
from edgepart.planner.region import Array, Region
from tests.agent import handmade
from tests.waiting import BOUND_S, eventually

LOWEST = np.iinfo(np.int64).min
"""Divided by -1 it ends the process that divides."""


class Bench:
    """Workers over a store of their own, and what they told."""

    def __init__(self, folder: Path, memory_bytes: int | None = None, compiled_bytes: int = 0) -> None:
        self.store = Store(folder / "store")
        self.crashed: list[tuple[str, str, str]] = []
        self.told = threading.Event()
        self.resting: Callable[[float], None] = lambda took_s: None
        """What the device does after each session."""
        plan = handmade.split_plan()
        for ref in {w for p in plan.programs.values() for s in p.segments for w in s.weights}:
            self.store.put_bytes(handmade.read_weight(ref).tobytes())
        self.workers = Workers(
            WorkerSettings(self.store.root, folder / "compiled", compiled_bytes, 1, memory_bytes),
            1 << 33,
            rest=lambda took_s: self.resting(took_s),
            crashed=self._crashed,
        )

    def _crashed(self, deployment: str, model: str, why: str) -> None:
        self.crashed.append((deployment, model, why))

    def prepare(
        self, *segments: Segment, deployment: str = "net", urgency: LoadUrgency = LoadUrgency.COMING
    ) -> RemoteProgram:
        steps: tuple[Receive | Run, ...] = (Receive(0), *(Run(n) for n in range(len(segments))))
        program = Program("a", steps, segments, 0, 0)
        return self.workers.prepare(deployment, "digest", program, (), urgency=urgency)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.workers.stop()


def port(name: str, *shape: int) -> Port:
    return Port(name, Piece(name, Region.full(shape)))


def division() -> Segment:
    node = helper.make_node("Div", ["x", "by"], ["y"])
    ports = [port("x", 2), port("by", 2)]
    return handmade.segment([node], ports, [port("y", 2)], dtype=TensorProto.INT64)


def divide(program: RemoteProgram, x: int, by: int) -> list[int]:
    (found,) = program.run(0, [np.full(2, x), np.full(2, by)])
    return [int(n) for n in found]


def counting() -> Segment:
    """As many rounds as its input says."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["v", "v"], ["w"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.INT64, [1]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("w", TensorProto.INT64, [1]),
        ],
    )
    node = helper.make_node("Loop", ["x", "", "x"], ["y"], body=body)
    return handmade.segment([node], [port("x", 1)], [port("y", 1)], dtype=TensorProto.INT64)


def kill(program: RemoteProgram) -> None:
    """From outside."""
    process = program.worker._process
    assert process is not None
    os.kill(process._process.pid, signal.SIGKILL)
    process._process.wait()


def test_a_worker_computes_what_a_session_of_this_process_does(bench: Bench) -> None:
    plan = handmade.split_plan()
    program = plan.programs["a"]
    there = bench.workers.prepare("net", "digest", program, plan.transfers)
    here = Sessions(1, handmade.read_weight).prepare(program, plan.transfers)
    assert there.dtypes == here.dtypes and there.kept == here.kept
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 6)).astype(np.float32)
    (first,), (expected,) = there.run(0, [x]), here.run(0, [x])
    np.testing.assert_array_equal(first, expected)
    assert there.worker.memory.offset(first) is not None  # it can be used where it lies
    np.testing.assert_array_equal(there.run(0, [x])[0], first)
    assert there.best_s(0, 1.0) is not None and there.best_s(0, 0.0) is None


VALUES: list[tuple[int, Any]] = [
    (TensorProto.BFLOAT16, np.array([1.5, -2.0], ml_dtypes.bfloat16)),
    (TensorProto.STRING, np.array(["ü", ""], dtype=object)),
    (TensorProto.BOOL, np.array([True, False])),
    (TensorProto.FLOAT16, np.array([0.5, 2.0], np.float16)),
    (TensorProto.UINT8, np.array([], np.uint8)),
]


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=lambda one: str(getattr(one, "dtype", one)))
def test_any_value_comes_back_as_it_was(bench: Bench, kind: int, value: Array) -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    program = bench.prepare(
        handmade.segment([node], [port("x", *value.shape)], [port("y", *value.shape)], dtype=kind)
    )
    (found,) = program.run(0, [value])
    assert found.dtype == value.dtype
    np.testing.assert_array_equal(found, value)


def test_outputs_of_unknown_shape_and_inputs_that_are_no_arrays_travel(bench: Bench) -> None:
    nonzero = handmade.segment(
        [helper.make_node("NonZero", ["x"], ["y"])], [port("x", 3)], [port("y")], dtype=7
    )
    # The graph says int64[] of y, which only warns: its shape is not known before it runs.
    program = bench.prepare(nonzero)
    (found,) = program.run(0, [np.array([1, 0, 2])])
    np.testing.assert_array_equal(found, [[0, 2]])


def test_a_worker_asks_for_huge_pages(bench: Bench) -> None:
    bench.prepare(division())
    asked = set()
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # A child of another test may have ended, and be known still.
            if "edgepart.agent.workers.worker" in child.cmdline():
                asked.add(child.environ()["GLIBC_TUNABLES"])
    assert asked == {"glibc.malloc.hugetlb=1"}


def test_a_request_that_kills_a_worker_kills_nothing_else(bench: Bench) -> None:
    program, other = bench.prepare(division()), bench.prepare(division(), deployment="other")
    assert divide(program, 7, 2) == divide(other, 7, 2) == [3, 3]
    with pytest.raises(WorkerDied, match="SIGFPE while it computed segment"):
        divide(program, LOWEST, -1)
    assert divide(other, 9, 2) == [4, 4]
    assert divide(program, 9, 2) == [4, 4]  # by a new worker
    assert bench.workers.deaths() == {"net": 1, "other": 0} and not bench.crashed


def test_values_of_other_requests_outlive_a_worker(bench: Bench) -> None:
    program = bench.prepare(division())
    (kept,) = program.run(0, [np.full(2, 8), np.full(2, 2)])
    with pytest.raises(WorkerDied):
        divide(program, LOWEST, -1)
    assert list(program.run(0, [kept, kept])[0]) == [1, 1]


def test_a_model_that_kills_worker_after_worker_is_set_aside(bench: Bench) -> None:
    program = bench.prepare(division())
    for count in range(CRASHES_TOLERATED):
        assert len(bench.crashed) == 0, count
        with pytest.raises(WorkerDied):
            divide(program, LOWEST, -1)
    ((deployment, model, why),) = bench.crashed
    assert (deployment, model) == ("net", "digest") and "crashes ONNX Runtime (3 times" in why


def test_who_kills_a_worker_from_outside_blames_neither_request_nor_model(bench: Bench) -> None:
    program = bench.prepare(division())
    for _ in range(CRASHES_TOLERATED + 1):
        kill(program)
        while True:
            try:
                assert divide(program, 6, 2) == [3, 3]
                break
            except Unavailable:  # it died just then
                continue
    assert not bench.crashed


def test_a_worker_that_is_killed_while_it_loads_again_is_not_started_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel kills it when memory runs out. Starting it again and again without a pause would end nothing."""
    program, load = bench.prepare(division()), supervisor.Worker._load
    killed: list[int] = []
    first = threading.Event()

    def load_and_be_killed(worker: supervisor.Worker, process: WorkerProcess, *given: Any) -> None:
        if len(killed) < 5:
            killed.append(process._process.pid)
            os.kill(process._process.pid, signal.SIGKILL)
            first.set()
        load(worker, process, *given)

    monkeypatch.setattr(supervisor.Worker, "_load", load_and_be_killed)
    monkeypatch.setattr(supervisor, "RETRY_S", (3600.0, 3600.0))
    kill(program)
    assert first.wait(60)  # The thread that starts it again was there, and pauses now.
    with pytest.raises(Unavailable, match="SIGKILL while it loaded"):
        divide(program, 6, 2)
    assert len(killed) == 2 and not bench.crashed
    killed.extend([0] * 5)
    assert divide(program, 6, 2) == [3, 3]


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


def in_a_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Exception]]:
    caught: list[Exception] = []

    def run() -> None:
        try:
            work()
        except EdgepartError as error:
            caught.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, caught


def test_a_run_that_never_ends_is_stopped(bench: Bench) -> None:
    program, other = bench.prepare(counting()), bench.prepare(division(), deployment="other")
    asked = threading.Event()

    def wanted() -> bool:
        asked.set()
        return True

    thread, caught = in_a_thread(lambda: program.run(0, [np.array([2**62])], wanted))
    assert asked.wait(60)
    assert divide(other, 7, 2) == [3, 3]
    program.stop()
    thread.join(60)
    assert len(caught) == 1 and isinstance(caught[0], RequestError) and "stopped" in str(caught[0])
    assert program.run(0, [np.array([2])])[0].tolist() == [8]
    with pytest.raises(Unavailable, match="before it began"):
        program.run(0, [np.array([2**62])], lambda: False)


def test_over_its_memory_a_run_fails_and_the_worker_goes_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path, memory_bytes=512 << 20)
    try:
        size = 1 << 28  # a GiB of float32 for what is in between
        nodes = [
            helper.make_node("Expand", ["x", "n"], ["wide"]),
            helper.make_node("ReduceSum", ["wide"], ["y"]),
        ]
        shape = helper.make_node("Constant", [], ["n"], value=numpy_helper.from_array(np.array([size])))
        program = bench.prepare(
            handmade.segment([shape, *nodes], [port("x", 1)], [port("y", 1)]), division_of_floats()
        )
        with pytest.raises(RequestError, match="has not the memory for this request"):
            program.run(0, [np.ones(1, np.float32)])
        assert program.run(1, [np.ones(1, np.float32)])[0].tolist() == [1.0]
        assert not any(bench.workers.deaths().values())
    finally:
        bench.workers.stop()


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


def division_of_floats() -> Segment:
    return handmade.segment([helper.make_node("Div", ["x", "x"], ["y"])], [port("x", 1)], [port("y", 1)])


def test_a_released_program_is_not_run_and_the_last_one_ends_the_worker(bench: Bench) -> None:
    program = bench.prepare(division())
    divide(program, 4, 2)
    process = program.worker._process
    assert process is not None
    bench.workers.release(program)
    assert process.death().ordered
    with pytest.raises(Unavailable):
        divide(program, 4, 2)


def test_a_worker_can_be_started_before_there_is_a_program(bench: Bench) -> None:
    with bench.workers.getting_ready("net", "digest"):
        eventually(lambda: len(bench.workers.processes()) == 1)
        (process,) = bench.workers.processes()
        program = bench.prepare(division())
    assert divide(program, 9, 3) == [3, 3]
    assert bench.workers.processes() == [process]
    bench.workers.release(program)
    assert bench.workers.processes() == []


def test_a_worker_for_which_no_program_came_ends(bench: Bench) -> None:
    with bench.workers.getting_ready("net", "digest"):
        eventually(lambda: len(bench.workers.processes()) == 1)
        (process,) = bench.workers.processes()
    eventually(
        lambda: not psutil.pid_exists(process) or psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    )
    with bench.workers.getting_ready("net", "digest"):
        pass  # It may be starting when the block ends.
    assert bench.workers.processes() == [] and not bench.workers.deaths()
    bench.workers.stop()
    with pytest.raises(Unavailable, match="stops"), bench.workers.getting_ready("net", "digest"):
        pass


def all_stand_still(pid: int) -> bool:
    """Whether all threads of a process have stopped. Its first one takes the signal, and the others go on until it does."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def test_loading_that_never_ends_ends_when_nobody_waits_for_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "ABANDONED_S", 0.5)
    worker = bench.prepare(division()).worker
    process = worker._process
    assert process is not None
    os.kill(process._process.pid, signal.SIGSTOP)  # as one that computes for ever
    eventually(lambda: all_stand_still(process._process.pid))
    thread, caught = in_a_thread(lambda: bench.prepare(counting()))
    while worker._loading is None:
        assert thread.is_alive()
    bench.workers.abandon("net", "digest")
    thread.join(60)
    assert len(caught) == 1 and isinstance(caught[0], Unavailable) and "nobody waits" in str(caught[0])
    assert divide(bench.prepare(division(), deployment="other"), 7, 2) == [3, 3]
    assert not bench.crashed


def test_signals_that_a_whole_process_group_gets_end_no_worker(bench: Bench) -> None:
    """The agent hears them too, and still needs its workers for what is under way."""
    program = bench.prepare(division())
    process = program.worker._process
    assert process is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(process._process.pid, number)
    assert divide(program, 9, 3) == [3, 3]
    assert program.worker._process is process and not bench.workers.deaths()["net"]


def test_no_worker_outlives_its_agent_that_was_just_starting_one(bench: Bench) -> None:
    program = bench.prepare(division())
    kill(program)  # another one is being started now
    bench.workers.stop()
    # Only the children themselves: agents that other tests share may run, with workers of their own.
    children = [one for one in psutil.Process().children() if one.status() != psutil.STATUS_ZOMBIE]
    assert not [child for child in children if "edgepart.agent.workers.worker" in child.cmdline()]


def doubling() -> Segment:
    node = helper.make_node("Add", ["x", "x"], ["y"])
    return handmade.segment([node], [port("x", 2)], [port("y", 2)], dtype=TensorProto.INT64)


def overtake(
    bench: Bench, deployment: str, meanwhile: Callable[[], object] = lambda: None
) -> tuple[RemoteProgram, Future[RemoteProgram]]:
    """Load a program, and another one for which requests wait as soon as the first one has one of its two sessions. The
    second session is not made before the other program is loaded."""
    asked: list[Future[RemoteProgram]] = []
    with ThreadPoolExecutor() as threads:

        def ask(took_s: float) -> None:
            if asked:
                asked[0].result(BOUND_S)
                return
            urgency = LoadUrgency.AWAITED
            asked.append(threads.submit(bench.prepare, doubling(), deployment=deployment, urgency=urgency))
            eventually(lambda: bench.workers._turns.waiting)
            meanwhile()

        bench.resting = ask
        return bench.prepare(counting(), division()), asked[0]


@pytest.mark.parametrize("deployment", ["net@1", "other@1"])
def test_what_requests_wait_for_comes_before_the_rest_of_a_program_that_is_being_loaded(
    bench: Bench, deployment: str
) -> None:
    first, awaited = overtake(bench, deployment)
    assert awaited.result().run(0, [np.array([3, 4])])[0].tolist() == [6, 8]
    assert first.run(0, [np.array([3])])[0].tolist() == [24]
    assert first.run(1, [np.full(2, 7), np.full(2, 2)])[0].tolist() == [3, 3]


def test_a_worker_that_ends_while_another_program_comes_first_is_not_held_against_the_one_that_waits(
    bench: Bench,
) -> None:
    serves = bench.prepare(division())
    with suppress(Unavailable):  # Unless its end was seen before the other program was loaded.
        first, _ = overtake(bench, "net@1", lambda: kill(serves))
        assert first.run(0, [np.array([3])])[0].tolist() == [24]
    assert bench.crashed == []
    assert bench.prepare(doubling()).run(0, [np.array([3, 4])])[0].tolist() == [6, 8]
    assert divide(serves, 7, 2) == [3, 3]
