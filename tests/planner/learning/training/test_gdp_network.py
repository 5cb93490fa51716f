"""GDP's network: segments at once are segments in turn, the cache has no gradient, and graphs in a batch do not mix."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch

from edgepart.planner.learning.training.draw import draw_workload
from edgepart.planner.learning.training.gdp import new_network, tensors_of
from edgepart.planner.learning.training.gdp_export import export_gdp
from edgepart.planner.learning.training.gdp_network import NEVER, GdpNetwork, GdpSizes
from edgepart.planner.placing.guided.gdp_features import SEGMENT, GdpFeatures, features_of, joined

SMALL = GdpSizes(3, width=16, rounds=2, layers=2, heads=2)


def run(network: GdpNetwork, *features: GdpFeatures) -> torch.Tensor:
    with torch.no_grad():
        return network(**tensors_of(joined(features)))


def attend_in_turn(layer: Any, x: torch.Tensor, cached: torch.Tensor | None) -> torch.Tensor:
    """The plain twin of a layer: one segment (SEGMENT, w), with the hidden states of the one before, or None."""
    normal = layer.first(x)
    around = normal if cached is None else torch.cat([layer.first(cached), normal])
    keys, values = layer.tell(around).chunk(2, 1)
    parts = []
    for query, key, value in zip(
        layer.ask(normal).chunk(layer.heads, 1),
        keys.chunk(layer.heads, 1),
        values.chunk(layer.heads, 1),
        strict=True,
    ):
        parts.append(torch.softmax(query @ key.T / key.shape[1] ** 0.5, 1) @ value)
    x = x + layer.out(torch.cat(parts, 1))
    return x + layer.feed(layer.second(x))


def test_segments_at_once_are_segments_in_turn() -> None:
    layer = new_network(SMALL, 0).layers[0]
    x = torch.randn(3, SEGMENT, SMALL.width, generator=torch.Generator().manual_seed(0))
    never = torch.zeros(3, 1, 1, 2 * SEGMENT)
    never[0, ..., :SEGMENT] = NEVER
    at_once = layer(x, never)
    for number in range(3):
        in_turn = attend_in_turn(layer, x[number], x[number - 1] if number else None)
        assert torch.allclose(at_once[number], in_turn, atol=1e-5)


def test_no_gradient_flows_through_the_segment_before() -> None:
    layer = new_network(SMALL, 0).layers[0]
    x = torch.randn(2, SEGMENT, SMALL.width, requires_grad=True)
    layer(x, torch.zeros(2, 1, 1, 2 * SEGMENT))[1].sum().backward()
    assert x.grad is not None and not x.grad[0].any() and x.grad[1].any()
    other = x.detach().clone()
    other[0] += torch.randn(SEGMENT, SMALL.width)
    never = torch.zeros(2, 1, 1, 2 * SEGMENT)
    assert not torch.allclose(layer(x, never)[1], layer(other, never)[1])


def test_graphs_in_a_batch_do_not_mix() -> None:
    parts = [
        features_of(draw_workload(*one, 3))
        for one in (("experts", Random(1), 200), ("branches", Random(2), 90))
    ]
    network = new_network(SMALL, 0)
    together, at = run(network, *parts), 0
    for part in parts:
        rows = torch.as_tensor(part.real) > 0
        alone = run(network, part)
        assert torch.allclose(together[at : at + len(part.ops)][rows], alone[rows], atol=1e-5)
        at += len(part.ops)


def test_a_machine_that_cannot_run_a_task_is_never_chosen() -> None:
    features = features_of(draw_workload("inception", Random(0), 60, 3))
    features.able[:30, 0] = 0.0
    logits = run(new_network(SMALL, 0), features)
    assert (logits[:30, 0].exp() == 0).all() and (logits[30:60, 0].exp() > 0).all()


def test_switches_leave_parts_out() -> None:
    def size(**switches: bool) -> int:
        sizes = replace(GdpSizes(4), **switches)
        return sum(one.numel() for one in new_network(sizes, 0).parameters())

    assert size() > size(superposition=False) > size(superposition=False, attention=False)
    without = new_network(GdpSizes(3, width=16, rounds=0, attention=False), 0)
    features = features_of(draw_workload("inception", Random(0), 200, 3))
    before = run(without, features)
    features.numbers[0] += 1.0
    changed = (run(without, features) != before).any(1)
    assert changed[0] and not changed[1:].any()


@pytest.mark.parametrize("superposition", [True, False])
def test_the_exported_network_is_the_same(superposition: bool) -> None:
    network = new_network(GdpSizes(3, superposition=superposition), 1)
    data = export_gdp(network, draw_workload("inception", Random(0), 200, 3))
    session = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    for family, size in (("attention", 30), ("experts", 300), ("cells", 700)):
        features = features_of(draw_workload(family, Random(size), size, 3))
        found = session.run(None, dict(features.inputs()))[0]
        rows = features.real > 0
        assert np.abs(found - run(network, features).numpy())[rows].max() < 1e-5


@pytest.mark.nightly
def test_a_graph_of_fifty_thousand_nodes_is_one_pass() -> None:
    """What is said of a segment depends on it and on those before it, as far as attention and messages go."""
    network = new_network(replace(SMALL, rounds=1), 0)
    data = export_gdp(network, draw_workload("inception", Random(0), 200, 3))
    session = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    features = features_of(draw_workload("attention", Random(1), 50_000, 3))
    found = session.run(None, dict(features.inputs()))[0]
    assert len(found) >= 50_000 and np.isfinite(found).all()
    features.numbers[:SEGMENT] += 1.0
    changed = (session.run(None, dict(features.inputs()))[0] != found).any(1)
    assert changed[:SEGMENT].any() and not changed[-SEGMENT:].any()
