"""`make bbgrap`: the sweep has a bar for each batch and number of nodes, and shows what the paper concludes."""

from __future__ import annotations

from benchmarks.bbgrap import AXES, NODES, PAPER, sweep, sweep_table
from benchmarks.machine import as_markdown
from benchmarks.models.vision import resnet50

from edgepart.planner.model.load import load_graph


def test_channels_move_everything_to_everybody_and_the_batch_does_not() -> None:
    batch = 6
    graph = load_graph(resnet50(batch=batch, side=64, base=16, blocks=(1, 1, 1, 1)).SerializeToString())
    made = sweep(graph, batch, 0.1, 1e9)
    found = {(one.nodes, one.axis): one for one in made}
    assert set(found) == {(1, "channel"), *((nodes, axis) for nodes in NODES[1:] for axis in AXES)}
    # "The culprit is the non-scalable output channel division": what is sent grows with the nodes.
    assert found[3, "channel"].sent_bytes > 1.5 * found[2, "channel"].sent_bytes
    for nodes in NODES[1:]:
        assert (
            found[nodes, "batch"].sent_bytes
            < found[nodes, "height"].sent_bytes
            < found[nodes, "channel"].sent_bytes
        )
        assert found[nodes, "batch"].latency_s < found[nodes, "channel"].latency_s
    lines = list(as_markdown(sweep_table(made)))
    assert [line.split(" | ")[:2] for line in lines[2:]] == [["| 6", str(nodes)] for nodes in NODES]
    assert all(PAPER[nodes] in line for nodes, line in zip(NODES, lines[2:], strict=True))


def test_one_request_has_no_batch_to_divide() -> None:
    graph = load_graph(resnet50(side=64, base=16, blocks=(1, 1, 1, 1)).SerializeToString())
    assert {one.axis for one in sweep(graph, 1, 1.0, 1e10)} == {"channel", "height"}
