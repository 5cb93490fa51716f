"""Loading: a model that crashes, is refused, takes its memory or takes for ever while its sessions are made."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepart.agent.workers import loading
from edgepart.planner.errors import CrashError, InternalError, Unavailable
from edgepart.planner.plans.plan import Segment
from tests.agent import handmade
from tests.agent.workers.bench import LOWEST, Bench, counting, divide, division, in_a_thread, port, process_of
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
