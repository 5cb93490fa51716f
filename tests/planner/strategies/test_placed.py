"""Placements of models: what a model is as a workload, and that every placer's plan answers as one session does."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise, permutations

import numpy as np
import pytest
from benchmarks.models import light, sample_inputs

from edgepart.agent.verify.local_run import LocalRun
from edgepart.agent.verify.reference import run_alone
from edgepart.planner.devices.cluster import Cluster, Device, Link, Medium
from edgepart.planner.errors import Infeasible, NotInstalled
from edgepart.planner.layout.choices import Divide, Whole
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.model.load import load_graph
from edgepart.planner.placing.engine import ortools
from edgepart.planner.placing.engine.dispatch import dispatch
from edgepart.planner.planner import best_strategy, choose_plan, compare
from edgepart.planner.search import checkpoint
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.model_workload import (
    END,
    ENTRY,
    ModelWorkload,
    build_fused_workload,
    build_workload,
)
from edgepart.planner.strategies.registry import PLACERS
from edgepart.planner.vocabulary import GUIDED
from tests.planner.placing.models import branches, forked, looped

SLOW = Cluster(
    (Device("a", "k", 2e7, 5e6, 4e9), Device("b", "k", 1e7, 2e6, 4e9)),
    {},
    Link(bytes_per_s=1.17e8, latency_s=1e-4),
)

exact = pytest.mark.skipif(find_spec("ortools") is None, reason="the extra 'exact' is not installed")
EACH = [
    pytest.param(name, marks=[exact] if name in ("moirai", "m-sct", "getf") else [])
    for name in PLACERS
    if name not in GUIDED
]


def study_of(model: bytes, among: Cluster = SLOW, **options: object) -> Study:
    return Study(Problem(load_graph(model), among, "a", **{"search_budget_s": 1.0, **options}))  # type: ignore[arg-type]


def test_a_model_is_tasks_between_what_the_gateway_has_and_wants() -> None:
    study = study_of(branches(), fusion=False)
    made = build_workload(study.memo)
    names = [task.name.split(": ")[-1] for task in made.workload.tasks]
    assert names == [ENTRY, "stem", "left1", "left2", "right1", "right2", "last", "pool", END]
    stem, _, _, _, _, last = made.workload.tasks[1:7]
    for device, seconds in zip("ab", stem.compute_s, strict=True):
        assert seconds == pytest.approx(sum(study.memo.seconds_on(device)[n] for n in ("stem",)))
        # What puts the branches together is charged to who reads it.
        assert made.workload.tasks[6].compute_s["ab".index(device)] == pytest.approx(
            study.memo.seconds_on(device)["last"] + study.memo.seconds_on(device)["join"]
        )
    assert stem.memory_bytes > 8 * 3 * 9 * 4 and last.op == "Conv"
    ends = {(made.workload.tasks[t.source].name, t.readers, t.nbytes) for t in made.workload.tensors}
    assert (ENTRY, (1,), 3 * 24 * 24 * 4) in ends and ("1: stem", (2, 4), 8 * 24 * 24 * 4) in ends
    assert ("7: pool", (8,), 8 * 4) in ends
    assert made.workload.latency_s[0][1] == 1e-4 + 2 * SLOW.default_link.message_s + SLOW.devices[1].segment_s


EVERY_WAY = set(permutations(range(3), 2))


@pytest.mark.parametrize(
    ("medium", "rate", "pairs"),
    [
        # The traffic of its devices with any other fills it.
        (Medium("wifi", 1e6, frozenset("ab")), 1e6, EVERY_WAY),
        # From one of its devices to another, each byte crosses it twice.
        (Medium("wifi", 1e6, frozenset("ab"), relayed=True), 5e5, EVERY_WAY),
        # One device is behind it.
        (Medium("cable", 1e6, frozenset("c")), 2e6, {(0, 2), (2, 0), (1, 2), (2, 1)}),
        # One transfer takes less than 0.7 of it, so that two go at once.
        (Medium("switch", 3e6, frozenset("abc")), 2e6, set()),
        (Medium("switch", 2.8e6, frozenset("abc")), 2e6, EVERY_WAY),
        (Medium("bus", 1e6, links=frozenset({("b", "a")})), 1e6, {(0, 1), (1, 0)}),
    ],
)
def test_media_are_crossed_in_turn_if_one_transfer_fills_them(
    medium: Medium, rate: float, pairs: set[tuple[int, int]]
) -> None:
    devices = tuple(Device(name, "k", 2e7, 5e6, 4e9) for name in "abc")
    among = [Cluster(devices, {}, Link(2e6, 1e-4), media) for media in ((), (medium,))]
    free, shared = (build_workload(study_of(branches(), one).memo).workload for one in among)
    assert {pair for one in shared.media for pair in one.pairs} == pairs
    assert [one.name for one in shared.media] == ([medium.name] if pairs else []) and not free.media
    assert 1 / shared.bytes_per_s[0][1] - 1 / free.bytes_per_s[0][1] == pytest.approx(
        1 / rate - 1 / 2e6, abs=1e-12
    )


def test_transfers_take_turns_on_a_medium_of_the_cluster() -> None:
    """One branch moves to the second device, and from the first to the third in its middle."""
    devices = tuple(Device(name, "k", 2e7, 5e6, 4e9) for name in "abc")
    wifi = Medium("wifi", 2e6, frozenset("abc"))
    apart = []
    for media in ((), (wifi,)):
        graph = build_workload(
            study_of(branches(), Cluster(devices, {}, Link(2e6, 1e-4), media)).memo
        ).workload
        made = dispatch(graph, [0, 0, 1, 1, 0, 2, 0, 0, 0])
        spans = sorted((moved.start_s, moved.end_s) for moved in made.transfers)
        apart.append((all(end <= start for (_, end), (start, _) in pairwise(spans)), made.makespan_s))
    (at_once, free_s), (in_turn, turns_s) = apart
    assert in_turn and not at_once and free_s < turns_s


def test_attempts_with_other_memory_share_the_graph() -> None:
    made = build_workload(study_of(branches()).memo)
    charged = made.charge(0.5, 1e6)
    assert charged.graph is made.workload.graph and charged.machines != made.workload.machines


def test_the_gateways_tasks_stay_there() -> None:
    made = build_workload(study_of(branches()).memo)
    for task in (made.workload.tasks[0], made.workload.tasks[-1]):
        assert task.compute_s == (0.0, float("inf"))


def groups_of(made: ModelWorkload) -> list[set[str]]:
    return [{op.name for layer in layers for op in layer.operators} for layers in made.layers if layers]


def test_groups_stay_together_unless_that_makes_a_circle() -> None:
    study = study_of(branches())
    together = groups_of(build_workload(study.memo, [("left1", "left2"), ("right1",)]))
    assert any({"left1", "left2"} <= group for group in together)
    # The last one waits for the right branch, which waits for the stem.
    apart = groups_of(build_workload(study.memo, [("stem", "last"), ("left1", "left2")]))
    assert not any({"stem", "last"} <= group for group in apart)
    assert any({"left1", "left2"} <= group for group in apart)


def test_a_placement_is_a_whole_layer_each_in_the_order_of_its_schedule() -> None:
    study = study_of(branches())
    made = build_workload(study.memo)
    placement = [0, *([0, 1] * len(made.layers))[: len(made.layers) - 2], 0]
    choices = made.choices(placement)
    assert choices.keys() == {layer.number for layer in study.memo.layers}
    for layers, machine in zip(made.layers, placement, strict=True):
        assert all(choices[layer.number] == Whole(("ab"[machine],)) for layer in layers)
    order = made.order(dispatch(made.workload, placement).start_s)
    assert sorted(order.values(), key=float) == sorted(set(order.values())) and order.keys() == choices.keys()


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("model", [branches(), looped()], ids=["branches", "looped"])
def test_placed_models_give_the_same_answer(model: bytes, name: str) -> None:
    study = study_of(model)
    made, _, strategy = choose_plan(study.memo.problem, name, "m", study=study)
    assert strategy.name == name and "whole on one device" in made.why
    inputs = sample_inputs(study.memo.graph, 3)
    whole, parts = run_alone(model, inputs), LocalRun(made, study.memo.graph).run(inputs)
    for output, value in whole.items():
        assert np.abs(parts[output] - value).max() <= 1e-4 * np.abs(value).max(), output


@pytest.mark.parametrize("name", ["heft", "m-etf"])
def test_two_devices_are_faster_than_one_on_an_inception(name: str) -> None:
    """And about as fast as the placer promised."""
    problem = Problem(
        load_graph(light("inception_v1")),
        Cluster((Device("a", "k", 2e9, 5e8, 4e9), Device("b", "k", 2e9, 5e8, 4e9)), {}, SLOW.default_link),
        "a",
        search_budget_s=1.0,
    )
    study = Study(problem)
    found = study.scorer.forecast(best_strategy(problem, name, study)).latency_s
    assert found < 0.9 * study.memo.whole_s["a"]


def test_auto_places_some_of_a_model_and_splits_the_rest() -> None:
    """Two Loops that nothing can be split of run at the same time, convolutions before and after them on both devices."""
    among = Cluster(tuple(Device(n, "k", 2e7, 5e6, 4e9) for n in "ab"), {}, SLOW.default_link)
    study = study_of(forked(), among, search_budget_s=5.0)
    made, _, strategy = choose_plan(study.memo.problem, "auto", "m", study=study)
    of = {op.name: layer.number for layer in study.memo.layers for op in layer.operators}
    choices = study.candidates.choices_of(strategy)
    loops = [choices[of[name]] for name in ("loop0", "loop1")]
    assert {loop for loop in loops if isinstance(loop, Whole)} == {Whole(("a",)), Whole(("b",))}
    assert any(isinstance(choice, Divide) for choice in choices.values())
    assert "placement of whole operators" in made.why
    inputs = sample_inputs(study.memo.graph, 3)
    whole, parts = run_alone(forked(), inputs), LocalRun(made, study.memo.graph).run(inputs)
    np.testing.assert_allclose(parts["y"], whole["y"], rtol=0, atol=1e-4 * np.abs(whole["y"]).max())


def test_auto_is_no_worse_than_any_placement() -> None:
    for model in (branches(), looped(), forked()):
        study = study_of(model, search_budget_s=5.0)
        auto = study.scorer.score(best_strategy(study.memo.problem, "auto", study))
        for name in ("heft", "m-etf", "expert", "metis"):
            assert auto <= study.scorer.score(best_strategy(study.memo.problem, name, study)) * (1 + 1e-9), (
                name
            )


def test_throughput_is_an_objective_of_placements() -> None:
    study = study_of(branches(), objective="throughput")
    assert study.scorer.forecast_stream(best_strategy(study.memo.problem, "heft", study)).throughput_per_s > 0


def test_a_placement_that_does_not_fit_is_looked_for_again_or_says_what_is_short() -> None:
    study = study_of(branches(rows=8, channels=64))
    need = study.scorer.forecast(best_strategy(study.memo.problem, "single", study)).peak_memory_bytes["a"]
    tight = replace(SLOW, devices=tuple(replace(d, memory_bytes=0.75 * need) for d in SLOW.devices))
    found = study_of(branches(rows=8, channels=64), tight)
    best = best_strategy(found.memo.problem, "heft", found)
    assert not found.scorer.short_bytes(best) and len(found.scorer.forecast(best).compute_s) == 2
    none = replace(SLOW, devices=tuple(replace(d, memory_bytes=1e4) for d in SLOW.devices))
    starved = study_of(branches(rows=8, channels=64), none)
    with pytest.raises(Infeasible) as refused:
        best_strategy(starved.memo.problem, "heft", starved)
    assert sum(refused.value.short_bytes.values()) > 0


def test_a_choice_that_is_written_keeps_its_order() -> None:
    study = study_of(branches())
    made = study.memo.once(build_fused_workload)
    strategy = study.candidates.make("heft", made.choices([0] * len(made.layers)), "")
    strategy = replace(strategy, order={layer.number: float(-layer.number) for layer in study.memo.layers})
    again = checkpoint.read(checkpoint.write(study.candidates, strategy))
    assert again.remake(study.candidates, again.choices).order == strategy.order


def test_what_is_not_installed_is_said_and_compared_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr(ortools, "import_module", missing)
    study = study_of(branches())
    with pytest.raises(NotInstalled, match=r"edgepart\[exact\]"):
        best_strategy(study.memo.problem, "moirai", study)
    rows = {row.name: row for row in compare(study.memo.problem, study)}
    assert isinstance(rows["moirai"].infeasible, NotInstalled) and rows["heft"].strategy is not None
