"""Decoders in optimum's style that differ from the plain one in how they treat the rows of their past. Each function
changes the model that it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tests.processes.tiny_language import HEADS, LAYERS, LONGEST, optimum_decoder

WINDOW = 5


def hold(model: ModelProto, name: str, value: Any) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))


def after(model: ModelProto, output: str, *nodes: NodeProto) -> None:
    """Put nodes behind the one that writes `output`."""
    place = next(n for n, node in enumerate(model.graph.node) if output in node.output)
    for node in reversed(nodes):
        model.graph.node.insert(place + 1, node)


def renamed(model: ModelProto, output: str) -> str:
    """Have a node write another name in place of `output`, so that another one can write that; return the name."""
    writer = next(one for one in model.graph.node if output in one.output)
    writer.output[list(writer.output).index(output)] = f"{output}.before"
    writer.name = f"{writer.name}.before"
    return f"{output}.before"


def node(kind: str, inputs: Sequence[str], *outputs: str, **attributes: Any) -> NodeProto:
    return helper.make_node(kind, inputs, outputs, name=f"{outputs[0]}/{kind}", **attributes)


def windowed(model: ModelProto) -> None:
    """A token reads the last few tokens only, as in every other layer of Gemma."""
    hold(model, "window", WINDOW)
    before = renamed(model, "bias")
    after(
        model,
        before,
        node("Sub", ["query_column", "keys"], "distance"),
        node("Less", ["distance", "window"], "is_near"),
        node("Where", ["is_near", before, "never"], "bias"),
    )


def distant(model: ModelProto) -> None:
    """What is added to scores depends on the distance and on the head, as in BLOOM."""
    hold(model, "slopes", (0.5 ** np.arange(1, HEADS + 1)).astype(np.float32).reshape(1, HEADS, 1, 1))
    before = renamed(model, "bias")
    after(
        model,
        before,
        node("Sub", ["keys", "query_column"], "distance"),
        node("Cast", ["distance"], "distance_float", to=TensorProto.FLOAT),
        node("Mul", ["distance_float", "slopes"], "sloped"),
        node("Add", [before, "sloped"], "bias"),
    )


def tabled(model: ModelProto) -> None:
    """A part of a table says which rows a token reads, as in GPT-2."""
    hold(model, "table", np.tri(LONGEST, dtype=np.bool_))
    hold(model, "axis_of_queries", np.array([0]))
    hold(model, "axis_of_keys", np.array([1]))
    hold(model, "from_first", np.array([0]))
    after(
        model,
        "past.count",
        node("Slice", ["table", "past.count", "total.count", "axis_of_queries"], "table.queries"),
        node("Slice", ["table.queries", "from_first", "total.count", "axis_of_keys"], "table.read"),
    )
    for layer in range(LAYERS):
        before = renamed(model, f"l{layer}.scores")
        after(model, before, node("Where", ["table.read", before, "never"], f"l{layer}.scores"))


def joined_heads(model: ModelProto) -> None:
    """Scores have the heads of all sequences along one axis for a while."""
    hold(model, "half", np.float32(0.5))
    hold(model, "minus_one", np.array([-1]))
    hold(model, "heads_alone", np.array([HEADS]))
    for layer in range(LAYERS):
        at = f"l{layer}.scores"
        before = renamed(model, at)
        after(
            model,
            before,
            node("Shape", [before], f"{at}.last", start=2),
            node("Concat", ["minus_one", f"{at}.last"], f"{at}.form", axis=0),
            node("Reshape", [before, f"{at}.form"], f"{at}.joined"),
            node("Mul", [f"{at}.joined", "half"], f"{at}.halved"),
            node("Concat", ["minus_one", "heads_alone", f"{at}.last"], f"{at}.parted_form", axis=0),
            node("Reshape", [f"{at}.halved", f"{at}.parted_form"], at),
        )


def in_halves(model: ModelProto) -> None:
    """It computes with other numbers than its states have, as with `keep_io_types`."""
    for layer in range(LAYERS):
        for kind in ("key", "value"):
            present, past = f"present.{layer}.{kind}", f"past_key_values.{layer}.{kind}"
            joined = renamed(model, present)
            concat = next(one for one in model.graph.node if joined in one.output)
            new = concat.input[1]
            concat.input[:] = [f"{past}.half", f"{new}.half"]
            place = list(model.graph.node).index(concat)
            model.graph.node.insert(place, node("Cast", [new], f"{new}.half", to=TensorProto.FLOAT16))
            model.graph.node.insert(place, node("Cast", [past], f"{past}.half", to=TensorProto.FLOAT16))
            after(model, joined, node("Cast", [joined], present, to=TensorProto.FLOAT))


def with_sinks(model: ModelProto, *, before: bool = False, read_from: int = 0) -> None:
    """A column that is no row takes a share, as in GPT-OSS: it is behind the rows, or before them."""
    hold(model, "read_from", np.array([read_from]))
    hold(model, "read_to", np.array([2**31 - 1 if read_from else -1]))
    hold(model, "rows_axis", np.array([3]))
    for layer in range(LAYERS):
        shares = renamed(model, f"l{layer}.shares")
        softmax = next(one for one in model.graph.node if shares in one.output)
        masked = softmax.input[0]
        softmax.input[0] = f"{masked}.less"
        columns = [masked, f"{masked}.sink"]
        after(
            model,
            masked,
            node("ReduceSum", [f"l{layer}.scaled", "last_axis"], f"{masked}.sink", keepdims=1),
            node("Concat", columns[::-1] if before else columns, f"{masked}.more", axis=3),
            node("ReduceMax", [f"{masked}.more", "last_axis"], f"{masked}.largest", keepdims=1),
            node("Sub", [f"{masked}.more", f"{masked}.largest"], f"{masked}.less"),
        )
        after(
            model,
            shares,
            node("Slice", [shares, "read_from", "read_to", "rows_axis"], f"l{layer}.shares"),
        )


def largest_of_all(model: ModelProto) -> None:
    """The largest score is taken before the mask is applied."""
    for layer in range(LAYERS):
        before = renamed(model, f"l{layer}.scores")
        after(
            model,
            before,
            node("ReduceMax", [before, "last_axis"], f"{before}.largest", keepdims=1),
            node("Sub", [before, f"{before}.largest"], f"l{layer}.scores"),
        )


RIGHT: dict[str, Callable[[ModelProto], None]] = {
    "plain": lambda model: None,
    "windowed": windowed,
    "distant": distant,
    "tabled": tabled,
    "joined heads": joined_heads,
    "in halves": in_halves,
    "with sinks": with_sinks,
}
"""The order of the past's rows matters to none of these beside its mask."""


