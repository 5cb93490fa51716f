"""Builder: a graph under construction, with seeded random weights. Code that uses it reads like the architecture.

Weights are He-normal (He et al. 2015) before a rectifier, and of unit gain elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from edgepart.planner.region import Array

IR_VERSION = 10


class Builder:
    """Each method adds nodes and returns the name of their output. Channels come second, as in ONNX."""

    def __init__(self, name: str, opset: int = 18, seed: int = 0) -> None:
        self.name = name
        self.opset = opset
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self.inputs: list[ValueInfoProto] = []
        self.outputs: list[ValueInfoProto] = []
        self._rng = np.random.default_rng(seed)

    def input(self, name: str, shape: Sequence[int | str], dtype: int = TensorProto.FLOAT) -> str:
        """Add an input. A text in `shape` is a free dimension."""
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, value: str, name: str, dtype: int = TensorProto.FLOAT) -> None:
        """Make `value` an output called `name`."""
        self.nodes.append(helper.make_node("Identity", [value], [name], f"output_{name}"))
        self.outputs.append(helper.make_tensor_value_info(name, dtype, None))

    def add(self, op_type: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node with one output."""
        return self.many(op_type, 1, *inputs, domain=domain, **attributes)[0]

    def many(
        self, op_type: str, count: int, *inputs: str, domain: str = "", **attributes: Any
    ) -> tuple[str, ...]:
        """Add a node with `count` outputs."""
        name = f"{op_type}_{len(self.nodes)}"
        outputs = [name if count == 1 else f"{name}_{n}" for n in range(count)]
        self.nodes.append(helper.make_node(op_type, inputs, outputs, name, domain=domain, **attributes))
        return tuple(outputs)

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        """Add an initialiser."""
        name = f"constant_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def noise(self, shape: Sequence[int], deviation: float, around: float = 0.0) -> str:
        """Add a weight of normal noise."""
        values: Array = self._rng.standard_normal(tuple(shape), np.float32)
        return self.constant(around + np.float32(deviation) * values, np.float32)

    def conv(
        self,
        x: str,
        ins: int,
        outs: int,
        kernel: Sequence[int],
        *,
        stride: int = 1,
        dilation: int = 1,
        group: int = 1,
        gain: float = 2.0,
        padded: bool = True,
    ) -> str:
        """Add a Conv with bias over as many axes as `kernel` has, padded so that stride 1 keeps the extents,
        or not padded."""
        deviation = math.sqrt(gain * group / (ins * math.prod(kernel)))
        pads = [dilation * (extent - 1) // 2 if padded else 0 for extent in kernel]
        return self.add(
            "Conv",
            x,
            self.noise((outs, ins // group, *kernel), deviation),
            self.noise((outs,), 0.05),
            kernel_shape=list(kernel),
            strides=[stride] * len(kernel),
            dilations=[dilation] * len(kernel),
            pads=[*pads, *pads],
            group=group,
        )

    def batch_norm(self, x: str, channels: int) -> str:
        scale, bias = self.noise((channels,), 0.1, 1.0), self.noise((channels,), 0.05)
        return self.add(
            "BatchNormalization",
            x,
            scale,
            bias,
            self.noise((channels,), 0.05),
            self.noise((channels,), 0.05, 1.0),
        )

    def linear(self, x: str, ins: int, outs: int, gain: float = 1.0, bias: bool = True) -> str:
        """Add MatMul and Add, as exporters write a dense layer of a sequence."""
        product = self.add("MatMul", x, self.noise((ins, outs), math.sqrt(gain / ins)))
        return self.add("Add", self.noise((outs,), 0.05), product) if bias else product

    def gemm(self, x: str, ins: int, outs: int) -> str:
        """Add a dense layer of a matrix."""
        weight = self.noise((outs, ins), math.sqrt(1 / ins))
        return self.add("Gemm", x, weight, self.noise((outs,), 0.05), transB=1)

    def layer_norm(self, x: str, width: int) -> str:
        scale, bias = self.noise((width,), 0.1, 1.0), self.noise((width,), 0.05)
        return self.add("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)

    def reshape(self, x: str, *shape: int) -> str:
        return self.add("Reshape", x, self.constant(shape))

    def transpose(self, x: str, *perm: int) -> str:
        return self.add("Transpose", x, perm=perm)

    def scale(self, x: str, factor: float) -> str:
        return self.add("Mul", x, self.constant(factor, np.float32))

    def model(self, **domains: int) -> ModelProto:
        """Return the model so far; `domains` are versions of further domains, with _ for a dot."""
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.weights)
        imports = [helper.make_opsetid("", self.opset)]
        imports += [helper.make_opsetid(name.replace("_", "."), version) for name, version in domains.items()]
        made = helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)
        made.producer_name = "edgepart benchmarks"
        inferred = onnx.shape_inference.infer_shapes(made).graph.output
        del made.graph.output[:]
        made.graph.output.extend(inferred)
        return made
