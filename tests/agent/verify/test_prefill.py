"""Steps that read many rows at once: however the model is divided, they leave the states that single steps leave, on the
same devices, and no state travels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from edgepart.agent.verify.local_run import LocalRun, SequenceStates
from edgepart.agent.wire.tensors import Value
from edgepart.planner.devices.cluster import Cluster, Device
from edgepart.planner.errors import InternalError
from edgepart.planner.layout.choices import Choice, Whole
from edgepart.planner.layout.strategy import Problem, Strategy, deal_to_replicas
from edgepart.planner.model.context_shapes import load_with_context
from edgepart.planner.model.graph import Graph
from edgepart.planner.planner import choose_plan
from edgepart.planner.plans.check import check_plan
from edgepart.planner.plans.plan import GATEWAY, Plan
from edgepart.planner.plans.plan_bytes import plan_from_bytes, plan_to_bytes
from edgepart.planner.search.prefill import add_prefill
from edgepart.planner.search.study import Study
from tests.processes.tiny_language import tiny_language

CONTEXT, ROWS = 32, 8
TOKENS = [int(token) for token in np.random.default_rng(3).integers(5, 290, 20)]
DIGEST = "0" * 64


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Graph, Graph]:
    """The graphs of steps that read one row, and ROWS rows."""
    path = tiny_language(tmp_path_factory.mktemp("language") / "tiny") / "model.onnx"
    one, many = (load_with_context(path, {}, CONTEXT, rows)[0] for rows in (1, ROWS))
    return one, many


def study_of(graph: Graph, memory_bytes: float = 1e12) -> Study:
    devices = tuple(Device(name, "virtual", 1e9, 1e9, memory_bytes) for name in ("a", "b", "c"))
    return Study(Problem(graph, Cluster(devices), "a"))


def divided(study: Study, way: str, shares: Sequence[float]) -> Strategy:
    """The model in two stages of layers, or every layer that has the axis `way` divided along it. With "answers", the last
    stage is the last layer alone, which leaves no states."""
    layers = [layer for layer in study.memo.layers if layer.exits]
    parts = tuple(zip(("a", "b", "c"), shares, strict=False))
    choices: dict[int, Choice] = {}
    staged = {"layers": len(layers) // 2, "answers": len(layers) - 2}
    for place, layer in enumerate(layers):
        stage = Whole((parts[-1][0] if place > staged.get(way, len(layers)) else "a",))
        cut = None if way in staged else study.candidates.divide(layer, way, parts, second=False)
        choices[layer.number] = cut or stage
    return study.candidates.make(way, choices, "")


def both(study: Study, strategy: Strategy, many: Graph) -> Plan:
    plan = study.memo.lowering.plan(strategy, model_digest=DIGEST, digests={})
    found, fault = add_prefill(study, strategy, plan, many, DIGEST, {})
    assert not fault
    assert plan_from_bytes(plan_to_bytes(found)) == found
    return check_plan(found)


def inputs_of(tokens: Sequence[int], position: int, rows: int) -> dict[str, Value]:
    ids = np.zeros((1, rows), np.int64)
    ids[0, : len(tokens)] = tokens
    return {
        "input_ids": ids,
        "attention_mask": (np.arange(CONTEXT) < position + rows).astype(np.int64)[None],
    }


def step_on(devices: LocalRun, states: SequenceStates, start: int, end: int) -> list[Mapping[str, Value]]:
    return [devices.run(inputs_of(TOKENS[n : n + 1], n, 1), sequence=states) for n in range(start, end)]


@pytest.mark.parametrize("shares", [(1.0,), (1.0, 1.0), (3.0, 2.0)])
@pytest.mark.parametrize("way", ["head", "feature", "layers", "answers"])
@pytest.mark.parametrize("block", [ROWS, ROWS - 3])
def test_blocks_leave_what_single_steps_leave(
    graphs: tuple[Graph, Graph], way: str, shares: tuple[float, ...], block: int
) -> None:
    one, many = graphs
    study = study_of(one)
    plan = both(study, divided(study, way, shares), many)
    assert plan.prefill is not None
    single, blocks = LocalRun(plan, one), LocalRun(plan.prefill, many)
    expected_states, states = single.begin(), single.begin()
    step_on(single, expected_states, 0, 2 * block)
    for start in (0, block):
        assert blocks.run(inputs_of(TOKENS[start : start + block], start, ROWS), sequence=states) == {}
    expected = step_on(single, expected_states, 2 * block, len(TOKENS))
    for got, right in zip(step_on(single, states, 2 * block, len(TOKENS)), expected, strict=True):
        np.testing.assert_allclose(got["logits"], right["logits"], atol=1e-4)


@pytest.mark.parametrize("way", ["head", "layers"])
def test_no_state_travels_and_blocks_are_answered_with_nothing(graphs: tuple[Graph, Graph], way: str) -> None:
    one, many = graphs
    study = study_of(one)
    plan = both(study, divided(study, way, (1.0, 1.0)), many)
    assert plan.prefill is not None and len(plan.programs) == 2
    states = {name for state in plan.states for name in (state.input.name, state.output)}
    sent = [piece.tensor for one in (plan, plan.prefill) for t in one.transfers for piece in t.pieces]
    assert sent and not states & set(sent)
    assert not any(transfer.target == GATEWAY for transfer in plan.prefill.transfers)
    operators = {name for p in plan.prefill.programs.values() for s in p.segments for name in s.operators}
    assert not {"unbiased", "logits", "y1"} & operators, "What only answers depend on is not computed."


def test_a_device_that_only_answers_has_nothing_to_do_for_a_block(graphs: tuple[Graph, Graph]) -> None:
    one, many = graphs
    study = study_of(one)
    plan = both(study, divided(study, "answers", (1.0, 1.0)), many)
    assert plan.prefill is not None and plan.programs["b"].segments and not plan.programs["b"].kept
    program = plan.prefill.programs["b"]
    assert not program.steps and not program.segments
    assert not any("b" in (transfer.source, transfer.target) for transfer in plan.prefill.transfers)


def test_every_replica_reads_blocks(graphs: tuple[Graph, Graph]) -> None:
    one, many = graphs
    study = study_of(one)
    alone = study.candidates.make("single", study.candidates.keep_whole("c"), "")
    strategy = deal_to_replicas("replicas", (divided(study, "layers", (1.0, 1.0)), alone), "")
    plan = both(study, strategy, many)
    assert plan.prefill is not None and plan.prefill.replicas == plan.replicas
    assert [sorted(replica.devices) for replica in plan.replicas] == [["a", "b"], ["c"]]
    assert all(program.segments for program in plan.prefill.programs.values())


def test_a_device_alone_has_one_session_for_both(graphs: tuple[Graph, Graph]) -> None:
    one, many = graphs
    study = study_of(one)
    plan, _, strategy = choose_plan(study.memo.problem, "single", DIGEST, digests={}, study=study)
    found, fault = add_prefill(study, strategy, plan, many, DIGEST, {})
    assert not fault and found.prefill is not None and found.is_model_itself
    (program,), (blocks,) = found.programs.values(), found.prefill.programs.values()
    assert blocks.segments[0].model == program.segments[0].model
    assert program.kept_bytes == plan.programs["a"].kept_bytes


def test_without_memory_for_both_rows_are_read_one_by_one(graphs: tuple[Graph, Graph]) -> None:
    one, many = graphs
    study = study_of(one)
    strategy = divided(study, "head", (1.0, 1.0))
    plan = both(study, strategy, many)
    most = max(program.peak_memory_bytes for program in plan.programs.values())
    tight = study_of(one, most - 1)
    strategy = divided(tight, "head", (1.0, 1.0))
    alone = tight.memo.lowering.plan(strategy, model_digest=DIGEST, digests={})
    found, fault = add_prefill(tight, strategy, alone, many, DIGEST, {})
    assert found == alone and "has not the memory" in fault


def test_programs_that_keep_other_pieces_are_found(graphs: tuple[Graph, Graph]) -> None:
    one, many = graphs
    study = study_of(one)
    plan = both(study, divided(study, "head", (1.0, 1.0)), many)
    other = both(study, divided(study, "layers", (1.0, 1.0)), many)
    with pytest.raises(InternalError, match="do not keep the same pieces"):
        check_plan(replace(plan, prefill=other.prefill))
    with pytest.raises(InternalError, match="sends an answer to the gateway"):
        check_plan(replace(plan, prefill=replace(plan, prefill=None)))
