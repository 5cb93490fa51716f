"""One Lowering for strategy after strategy gives what the plain twin gives for each alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgepart.planner.errors import InternalError
from edgepart.planner.layout.strategy import Strategy, Sync
from edgepart.planner.lowering.by_level import schedule_by_level
from edgepart.planner.lowering.demand import DemandMemo, Holders
from edgepart.planner.lowering.draft import Draft, covers
from edgepart.planner.lowering.lower import Lowering, move_needed, move_through_hub
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.region import Region, span
from tests.planner.lowering.plain_lowering import follow, overlaps, staged
from tests.planner.lowering.test_lower import Slow, chain_model
from tests.planner.random_plans import NAMES, models, problem_of, rows, strategies_for

QUICK = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def assert_same(draft: Draft, strategy: Strategy) -> None:
    rule = move_through_hub if strategy.sync is Sync.HUB else move_needed
    plain = follow(draft.blueprint, rule(draft.blueprint))
    assert draft.shares == plain.shares and list(draft.shares) == list(plain.shares)
    assert draft.moves == plain.moves
    levels, messages = staged(plain)
    schedule = schedule_by_level(draft)
    assert schedule.messages == messages
    for device, stages in schedule.stages.items():
        found = {s.first.level: [(x.operator.name, x.device) for x in s.shares] for s in stages}
        assert found == levels[device]
    assert set(schedule.stages) == set(levels)


@QUICK
@given(st.data())
def test_drafts_after_one_another_are_those_of_each_alone(data: st.DataObject) -> None:
    graph = load_graph(data.draw(models()).SerializeToString())
    lowering = Lowering(problem_of(graph))
    drawn = [data.draw(strategies_for(graph, [Sync.NEEDED, Sync.HUB])) for _ in range(2)]
    layouts = dict(drawn[0].layouts)
    for name in data.draw(st.lists(st.sampled_from(sorted(layouts)), max_size=2)):
        layouts[name] = drawn[1].layouts[name]
    for strategy in (*drawn, replace(drawn[0], layouts=layouts), drawn[0]):
        assert_same(lowering.lower(strategy), strategy)


@QUICK
@given(st.data())
def test_sketches_after_one_another_are_those_of_each_alone(data: st.DataObject) -> None:
    graph = load_graph(data.draw(models()).SerializeToString())
    cost = Slow()
    lowering = Lowering(problem_of(graph), cost)
    drawn = [data.draw(strategies_for(graph)) for _ in range(3)]
    for strategy in (*drawn, *drawn):
        alone = Lowering(problem_of(graph), cost)
        assert lowering.plan(strategy, sketch=True) == alone.plan(strategy, sketch=True)


def test_what_two_strategies_share_is_the_same_record() -> None:
    graph = load_graph(chain_model())
    lowering, strategy = Lowering(problem_of(graph)), rows(graph, NAMES)
    again = replace(strategy, name="again", why="another")
    one, two = lowering.lower(strategy), lowering.lower(again)
    assert all(two.flows[name] is flow for name, flow in one.flows.items())
    assert all(two.groups[name] is group for name, group in one.groups.items())


def test_layouts_that_do_not_fit_are_refused_each_time() -> None:
    graph = load_graph(chain_model())
    lowering, good = Lowering(problem_of(graph)), rows(graph, NAMES)
    name = next(iter(good.layouts))
    outside = replace(good.layouts[name], regions={NAMES[0]: Region.box((0, 99))})
    for _ in range(2):
        with pytest.raises(InternalError, match="is not inside"):
            lowering.lower(replace(good, layouts={**good.layouts, name: outside}))


regions = st.builds(
    lambda a, b: Region((span(*a), span(*b))),
    *[st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=2)] * 2,
)


@given(st.lists(regions, min_size=1, max_size=12), regions)
def test_holders_of_a_box_are_all_that_have_some_of_it(held: list[Region], box: Region) -> None:
    owned = {f"d{n}": region for n, region in enumerate(held)}
    found = Holders(owned).of(box)
    assert list(found) == [name for name, region in owned.items() if overlaps(region, box)]
    assert all(part == owned[name].intersect(box) for name, part in found.items())
    assert all(covers(region, box) == overlaps(region, box) for region in held)
    if Holders(owned).apart:
        assert all(one.intersect(two).is_empty for one, two in combinations(held, 2))


def test_devices_with_a_part_each_are_apart_and_copies_are_not() -> None:
    rows = {f"d{n}": Region.box((0, 4), (n, n + 1)) for n in range(9)}
    assert Holders(rows).apart
    assert not Holders({**rows, "copy": rows["d3"]}).apart


def test_a_follower_remembers_only_what_it_is_told_stays_the_same() -> None:
    graph: Graph = load_graph(chain_model())
    blueprint = Lowering(problem_of(graph)).lower(rows(graph, NAMES)).blueprint
    follower, asked = DemandMemo(), list[str]()
    needed = move_needed(blueprint)

    def decide(name: str, needs: object, owned: object) -> list[object]:
        asked.append(name)
        return needed(name, needs, owned)  # type: ignore[arg-type, return-value]

    for alike, times in ((False, 2), (True, 1)):
        asked.clear()
        for _ in range(2):
            follower.follow(blueprint, decide, alike=alike)  # type: ignore[arg-type]
        assert len(asked) == times * len(set(asked))
