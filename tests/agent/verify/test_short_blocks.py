"""Blocks of a decoder as optimum exports it, whose states are written in place, or put before the new rows: however many
tokens a block has, and however the model is divided, it leaves what single steps leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
import pytest
from benchmarks.models.optimum_style import OptimumDecoder
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.agent.text.decoder import Decoder, read_decoder
from edgepart.agent.verify.local_run import LocalRun, SequenceStates
from edgepart.planner.errors import InternalError
from edgepart.planner.model.context_shapes import context_of_block, load_with_context
from edgepart.planner.model.graph import Graph
from edgepart.planner.plans.check import check_plan
from edgepart.planner.plans.plan import Plan
from edgepart.planner.region import Array
from tests.agent.verify.test_prefill import both, divided, study_of
from tests.benchmarks.test_language import SMALL, SmallWeights
from tests.processes.tiny_language import kept_apart

CONTEXT, ROWS = 24, 6
TOKENS = [int(token) for token in np.random.default_rng(3).integers(0, SMALL.vocabulary, CONTEXT)]


def graphs_of(model: onnx.ModelProto) -> tuple[Graph, Graph]:
    """The graphs of steps that read one row, and ROWS rows, with the same states."""
    document = model.SerializeToString()
    one = load_with_context(document, {}, CONTEXT)[0]
    wide = context_of_block(one, CONTEXT, ROWS)
    assert wide == (CONTEXT if one.states[0].in_place else CONTEXT - 1 + ROWS)
    return one, load_with_context(document, {}, wide, ROWS)[0]


def small() -> onnx.ModelProto:
    return OptimumDecoder(SmallWeights(), quantised=False).build()


@pytest.fixture(scope="module", params=["written in place", "put before new rows"])
def graphs(request: pytest.FixtureRequest) -> tuple[Graph, Graph]:
    in_place = request.param == "written in place"
    found = graphs_of(small() if in_place else kept_apart(small()))
    assert all(state.in_place == in_place for graph in found for state in graph.states)
    return found


class Devices:
    """A plan's devices in this process, which read tokens one by one and in blocks."""

    def __init__(self, graphs: tuple[Graph, Graph], way: str, shares: Sequence[float]) -> None:
        study = study_of(graphs[0])
        self.plan: Plan = both(study, divided(study, way, shares), graphs[1])
        assert self.plan.prefill is not None
        self.decoder: Decoder = read_decoder("small", self.plan)
        self._single, self._blocks = LocalRun(self.plan, graphs[0]), LocalRun(self.plan.prefill, graphs[1])

    def begin(self) -> SequenceStates:
        return self._single.begin()

    def read(self, states: SequenceStates, begin: int, end: int) -> Array:
        """Read these tokens in one step; returns the logits of a step that reads a single one."""
        inputs, rows = self.decoder.feed(TOKENS[begin:end], begin), end - begin
        run = self._single if rows == 1 else self._blocks
        found = run.run(inputs, sequence=states, rows=rows)
        return np.asarray(found["logits"]) if rows == 1 else np.empty(0)


@pytest.mark.parametrize("shares", [(1.0,), (1.0, 1.0), (3.0, 2.0)])
@pytest.mark.parametrize("way", ["head", "layers", "answers"])
def test_blocks_of_any_size_leave_what_single_steps_leave(
    graphs: tuple[Graph, Graph], way: str, shares: tuple[float, ...]
) -> None:
    devices = Devices(graphs, way, shares)
    assert len(devices.plan.programs) == len(shares)
    one_by_one = devices.begin()
    expected = [devices.read(one_by_one, at, at + 1) for at in range(CONTEXT)]

    @settings(max_examples=12, deadline=None, database=None)
    @given(st.lists(st.integers(2, ROWS), min_size=1, max_size=4))
    def law(counts: list[int]) -> None:
        states, at = devices.begin(), 0
        for count in counts:
            if devices.decoder.in_place and at + ROWS > CONTEXT:
                break
            devices.read(states, at, min(at + count, CONTEXT - 1))
            at = min(at + count, CONTEXT - 1)
            if at == CONTEXT - 1:
                break
        for place in range(at, CONTEXT):
            np.testing.assert_allclose(devices.read(states, place, place + 1), expected[place], atol=1e-4)

    law()


def test_no_state_travels_for_a_block(graphs: tuple[Graph, Graph]) -> None:
    plan = Devices(graphs, "head", (1.0, 1.0)).plan
    assert plan.prefill is not None and len(plan.programs) == 2
    states = {name for state in plan.states for name in (state.input.name, state.output)}
    sent = {piece.tensor for transfer in plan.prefill.transfers for piece in transfer.pieces}
    assert sent and not states & sent


def test_only_steps_without_answers_may_be_short() -> None:
    plan = Devices(graphs_of(kept_apart(small())), "head", (1.0, 1.0)).plan
    assert plan.prefill is not None
    blocks = plan.prefill.programs
    usual = {name: replace(one, kept=blocks[name].kept) for name, one in plan.programs.items()}
    with pytest.raises(InternalError, match="which has another shape"):
        check_plan(replace(plan, programs=usual, prefill=None))
