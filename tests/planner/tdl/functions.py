"""Models with functions of their own that no operator-by-operator plan divides, and what they are in TDL."""

# mypy: allow-untyped-defs

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import FunctionProto, NodeProto, TensorProto, helper, numpy_helper

from edgepart.planner.region import Array
from edgepart.tdl import Opaque, Sum, operator, padded

DOMAIN = "test.functions"
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]


def function(name: str, inputs: Sequence[str], nodes: Sequence[NodeProto], *attributes: str) -> FunctionProto:
    """A function with one output, y."""
    return helper.make_function(DOMAIN, name, inputs, ["y"], nodes, OPSETS, attributes)


def call(name: str, inputs: Sequence[str], output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(name, inputs, [output], name.lower(), domain=DOMAIN, **attributes)


def model(
    nodes: Sequence[NodeProto],
    functions: Sequence[FunctionProto],
    shape: Sequence[int],
    weights: Mapping[str, Array],
) -> bytes:
    """A model with the input x and the output out, serialised."""
    graph = helper.make_graph(
        list(nodes),
        "with functions",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=OPSETS, functions=functions, ir_version=9)
    return bytes(made.SerializeToString())


def noise(*shape: int, seed: int = 0) -> Array:
    drawn: Array = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return drawn


def _step() -> Sequence[NodeProto]:
    """The rows of h one after another, through a sub-graph that cannot be divided: tanh(2 h)."""
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("row", "made")]
    body = helper.make_graph(
        [helper.make_node("Add", ["row", "row"], ["twice"]), helper.make_node("Tanh", ["twice"], ["made"])],
        "step",
        value[:1],
        value[1:],
    )
    return [helper.make_node("Scan", ["h"], ["y"], num_scan_inputs=1, body=body)]


def scanned_rows() -> bytes:
    """Relu, then a function of rows with a Scan in it, which calls another function, then Sigmoid."""
    inner = function("Product", ["a", "b"], [helper.make_node("MatMul", ["a", "b"], ["y"])])
    outer = function("Rows", ["a", "b"], [call("Product", ["a", "b"], "h"), *_step()])
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        call("Rows", ["r", "w"], "s"),
        helper.make_node("Sigmoid", ["s"], ["out"], "sigmoid"),
    ]
    return model(nodes, [inner, outer], [24, 6], {"w": noise(6, 8)})


@operator(DOMAIN, "Rows")
def rows(a, b):
    return lambda i, j: Opaque(Sum(lambda k: a[i, k] * b[k, j]))


def scanned_convolution(pads: tuple[int, int] = (1, 1), stride: int = 1) -> bytes:
    """A function with a padded convolution whose rows run through a Scan."""
    convolution = helper.make_node("Conv", ["a", "b"], ["h"])
    for name in ("pads", "strides"):
        attribute = convolution.attribute.add(name=name, ref_attr_name=name)
        attribute.type = attribute.INTS
    made = function("Filtered", ["a", "b"], [convolution, *_step()], "pads", "strides")
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        call("Filtered", ["r", "w"], "out", pads=list(pads), strides=[stride]),
    ]
    return model(nodes, [made], [2, 3, 24], {"w": noise(4, 3, 3)})


@operator(DOMAIN, "Filtered")
def filtered(data, filters, *, pads=(0, 0), strides=(1,)):
    return lambda b, c, x: Opaque(
        Sum(
            lambda ci, dx: padded(data)[b, ci, x * strides[0] + dx - pads[0]] * filters[c, ci, dx],
        )
    )


def summed_rows() -> bytes:
    """A function that sums the rows of a product: each device can sum its own."""
    nodes = [*_step(), helper.make_node("ReduceSum", ["y_", "axes"], ["y"], keepdims=0)]
    nodes[0].output[0] = "y_"
    axes = helper.make_node("Constant", [], ["axes"], value_ints=[0])
    product = helper.make_node("MatMul", ["a", "b"], ["h"])
    made = function("Total", ["a", "b"], [product, axes, *nodes])
    return model(
        [helper.make_node("Relu", ["x"], ["r"], "relu"), call("Total", ["r", "w"], "out")],
        [made],
        [24, 6],
        {"w": noise(6, 8)},
    )


@operator(DOMAIN, "Total")
def total(a, b):
    return lambda j: Sum(lambda i: Opaque(a[i, :], b[:, j]))


def mixed_rows() -> bytes:
    """A function of which every element depends on all rows: a Softmax down each column."""
    made = function("Mixed", ["a"], [helper.make_node("Softmax", ["a"], ["y"], axis=0)])
    nodes = [helper.make_node("Relu", ["x"], ["r"], "relu"), call("Mixed", ["r"], "out")]
    return model(nodes, [made], [24, 6], {})


def shortened_rows() -> bytes:
    """A function that leaves out the last two elements of each row, and doubles the others."""
    names = ("starts", "ends", "axes")
    bounds = [
        helper.make_node("Constant", [], [name], value_ints=[value])
        for name, value in zip(names, (0, -2, 1), strict=True)
    ]
    made = function("Shortened", ["a"], [*bounds, helper.make_node("Slice", ["a", *names], ["h"]), *_step()])
    nodes = [helper.make_node("Relu", ["x"], ["r"], "relu"), call("Shortened", ["r"], "out")]
    return model(nodes, [made], [4, 24], {})


@operator(DOMAIN, "Shortened")
def shortened(a):
    return lambda i, j: Opaque(a[i, j])
