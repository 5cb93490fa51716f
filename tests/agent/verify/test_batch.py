"""Requests that make a step in each of several sequences: however the model is divided, each sequence gets the answer, and
leaves the states, that a step of its own would have had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from edgepart.agent.text.decoder import read_decoder
from edgepart.agent.verify.local_run import LocalRun, SequenceStates
from edgepart.planner.errors import InternalError
from edgepart.planner.model.context_shapes import load_with_context
from edgepart.planner.model.graph import Graph
from edgepart.planner.plans.check import check_plan
from edgepart.planner.plans.plan import Plan
from edgepart.planner.plans.plan_bytes import plan_from_bytes, plan_to_bytes
from edgepart.planner.search.prefill import add_batch
from tests.agent.verify.test_prefill import CONTEXT, DIGEST, TOKENS, divided, study_of
from tests.processes.tiny_language import kept_apart, optimum_decoder, tiny_language

BATCH = 3


@pytest.fixture(scope="module", params=["written in place", "rewritten", "put before new rows"])
def graphs(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[Graph, Graph]:
    """The graphs of steps in one sequence, and in BATCH sequences, of models that keep their past in either way."""
    folder = tmp_path_factory.mktemp("language") / "tiny"
    if request.param == "written in place":
        model = (tiny_language(folder) / "model.onnx").read_bytes()
    elif request.param == "rewritten":
        model = optimum_decoder().SerializeToString()
    else:
        model = kept_apart(optimum_decoder()).SerializeToString()
    one, many = (load_with_context(model, {}, CONTEXT, batch=batch)[0] for batch in (1, BATCH))
    return one, many


def planned(graphs: tuple[Graph, Graph], way: str, shares: Sequence[float]) -> Plan:
    one, many = graphs
    study = study_of(one)
    strategy = divided(study, way, shares)
    plan = study.memo.lowering.plan(strategy, model_digest=DIGEST, digests={})
    found, fault = add_batch(study, strategy, plan, many, DIGEST, {})
    assert not fault and found.batch is not None and found.batch.rows == BATCH
    assert plan_from_bytes(plan_to_bytes(found)) == found
    return check_plan(found)


@pytest.mark.parametrize("shares", [(1.0,), (1.0, 1.0), (3.0, 2.0)])
@pytest.mark.parametrize("way", ["head", "feature", "layers"])
def test_a_request_of_several_steps_does_what_as_many_requests_do(
    graphs: tuple[Graph, Graph], way: str, shares: tuple[float, ...]
) -> None:
    one, many = graphs
    plan = planned(graphs, way, shares)
    assert plan.batch is not None
    single, batch = LocalRun(plan, one), LocalRun(plan.batch, many)
    decoder = read_decoder("tiny", plan)
    # The sequences have read different numbers of tokens.
    lengths = (0, 5, 2)
    apart: list[SequenceStates] = []
    for length in lengths:
        apart.append(single.begin())
        for n in range(length):
            single.run(decoder.feed(TOKENS[n : n + 1], n), sequence=apart[-1])
    together = {
        name: [np.concatenate([states[name][n] for states in apart]) for n in range(len(pieces))]
        for name, pieces in apart[0].items()
    }
    for more in range(3):
        steps = [decoder.feed([TOKENS[-1 - more - place]], n + more) for place, n in enumerate(lengths)]
        inputs = {name: np.concatenate([step[name] for step in steps]) for name in steps[0]}
        got = batch.run(inputs, sequence=together)["logits"]
        for place, (step, states) in enumerate(zip(steps, apart, strict=True)):
            right = single.run(step, sequence=states)["logits"]
            np.testing.assert_allclose(got[place], right[0], atol=1e-4)
    for place, states in enumerate(apart):
        for name, pieces in states.items():
            for n, piece in enumerate(pieces):
                np.testing.assert_allclose(together[name][n][place], piece[0], atol=1e-4)


def test_no_state_travels(graphs: tuple[Graph, Graph]) -> None:
    plan = planned(graphs, "head", (1.0, 1.0))
    assert plan.batch is not None and len(plan.batch.programs) == 2
    states = {name for state in plan.states for name in (state.input.name, state.output)}
    sent = [piece.tensor for transfer in plan.batch.transfers for piece in transfer.pieces]
    assert sent and not states & set(sent)


def test_a_batch_of_another_division_is_no_valid_plan(graphs: tuple[Graph, Graph]) -> None:
    plan, other = planned(graphs, "head", (1.0, 1.0)), planned(graphs, "head", (3.0, 1.0))
    for wrong in (other.batch, replace(plan, batch=None)):
        with pytest.raises(InternalError, match="batch: "):
            check_plan(replace(plan, batch=wrong))
