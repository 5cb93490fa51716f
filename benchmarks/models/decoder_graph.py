"""Decoder graph: a language model of the llama family as ONNX, in the two styles in which people have them. Rules.

The names of inputs and outputs are those that both exporters give: input_ids, attention_mask, past_key_values.N.key and
present.N.key. What the styles write differently is in genai_style.py and optimum_style.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from benchmarks.models.builder import IR_VERSION
from edgepart.planner.region import Array

MICROSOFT = "com.microsoft"
BLOCK = 32
"""The number of weights that share a scale."""
EMBEDDING, HEAD, FINAL_NORM = "embedding", "head", "final_norm"


@dataclass(frozen=True)
class DecoderShape:
    """The sizes of a decoder."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    """The number of heads of keys and values; each serves heads / kv_heads heads of queries."""
    size: int
    """The number of channels of a head."""
    inner: int
    """The width between the two products of the feed-forward part."""
    vocabulary: int
    context: int
    epsilon: float
    base: float
    """The base of the rotation's frequencies."""

    def state_bytes(self, rows: int) -> int:
        """Return the bytes of float32 keys and values of a sequence of `rows` tokens."""
        return self.layers * 2 * self.kv_heads * rows * self.size * 4


@dataclass(frozen=True)
class Blocks:
    """A matrix in blocks of `BLOCK` whole numbers around a middle, with a scale for each block: what MatMulNBits reads."""

    packed: Array
    """The numbers as bytes: [outputs, blocks, bytes of a block]."""
    scales: Array
    """[outputs, blocks]."""
    bits: int


class DecoderWeights(Protocol):
    """The weights by name: "embedding", "head", "final_norm", and of layer N "N.q", "N.k", "N.v", "N.o", "N.gate", "N.up",
    "N.down", "N.attention_norm" and "N.inner_norm"."""

    shape: DecoderShape

    def matrix(self, name: str) -> Array:
        """Return a matrix as float32: [outputs, inputs]."""

    def blocks(self, name: str) -> Blocks:
        """Return a matrix in whole numbers."""

    def norm(self, name: str) -> Array:
        """Return the weights of a norm."""


