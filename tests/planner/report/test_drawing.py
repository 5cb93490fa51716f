"""Drawings of plans: what is in them, what is left out, and names of strangers."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import msgpack
import pytest

from edgepart.planner.layout.strategy import Problem
from edgepart.planner.model.load import load_graph
from edgepart.planner.planner import choose_plan
from edgepart.planner.plans.plan import ComputedTensor, Plan
from edgepart.planner.plans.plan_bytes import plan_from_bytes, plan_to_bytes
from edgepart.planner.plans.timeline import TimelineBar
from edgepart.planner.region import Region
from edgepart.planner.report import drawing
from edgepart.planner.report.drawing import DrawnMessage, draw_layers, draw_plan, draw_timeline
from tests.planner.lowering.test_lower import chain_model
from tests.planner.random_plans import CLUSTER, NAMES


@pytest.fixture(scope="module")
def plan() -> Plan:
    graph = load_graph(chain_model(channels=16))
    return choose_plan(Problem(graph, CLUSTER, "ada"), "bbgrap", "m")[0]


def test_a_plan_keeps_who_computes_what_on_its_way(plan: Plan) -> None:
    assert set(plan.layers[0].regions) == set(NAMES)
    again = plan_from_bytes(plan_to_bytes(plan))
    assert again.layers == plan.layers and again == plan
    for one in plan.layers:  # Together the devices compute everything.
        whole = Region.full(one.shape)
        assert sum(region.size for region in one.regions.values()) >= whole.size
        assert all(region.within(whole) is not None for region in one.regions.values())


def test_the_pictures_show_all_devices_and_layers(plan: Plan) -> None:
    found = draw_plan(plan, CLUSTER, "ada")
    assert list(found["devices"]) == list(plan.programs)
    timeline = ElementTree.fromstring(found["timeline"])
    texts = [element.text for element in timeline.iter() if element.text]
    assert "ada ⌂" in texts and "bob" in texts
    assert any("compute" in text for text in texts) and any(" to " in text for text in texts)
    layers = ElementTree.fromstring(found["layers"])
    titles = [title.text or "" for title in layers.iter("title")]
    for one in plan.layers:
        for device in one.regions:
            assert any(title.startswith(f"{one.tensor}: {device} ") for title in titles)


def test_without_a_device_there_is_no_timeline_and_old_plans_have_no_layers(plan: Plan) -> None:
    assert draw_plan(plan, CLUSTER.only(("ada", "bob")), "ada")["timeline"] is None
    old = replace(plan, layers=())
    assert "layers" not in msgpack.unpackb(plan_to_bytes(old))
    assert draw_plan(plan_from_bytes(plan_to_bytes(old)), CLUSTER, "nobody")["layers"] is None


def test_names_of_strangers_are_no_markup() -> None:
    bad = '<script>"&'
    bars = {bad: [TimelineBar(0.0, 1.0, bad, "compute")], "b": []}
    ElementTree.fromstring(draw_timeline(bars, [DrawnMessage(bad, "b", 0.0, 1.0, 5)], 1.0, bad))
    tensor = ComputedTensor(bad, (4,), {bad: Region.box((0, 2)), "b": Region.box((2, 4))})
    ElementTree.fromstring(draw_layers([tensor], {"b": "#fff"}))


def test_only_the_largest_messages_and_the_longest_bars_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "MOST_ARROWS", 2)
    monkeypatch.setattr(drawing, "MOST_BARS", 3)
    bars = {"a": [TimelineBar(n, n + n / 10, f"bar{n}", "compute") for n in range(9)], "b": []}
    messages = [DrawnMessage("a", "b", 0.0, 1.0, 10 * n) for n in range(1, 5)]
    svg = draw_timeline(bars, messages, 9.0, "a")
    assert [n for n in range(9) if f"bar{n}" in svg] == [6, 7, 8]
    assert "40 B" in svg and "30 B" in svg and "20 B" not in svg


def test_nothing_at_all_can_be_drawn() -> None:
    ElementTree.fromstring(draw_timeline({}, [], 0.0, ""))
    ElementTree.fromstring(draw_layers([], {}))
