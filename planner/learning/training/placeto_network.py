"""Placeto's network: graph neural network, pooling around the current group, and policy; in torch, and as ONNX.

After Addanki et al. (NeurIPS 2019). With d numbers for a group and D machines it has the 15,962, 26,338 and 54,842
parameters of the authors' code for D = 2, 4, 8 and d = 5 + D.
"""

from __future__ import annotations

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

ROUNDS = 8
"""The rounds of message passing, k in the paper."""

OPSET = 17

# The products are so small that threads would only wait for each other.
torch.set_num_threads(1)

POOLS = 3


class PlacetoNetwork(nn.Module):
    """Decides on a machine for the current group."""

    def __init__(self, width: int, machines: int, seed: int, rounds: int = ROUNDS) -> None:
        """`width` is d, the numbers in a group's state."""
        super().__init__()
        self.rounds = rounds
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embed = Layers(width, width, width, width)
            self.forward_before, self.forward_after = (Layers(width, width, width) for _ in range(2))
            self.backward_before, self.backward_after = (Layers(width, width, width) for _ in range(2))
            both = 2 * width
            self.pool_before = nn.ModuleList(Layers(both, both, both) for _ in range(POOLS))
            self.pool_after = nn.ModuleList(Layers(both, both, both) for _ in range(POOLS))
            self.policy = Layers(8 * width, 16 * width, 8 * width, machines)

    def forward(
        self, state: torch.Tensor, parents: torch.Tensor, pools: torch.Tensor, current: torch.Tensor
    ) -> torch.Tensor:
        """Return the logits (b, D) of b states (b, n, d) of one graph. `parents` is (n, n), `pools` (b, 3, n), and
        `current` (b, 1, n) has 1 for the current group."""
        batch, groups, width = state.shape
        embedded = self.embed(state.permute(2, 0, 1).reshape(width, -1))
        found = self._pass(embedded, parents)
        parts = []
        for number, (before, after) in enumerate(zip(self.pool_before, self.pool_after, strict=True)):
            heard = torch.relu(before(found)).reshape(-1, batch, groups)
            parts.append(torch.relu(after((heard * pools[:, number]).sum(-1))))
        parts.append((found.reshape(-1, batch, groups) * current[:, 0]).sum(-1))
        answer: torch.Tensor = self.policy(torch.cat(parts)).T
        return answer

    def _pass(self, embedded: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
        """Pass messages down and up along the edges, x <- [has sources] relu(g(sum of relu(f(x)) over sources)) + embedded,
        where x is (d, b n), and return both, (2 d, b n). Both directions are computed at once, with weights that keep
        them apart: products are so small that their number is what takes time."""
        groups = len(parents)
        before = _side_by_side(self.forward_before, self.backward_before)
        after = _side_by_side(self.forward_after, self.backward_after)
        readers_last = torch.stack([parents.T, parents])
        has_sources = (readers_last.sum(1, keepdim=True) > 0).to(embedded.dtype)
        both = torch.cat([embedded, embedded])
        found = both
        for _ in range(self.rounds):
            heard = torch.relu(_apply(before, found)).reshape(2, -1, groups) @ readers_last
            said = torch.relu(_apply(after, heard.reshape(both.shape))).reshape(2, -1, groups)
            found = (has_sources * said).reshape(both.shape) + both
        return found


Weights = list[tuple[torch.Tensor, torch.Tensor]]
"""Weights (outer, inner) and biases (outer, 1) of layers."""


class Layers(nn.Module):
    """Linear layers of these widths, with ReLU between them, for vectors that are columns: products with few rows and many
    columns are several times as fast as their transposes."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.linear = nn.ModuleList(map(nn.Linear, widths, widths[1:]))

    def forward(self, columns: torch.Tensor) -> torch.Tensor:
        """Return (widths[-1], m) for (widths[0], m)."""
        return _apply([(layer.weight, layer.bias[:, None]) for layer in self.linear], columns)


def _side_by_side(one: Layers, other: Layers) -> Weights:
    """Return layers that do to the first half of a column what `one` does, and to the second what `other` does."""
    return [
        (torch.block_diag(a.weight, b.weight), torch.cat([a.bias, b.bias])[:, None])
        for a, b in zip(one.linear, other.linear, strict=True)
    ]


def _apply(weights: Weights, columns: torch.Tensor) -> torch.Tensor:
    for number, (weight, bias) in enumerate(weights):
        columns = torch.addmm(bias, weight, torch.relu(columns) if number else columns)
    return columns


def export(network: PlacetoNetwork) -> bytes:
    """Return the network as an ONNX model, for one state: inputs "state" (n, d), "parents" (n, n), "pools" (3, n) and
    "current" (1, n), all float32 with n free; output "logits" (1, D)."""
    found: bytes = _Export(network).model().SerializeToString()
    return found


class _Export:
    def __init__(self, network: PlacetoNetwork) -> None:
        self._network = network
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, onnx.TensorProto] = {}

    def model(self) -> onnx.ModelProto:
        network = self._network
        embedded = self._run("embed", "state")
        children = self._node("Transpose", "parents", perm=[1, 0])
        found = self._node(
            "Concat",
            self._pass(embedded, "parents", "forward"),
            self._pass(embedded, children, "backward"),
            axis=1,
        )
        parts = []
        for number in range(POOLS):
            row = self._node("Gather", "pools", self._constant(f"row{number}", np.array([number])), axis=0)
            heard = self._node("Relu", self._run(f"pool_before.{number}", found))
            total = self._node("MatMul", row, heard)
            parts.append(self._node("Relu", self._run(f"pool_after.{number}", total)))
        parts.append(self._node("MatMul", "current", found))
        logits = self._run("policy", self._node("Concat", *parts, axis=1))
        self._nodes.append(helper.make_node("Identity", [logits], ["logits"]))
        d, machines = network.embed.linear[0].in_features, network.policy.linear[-1].out_features
        shapes: dict[str, tuple[str | int, ...]] = {
            "state": ("n", d),
            "parents": ("n", "n"),
            "pools": (POOLS, "n"),
            "current": (1, "n"),
        }
        graph = helper.make_graph(
            self._nodes,
            "placeto",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in shapes.items()],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, (1, machines))],
            list(self._weights.values()),
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)

    def _pass(self, embedded: str, sources: str, name: str) -> str:
        count = self._node("ReduceMax", sources, axes=[1], keepdims=1)
        found = embedded
        for _ in range(self._network.rounds):
            heard = self._node("MatMul", sources, self._node("Relu", self._run(f"{name}_before", found)))
            said = self._node("Mul", count, self._node("Relu", self._run(f"{name}_after", heard)))
            found = self._node("Add", said, embedded)
        return found

    def _run(self, name: str, read: str) -> str:
        """Add the layers `name` of the network."""
        layers: Layers = self._network.get_submodule(name)
        for number, layer in enumerate(layers.linear):
            weight = self._constant(f"{name}.{number}.weight", layer.weight.detach().numpy().T)
            bias = self._constant(f"{name}.{number}.bias", layer.bias.detach().numpy())
            read = self._node("Gemm", self._node("Relu", read) if number else read, weight, bias)
        return read

    def _constant(self, name: str, value: np.ndarray) -> str:
        self._weights[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def _node(self, op: str, *read: str, **attributes: object) -> str:
        made = f"{op}{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, list(read), [made], **attributes))  # type: ignore[arg-type]
        return made
