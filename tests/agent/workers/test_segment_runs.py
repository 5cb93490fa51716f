"""Segment runs: what does not end is ended, and what takes too much memory fails; the worker goes on."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

from edgepart.planner.errors import RequestError, Unavailable
from edgepart.planner.plans.plan import Segment
from tests.agent import handmade
from tests.agent.workers.bench import Bench, counting, divide, division, in_a_thread, port


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


def division_of_floats() -> Segment:
    return handmade.segment([helper.make_node("Div", ["x", "x"], ["y"])], [port("x", 1)], [port("y", 1)])


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
