"""A sketch of chains against one of operators: the same segments, messages and seconds, never too little memory."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any

import pytest
from benchmarks.dominance import cluster, graph
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from edgepart.planner.layers.chains import find_chains, output_of
from edgepart.planner.layout.choices import Choice, Reduce, Whole
from edgepart.planner.layout.strategy import Problem, Strategy, Sync
from edgepart.planner.model.load import load_graph
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.single import run_alone

MODELS = ("squeezenet", "inception_v2", "shufflenet", "resnet50")


@lru_cache
def studied(model: str) -> Study:
    return Study(Problem(graph(model), cluster("1:2:4:8", 1e9), "d0"))


@pytest.mark.parametrize("model", MODELS)
def test_nobody_else_sees_what_is_inside_a_chain(model: str) -> None:
    study = studied(model)
    found = find_chains(study.memo.coarse)
    members = [op.name for chain in found for op in chain]
    assert found and len(members) == len(set(members))
    for chain in found:
        assert len({study.memo.coarse.layer_of[op.name] for op in chain}) == 1
        for before, op in pairwise(chain):
            assert study.memo.graph.consumers[output_of(before)] == (op,)
            assert output_of(before) not in study.memo.graph.outputs
            assert list(study.memo.graph.reads(op)) == [output_of(before)]


class Counting(dict[str, Any]):
    """Constants, and how often one was asked for."""

    asked = 0

    def __contains__(self, name: object) -> bool:
        self.asked += 1
        return super().__contains__(name)


@pytest.mark.parametrize("length", [10, 300])
def test_a_long_chain_is_found_in_one_pass(length: int) -> None:
    """A model of 20,000 operators in a row took minutes to be planned."""
    names = [*(f"t{n}" for n in range(length)), "y"]
    nodes = [helper.make_node("Add", [a, f"c{n}"], [b]) for n, (a, b) in enumerate(pairwise(names))]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in (names[0], "y")]
    held = [helper.make_tensor(f"c{n}", TensorProto.FLOAT, [1], [1.0]) for n in range(length)]
    row = helper.make_model(helper.make_graph(nodes, "row", ends[:1], ends[1:], held))
    coarse = Study(Problem(load_graph(row.SerializeToString()), cluster("1:2:4:8", 1e9), "d0")).memo.coarse
    constants = Counting(coarse.graph.constants)
    object.__setattr__(coarse.graph, "constants", constants)
    (chain,) = find_chains(coarse)
    assert len(chain) == length
    assert constants.asked <= 4 * length


def drawn(data: st.DataObject, study: Study) -> Strategy:
    """Any choice for any layer, sums too."""
    shares = tuple((name, data.draw(st.sampled_from([1.0, 0.4]))) for name in study.memo.by_speed)
    axes = data.draw(st.lists(st.sampled_from(["height", "width", "channel", None]), min_size=1, max_size=4))
    choices: dict[int, Choice] = {}
    for n, layer in enumerate(study.memo.layers):
        axis = axes[n % len(axes)]
        whole = Whole((study.memo.by_speed[n % len(shares)],))
        choices[layer.number] = (study.candidates.divide(layer, axis, shares) or whole) if axis else whole
    for layer in [layer for layer in study.memo.layers if layer.reduced][: data.draw(st.integers(0, 2))]:
        _, reduced = layer.reduced[0]
        if layer.reduces(reduced.name):
            choices[layer.number] = Reduce(reduced.name, shares, Whole((shares[0][0],)))
    sync = data.draw(st.sampled_from([Sync.NEEDED, Sync.BROADCAST, Sync.HUB]))
    return study.candidates.make("x", choices, "", sync, study.memo.by_speed[0] if sync is Sync.HUB else None)


@pytest.mark.parametrize("model", MODELS[:2])
@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_an_outline_is_a_forecast(model: str, data: st.DataObject) -> None:
    study = studied(model)
    strategy = drawn(data, study)
    outline, forecast = study.scorer.outline(strategy), study.scorer.forecast(strategy)
    assert outline.latency_s == pytest.approx(forecast.latency_s, rel=1e-9)
    assert dict(outline.compute_s) == pytest.approx(dict(forecast.compute_s), rel=1e-9)
    assert outline.sent_bytes == forecast.sent_bytes
    assert outline.received_bytes == forecast.received_bytes
    assert outline.arrivals_s == pytest.approx(forecast.arrivals_s, rel=1e-9)
    inner = study.memo.chain_costs.inner_bytes
    for device, peak in forecast.peak_memory_bytes.items():
        assert peak <= outline.peak_memory_bytes[device] + inner


def test_what_does_not_fit_by_a_byte_is_said_to_lack_it() -> None:
    """The bound that spares most candidates the long way does not hide a lack."""
    roomy = studied("squeezenet")
    peak = roomy.scorer.forecast(run_alone(roomy, "d0")).peak_memory_bytes["d0"]
    for limit, short in ((peak, {}), (peak - 1, {"d0": 1}), (peak * 10, {})):
        study = Study(Problem(roomy.memo.graph, roomy.memo.cluster, "d0", memory_limit_bytes={"d0": limit}))
        assert study.scorer.short_bytes(run_alone(study, "d0")) == short
