"""Program exchange: what a worker computes is what a session of this process does, with values of any kind."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

from edgepart.agent.execution.runtime.sessions import Sessions
from edgepart.planner.region import Array
from tests.agent import handmade
from tests.agent.workers.bench import Bench, port


def test_a_worker_computes_what_a_session_of_this_process_does(bench: Bench) -> None:
    plan = handmade.split_plan()
    program = plan.programs["a"]
    there = bench.workers.prepare("net", "digest", program, plan.transfers)
    here = Sessions(1, handmade.read_weight).prepare(program, plan.transfers)
    assert there.dtypes == here.dtypes and there.kept == here.kept
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 6)).astype(np.float32)
    (first,), (expected,) = there.run(0, [x]), here.run(0, [x])
    np.testing.assert_array_equal(first, expected)
    assert there.exchange.memory.offset(first) is not None  # it can be used where it lies
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