class DecoderGraph(ABC):
    """A decoder under construction. Each method that adds a node returns the name of its first output."""

    def __init__(self, weights: DecoderWeights, quantised: bool) -> None:
        """`quantised` takes the matrices in whole numbers, as MatMulNBits."""
        self.weights = weights
        self.shape = weights.shape
        self.quantised = quantised
        self._nodes: list[NodeProto] = []
        self._constants: list[TensorProto] = []

    def build(self) -> ModelProto:
        """Return the model."""
        self.prepare()
        x = self._embed()
        normed = self.norm(x, "0.attention_norm", "norm_0")
        for layer in range(self.shape.layers):
            mixed = self.linear(self.attention(normed, layer), f"{layer}.o", f"l{layer}.o")
            x, normed = self.add_and_norm(x, mixed, f"{layer}.inner_norm", f"l{layer}.inner_norm")
            fed = self._feed_forward(normed, layer)
            last = layer + 1 == self.shape.layers
            following = FINAL_NORM if last else f"{layer + 1}.attention_norm"
            x, normed = self.add_and_norm(x, fed, following, f"norm_{layer + 1}")
        self._say_logits(normed)
        graph = helper.make_graph(
            self._nodes, self.shape.name, self._inputs(), self._outputs(), self._constants
        )
        imports = [helper.make_opsetid("", 18), helper.make_opsetid(MICROSOFT, 1)]
        made = helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)
        made.producer_name = "edgepart benchmarks"
        return made

    # What styles write differently

    @abstractmethod
    def more_inputs(self) -> list[ValueInfoProto]:
        """Return the inputs besides the tokens, the mask and the past."""

    @abstractmethod
    def prepare(self) -> None:
        """Add what all layers share: the mask and the rotation."""

    @abstractmethod
    def norm(self, x: str, name: str, out: str) -> str:
        """Add a norm over the root of the mean square."""

    @abstractmethod
    def add_and_norm(self, x: str, y: str, name: str, out: str) -> tuple[str, str]:
        """Add x + y and its norm, and return both."""

    @abstractmethod
    def attention(self, x: str, layer: int) -> str:
        """Add the attention of a layer, up to the product that mixes its heads."""

    # What they share

    def op(self, kind: str, inputs: list[str], *outputs: str, domain: str = "", **attributes: Any) -> str:
        name = f"{next(filter(None, outputs))}/{kind}"
        self._nodes.append(helper.make_node(kind, inputs, outputs, name, domain=domain, **attributes))
        return outputs[0]

    def constant(self, name: str, value: Any, dtype: Any = np.int64) -> str:
        self._constants.append(numpy_helper.from_array(np.ascontiguousarray(np.asarray(value, dtype)), name))
        return name

    def linear(self, x: str, name: str, out: str) -> str:
        """Add a product with a matrix of weights."""
        if not self.quantised:
            weight = self.constant(f"{name}.weight", self.weights.matrix(name).T, np.float32)
            return self.op("MatMul", [x, weight], out)
        found = self.weights.blocks(name)
        packed = self.constant(f"{name}.packed", found.packed, np.uint8)
        scales = self.constant(f"{name}.scales", found.scales, np.float32)
        outputs, blocks = found.scales.shape
        return self.op(
            "MatMulNBits",
            [x, packed, scales],
            out,
            domain=MICROSOFT,
            K=blocks * BLOCK,
            N=outputs,
            bits=found.bits,
            block_size=BLOCK,
            accuracy_level=4,
        )

    def rotation(self) -> tuple[Array, Array]:
        """Return cosine and sine for each position and pair of channels."""
        shape = self.shape
        frequencies = shape.base ** (-np.arange(0, shape.size, 2, dtype=np.float64) / shape.size)
        angles = np.outer(np.arange(shape.context), frequencies)
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def _embed(self) -> str:
        matrix = self.weights.matrix(EMBEDDING)
        if not self.quantised:
            return self.op(
                "Gather", [self.constant("embedding.weight", matrix, np.float32), "input_ids"], "embedded"
            )
        halves = self.constant("embedding.weight", matrix, np.float16)
        return self.op(
            "Cast", [self.op("Gather", [halves, "input_ids"], "halves")], "embedded", to=TensorProto.FLOAT
        )

    def _feed_forward(self, x: str, layer: int) -> str:
        at = f"l{layer}."
        gate = self.linear(x, f"{layer}.gate", f"{at}gate")
        up = self.linear(x, f"{layer}.up", f"{at}up")
        opened = self.op("Mul", [gate, self.op("Sigmoid", [gate], f"{at}sigmoid")], f"{at}opened")
        return self.linear(self.op("Mul", [opened, up], f"{at}product"), f"{layer}.down", f"{at}down")

    def _say_logits(self, normed: str) -> None:
        """Multiply by the head, which is the embedding where the two share their weights and these are float32."""
        if self.quantised:
            self.linear(normed, HEAD, "logits")
        else:
            turned = self.op("Transpose", ["embedding.weight"], "head.weight", perm=[1, 0])
            self.op("MatMul", [normed, turned], "logits")

    def _inputs(self) -> list[ValueInfoProto]:
        tokens = whole_numbers("input_ids", "sequence_length")
        mask = whole_numbers("attention_mask", "total_sequence_length")
        return [tokens, mask, *self.more_inputs(), *self._caches("past_key_values", "past_sequence_length")]

    def _outputs(self) -> list[ValueInfoProto]:
        shape: list[str | int | None] = ["batch_size", "sequence_length", self.shape.vocabulary]
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape)
        return [logits, *self._caches("present", "total_sequence_length")]

    def _caches(self, kind: str, rows: str) -> list[ValueInfoProto]:
        shape: list[str | int | None] = ["batch_size", self.shape.kv_heads, rows, self.shape.size]
        return [
            helper.make_tensor_value_info(f"{kind}.{layer}.{part}", TensorProto.FLOAT, shape)
            for layer in range(self.shape.layers)
            for part in ("key", "value")
        ]


def whole_numbers(name: str, rows: str) -> ValueInfoProto:
    """Return an input of int64 for each row."""
    return helper.make_tensor_value_info(name, TensorProto.INT64, ["batch_size", rows])


def pack_blocks(matrix: Array) -> Blocks:
    """Return a float32 matrix rounded to eight bits: each block is scaled by its largest magnitude."""
    outputs, inputs = matrix.shape
    blocks = matrix.reshape(outputs, inputs // BLOCK, BLOCK)
    scales = np.abs(blocks).max(-1) / 127
    divisors = np.maximum(scales, 1e-12)[..., None]
    return Blocks((np.round(blocks / divisors) + 128).astype(np.uint8), scales.astype(np.float32), 8)
