"""Recurrent operators. Each step along time reads the one before, so time is whole; the sequences of a batch, the two
directions, heads and channels are independent of each other. Rules only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from edgepart.planner.access.declare.aligned import Aligned, Along, broadcast
from edgepart.planner.access.declare.bound import BoundOperator
from edgepart.planner.access.declare.cut_nodes import slice_node
from edgepart.planner.access.declare.derived import Derived, Reads, WholeOperator
from edgepart.planner.access.declare.protocol import Axis, Local, Outputs
from edgepart.planner.access.declare.shared_axes import Parts, Runs, SharedAxes, Tracks
from edgepart.planner.region import Interval, span, span_hull, span_size

_BATCH, _DIRECTION, _HEAD, _CHANNEL = Runs("batch"), Runs("direction"), Runs("head"), Runs("channel")


def recurrent(bound: BoundOperator) -> Derived:
    """Declares RNN, GRU and LSTM with the inputs X, W, R, B, sequence_lens, initial_h, initial_c, P and the outputs Y,
    Y_h, Y_c."""
    return _layers(bound, _BATCH)


def quantised_lstm(bound: BoundOperator) -> Derived:
    """Declares DynamicQuantizeLSTM of com.microsoft: the inputs of an LSTM, then the scales and zero points of W and of
    R. Its activations have one scale for the whole batch, so the batch cannot be cut."""
    if not _two_ways(bound):
        return WholeOperator(bound, "it scales what it reads by the largest of the whole batch")
    return _layers(bound, None)


def _layers(bound: BoundOperator, batch: Runs | None) -> Derived:
    batch_first = bool(bound.attribute("layout", 0))
    sequences, weights = bound.shape(0), bound.shape(1)
    directions = _DIRECTION if _two_ways(bound) else None
    weight: Tracks = [directions, None, None]
    state: Tracks = [batch, directions, None] if batch_first else [directions, batch, None]
    steps: Tracks = [batch, None, None] if batch_first else [None, batch, None]
    inputs: list[Tracks | None] = [steps, weight, weight, weight[:2], [batch], state, state, weight[:2]]
    inputs += [[directions, None][: len(shape or ())] for shape in bound.inputs[8:]]
    made: Tracks = [batch, None, directions, None] if batch_first else [None, directions, batch, None]
    shared = {"batch": sequences[0 if batch_first else 1], "direction": weights[0]}
    return SharedAxes(
        bound,
        {track.name: shared[track.name] for track in (batch, directions) if track is not None},
        inputs[: len(bound.inputs)],
        [made, state, state][: len(bound.outputs)],
        work=2.0 * prod(sequences[:2]) * (prod(weights) + prod(bound.shape(2))),
        attributes=lambda parts: _direction(bound, parts),
        optional=True,
    )


def _two_ways(bound: BoundOperator) -> bool:
    """Whether there are two directions that can be separated. They cannot be separated if activations take
    values (alpha, beta), because this module does not work out which value belongs to which activation."""
    valued = bound.attribute("activation_alpha") or bound.attribute("activation_beta")
    return bound.text("direction", "forward") == "bidirectional" and not valued


def _direction(bound: BoundOperator, parts: Parts) -> Mapping[str, Any]:
    """Returns the attributes of one of two directions: its name, and its half of the activations."""
    way = parts.get("direction", ())
    if span_size(way) != 1:
        return {}
    backwards = way[0].start == 1
    found: dict[str, Any] = {"direction": "reverse" if backwards else "forward"}
    if names := list(bound.attribute("activations") or ()):
        half = len(names) // 2
        found["activations"] = names[half:] if backwards else names[:half]
    return found


def reverse_sequence(bound: BoundOperator) -> Derived:
    """Declares ReverseSequence, which reverses the first elements along time, as many as `sequence_lens` says for each
    sequence of the batch."""
    time, batch = int(bound.attribute("time_axis", 0)), int(bound.attribute("batch_axis", 1))
    if {time, batch} != {0, 1}:
        return WholeOperator(bound, "its time and its batch are not its first two axes")
    reads = [broadcast(bound.inputs[0], bound.output), [Along(batch)]]
    return Aligned(bound, reads, whole=(time,), family="move", work=0.0)


def linear_attention(bound: BoundOperator) -> Derived:
    """Declares LinearAttention with the inputs query, key, value, past_state, decay, beta and the outputs
    output and present_state. A head of keys and values serves a group of query heads. The present state has
    another extent per head than the output, so a device that also makes the present state makes all heads."""
    if bound.attribute("state_window"):
        return WholeOperator(bound, "it keeps the states of several positions")
    heads, queries = int(bound.attribute("kv_num_heads", 0)), int(bound.attribute("q_num_heads", 0))
    if heads < 1 or queries < heads or queries % heads:
        return WholeOperator(bound, "its query heads share no keys evenly")
    batch, _, size = bound.shape(2)
    keys, values = bound.shape(1)[2] // heads, size // heads
    group = queries // heads
    state: Tracks = [_BATCH, _HEAD, None, None]

    def read_packed(index: int) -> Tracks | None:
        """Returns how an input [batch, time, heads x something] is read; a beta of extent 1 holds for all heads."""
        shape = bound.inputs[index] if index < len(bound.inputs) else None
        if shape is None:
            return None
        return [_BATCH, None, Runs("head", shape[2] // heads) if shape[2] % heads == 0 else None]

    inputs = [read_packed(0), read_packed(1), read_packed(2), state, read_packed(4), read_packed(5)]
    return SharedAxes(
        bound,
        {"batch": batch, "head": heads},
        inputs[: len(bound.inputs)],
        [[_BATCH, None, Runs("head", group * values)], state][: len(bound.outputs)],
        work=float(prod(bound.shape(0)[:2]) * heads * keys * values * (6 + 2 * group)),
        attributes=lambda parts: _heads(span_size(parts["head"]), group),
    )


def _heads(count: int, group: int) -> Mapping[str, Any]:
    return {"kv_num_heads": count, "q_num_heads": count * group}


def causal_convolution(bound: BoundOperator) -> Derived:
    unusual = ("state_window", 0), ("channels_last", 0), ("ndim", 1)
    for name, plain in unusual:
        if bound.attribute(name, plain) != plain:
            return WholeOperator(bound, f"its {name} is not {plain}")
    return CausalConvolution(bound)


class CausalConvolution(SharedAxes):
    """CausalConvWithState, with the inputs input, weight, bias, past_state and the outputs output and
    present_state. A position reads the positions before it. The positions that a part of the length needs to
    its left are passed to the part as its past."""

    def __init__(self, bound: BoundOperator) -> None:
        batch, channels, self.length = bound.shape(0)
        kernel = bound.shape(1)[2]
        self.state = (kernel - 1) * int(bound.attribute("dilation", 1))
        values: Tracks = [_BATCH, _CHANNEL, None]
        inputs: list[Tracks | None] = [values, [_CHANNEL, None, None], [_CHANNEL], values]
        super().__init__(
            bound,
            {"batch": batch, "channel": channels},
            inputs[: len(bound.inputs)],
            [values, values][: len(bound.outputs)],
            family="depthwise",
            work=2.0 * prod(bound.output) * kernel,
        )

    def axes(self) -> tuple[Axis, ...]:
        if self.length < 2:
            return super().axes()
        places = (2, *(None,) * (len(self.bound.outputs) - 1))
        return (*super().axes(), Axis("sequence", 2, self.length, places=places if places[1:] else ()))

    def widen(self, outputs: Outputs) -> Outputs:
        computed = dict(super().widen(outputs))
        if 0 in computed:
            made = self._computed_steps(outputs)
            computed[0] = computed[0].replace(2, (made,))
        return computed

    def _computed_steps(self, outputs: Outputs) -> Interval:
        """Returns the part of the length that is made. The present state belongs to the last position. The first
        positions need the past that the model gives, so a part that needs it starts at position 0."""
        wanted = [*outputs[0].spans[2]] if 0 in outputs else []
        if 1 in outputs:
            wanted.append(Interval(self.length - 1, self.length))
        (hull,) = span_hull(span(*wanted))
        return hull if hull.start >= self.state else Interval(0, hull.stop)

    def reads(self, computed: Outputs) -> Reads:
        made = self._computed_steps(computed)
        values, *rest = super().reads(computed)
        assert values is not None
        if made.start:
            values = values.replace(2, (Interval(made.start - self.state, made.stop),))
            rest = [*rest[:2], *(None for _ in rest[2:])]
        else:
            values = values.replace(2, (made,))
        return (values, *rest)

    def nodes(self, computed: Outputs) -> Local:
        (node,) = super().nodes(computed)
        made = self._computed_steps(computed)
        if not made.start:
            return (node,)
        opset, stop = self.bound.opset, self.state + made.size
        inputs = (*node.inputs, None, None)[:3]
        if not self.state:
            return (replace(node, inputs=inputs),)
        return (
            slice_node(0, "past", [2], [0], [self.state], opset),
            slice_node(0, "now", [2], [self.state], [stop], opset),
            replace(node, inputs=("now", *inputs[1:], "past")),
        )

    def work(self, computed: Outputs) -> float:
        return super().work(computed) * self._computed_steps(computed).size / self.length


DECLARATIONS: dict[str, Callable[[BoundOperator], Derived]] = {
    "CausalConvWithState": causal_convolution,
    "GRU": recurrent,
    "LSTM": recurrent,
    "LinearAttention": linear_attention,
    "RNN": recurrent,
    "ReverseSequence": reverse_sequence,
}
MICROSOFT = {
    "CausalConvWithState": causal_convolution,
    "DynamicQuantizeLSTM": quantised_lstm,
    "LinearAttention": linear_attention,
}
