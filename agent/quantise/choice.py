"""Chooses the weights that are quantised. Rules over a model's graph.

Chosen are matrices of float32 or float16 that a MatMul, or a Gemm with nothing but a bias, multiplies activations with,
and tables from which a Gather takes rows. What else a model has stays as it is: convolutions and recurrent layers, for
which ONNX Runtime has no kernel that takes weights of few bits and leaves activations alone; whatever lies in the body of
an If or a Loop; and what is small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnx import ModelProto, NodeProto, helper

from edgepart.planner.model.graph import Constant
from edgepart.planner.model.subgraphs import captured_names

SMALLEST_BYTES = 1 << 16
"""Smaller weights stay as they are: all of them together are little, and what follows them may be sensitive."""
BLOCK = 32
"""The numbers of a column that share a scale. With more of them the model is a little smaller, and its answers are further
off; ONNX Runtime's kernels are made for 32."""
FLOATS = ("float", "float16")
STANDARD = ("", "ai.onnx")
QUANTISED_OPERATORS = (
    "QuantizeLinear",
    "DequantizeLinear",
    "QLinear",
    "Integer",
    "NBits",
    "Bnb4",
    "QAttention",
)
"""Parts of the names of operators of a model that was quantised before."""


@dataclass(frozen=True)
class Matrix:
    """A matrix of weights, as a product reads it."""

    weight: str
    """A constant of the model: a weight of the file, or what is computed from weights alone."""
    turned: bool
    """Whether the constant has a row for each output, and not for each input."""


@dataclass(frozen=True)
class Choice:
    """What becomes of a model's weights."""

    products: Mapping[int, Matrix]
    """The matrix of each product that changes, by the index of its node."""
    tables: Mapping[int, str]
    """The table of each Gather that changes, by the index of its node."""
    chosen_bytes: int
    """The bytes of the constants that are quantised."""
    all_bytes: int
    """The bytes of all constants that are read while the model runs, where each counts once."""


def choose_weights(model: ModelProto, constants: Mapping[str, Constant]) -> Choice:
    """The weights of the main graph that are quantised. `constants` are those of the file, and all that are computed from
    them alone."""
    products, tables, read = dict[int, Matrix](), dict[int, str](), set[str]()
    for index, node in enumerate(model.graph.node):
        if all(name in constants for name in node.output):
            continue
        read.update((*node.input, *captured_names(node)))
        if (matrix := _matrix(node, constants)) is not None:
            products[index] = matrix
        elif _takes_rows(node) and _is_chosen(constants.get(node.input[0])):
            tables[index] = node.input[0]
    chosen = {matrix.weight for matrix in products.values()} | set(tables.values())
    size = {name: constants[name].nbytes for name in read & constants.keys()}
    return Choice(products, tables, sum(size[name] for name in chosen), sum(size.values()))


def quantised_before(model: ModelProto) -> tuple[str, ...]:
    """The types of operators that show that the model was quantised before, each once."""
    found = dict.fromkeys(node.op_type for node in model.graph.node)
    return tuple(name for name in found if any(part in name for part in QUANTISED_OPERATORS))


def _is_chosen(constant: Constant | None) -> bool:
    """Whether it is a matrix of floats that is large enough."""
    return (
        constant is not None
        and constant.dtype in FLOATS
        and len(constant.shape) == 2
        and min(constant.shape) >= BLOCK
        and constant.nbytes >= SMALLEST_BYTES
    )


def _matrix(node: NodeProto, constants: Mapping[str, Constant]) -> Matrix | None:
    """The matrix of a product that can be quantised; None for any other node."""
    if node.domain not in STANDARD or node.op_type not in ("MatMul", "Gemm"):
        return None
    given = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    usual = {"alpha": 1.0, "beta": 1.0, "transA": 0}
    if any(given.get(name, value) != value for name, value in usual.items()):
        return None
    left, right = node.input[:2]
    if left in constants or not _is_chosen(constants.get(right)):
        return None
    return Matrix(right, bool(given.get("transB", 0)))


def _takes_rows(node: NodeProto) -> bool:
    """Whether it takes rows of its first input."""
    axis = next((one.i for one in node.attribute if one.name == "axis"), 0)
    return node.op_type == "Gather" and node.domain in STANDARD and not axis