def without_bias(model: ModelProto) -> None:
    """The mask is not applied."""
    for one in model.graph.node:
        if one.op_type == "Add" and "bias" in one.input:
            one.op_type = "Identity"
            del one.input[1:]


def without_shares(model: ModelProto) -> None:
    """Rows are summed up without a Softmax: those that the mask leaves out have to be zeros."""
    for one in model.graph.node:
        if one.op_type == "Softmax":
            one.op_type = "Identity"
            del one.attribute[:]


def of_last_rows(model: ModelProto) -> None:
    """Keys are the last ones by their numbers."""
    hold(model, "from_third", np.array([2]))
    hold(model, "to_end", np.array([2**31 - 1]))
    hold(model, "axis_of_rows", np.array([2]))
    for layer in range(LAYERS):
        for one in model.graph.node:
            for place, name in enumerate(one.input):
                if name == f"present.{layer}.value":
                    one.input[place] = f"{name}.last"
        name = f"present.{layer}.value"
        after(model, name, node("Slice", [name, "from_third", "to_end", "axis_of_rows"], f"{name}.last"))
        for one in model.graph.node:
            if f"l{layer}.shares" in one.input:
                one.input[list(one.input).index(f"l{layer}.shares")] = f"l{layer}.last_shares"
        after(
            model,
            f"l{layer}.shares",
            node("Slice", [f"l{layer}.shares", "from_third", "to_end", "last_axis"], f"l{layer}.last_shares"),
        )


def showing(model: ModelProto) -> None:
    """It says what it attends to."""
    model.graph.output.append(helper.make_tensor_value_info("l0.shares", TensorProto.FLOAT, None))


def reading_past(model: ModelProto) -> None:
    """Something else reads a past without the new rows."""
    hold(model, "all_axes", np.array([0, 1, 2, 3]))
    hold(model, "nothing_of_it", np.float32(0))
    embedded = renamed(model, "embedded")
    after(
        model,
        embedded,
        node("ReduceSum", ["past_key_values.0.key", "all_axes"], "sum_of_past", keepdims=0),
        node("Mul", ["sum_of_past", "nothing_of_it"], "nothing_of_past"),
        node("Add", [embedded, "nothing_of_past"], "embedded"),
    )


def partly(model: ModelProto) -> None:
    """The past of one state is copied before it is put before the new rows."""
    concat = next(one for one in model.graph.node if "present.1.value" in one.output)
    past = concat.input[0]
    concat.input[0] = f"{past}.copy"
    place = list(model.graph.node).index(concat)
    model.graph.node.insert(place, node("Identity", [past], f"{past}.copy"))


WRONG: dict[str, tuple[Callable[[ModelProto], None], str]] = {
    "sinks before": (partial(with_sinks, before=True, read_from=1), "puts something before the rows"),
    "rows as sinks": (partial(with_sinks, read_from=1), "takes some rows of the past by their numbers"),
    "largest of all": (largest_of_all, "puts rows of the past together with others"),
    "no bias": (without_bias, "that the mask does not leave out"),
    "no shares": (without_shares, "that the mask does not leave out"),
    "last rows": (of_last_rows, "takes some rows of the past by their numbers"),
    "showing": (showing, "the output 'l0.shares' has rows of the past"),
    "reading past": (reading_past, "is also read without the new rows"),
    "partly": (partly, "is not put right before the new rows"),
}
"""Of these it is not known that states may be written in place, and why."""


def made(change: Callable[[ModelProto], None], *, counts: bool = False) -> ModelProto:
    model = optimum_decoder(counts=counts)
    change(model)
    return model
