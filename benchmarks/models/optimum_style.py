"""A decoder as optimum exports it and onnx-community has it: standard operators only, and the past put before the new rows
by Concat. Rules."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, ValueInfoProto

from benchmarks.models.decoder_graph import DecoderGraph, whole_numbers

NEVER = -1e30
"""Added to the scores of rows that must not be read."""


class OptimumDecoder(DecoderGraph):
    """A decoder in this style."""

    def more_inputs(self) -> list[ValueInfoProto]:
        return [whole_numbers("position_ids", "sequence_length")]

    def prepare(self) -> None:
        shape = self.shape
        for axis in (1, 2):
            self.constant(f"axis_{axis}", [axis])
        self.constant("last_axis", [-1])
        self.constant("epsilon", shape.epsilon, np.float32)
        self.constant("by_heads", [0, 0, shape.heads, shape.size])
        self.constant("by_kv_heads", [0, 0, shape.kv_heads, shape.size])
        self.constant("together", [0, 0, shape.heads * shape.size])
        self.constant("copies", [1, 1, shape.heads // shape.kv_heads, 1, 1])
        self.constant("for_all_heads", [0, shape.heads, -1, shape.size])
        self.constant("halves_of_head", [shape.size // 2, shape.size // 2])
        self.constant("score_scale", shape.size**-0.5, np.float32)
        self.prepare_rotation()
        self._prepare_mask()

    def prepare_rotation(self) -> None:
        """Add "cosine" and "sine", [batch, 1, rows, size]: those of the angles by which each row is rotated."""
        for name, table in zip(("cosine", "sine"), self.rotation(), strict=True):
            self.constant(f"{name}.table", np.concatenate([table, table], 1), np.float32)
            self.op("Gather", [f"{name}.table", "position_ids"], f"{name}.rows")
            self.op("Unsqueeze", [f"{name}.rows", "axis_1"], name)

    def _prepare_mask(self) -> None:
        """Add what is added to scores: a row reads the rows up to itself that the mask allows."""
        self.constant("first", 0)
        self.constant("one", 1)
        self.constant("nothing", 0, np.float32)
        self.constant("never", NEVER, np.float32)
        self.constant("axes_1_2", [1, 2])
        for name, values in (("total", "attention_mask"), ("new", "input_ids")):
            self.op("Shape", [values], f"{name}.shape")
            self.op("Gather", [f"{name}.shape", "one"], f"{name}.count", axis=0)
        self.op("Sub", ["total.count", "new.count"], "past.count")
        self.op("Range", ["first", "total.count", "one"], "keys")
        self.op("Range", ["past.count", "total.count", "one"], "queries")
        self.op("Unsqueeze", ["queries", "axis_1"], "query_column")
        self.op("LessOrEqual", ["keys", "query_column"], "is_before")
        self.op("Unsqueeze", ["attention_mask", "axes_1_2"], "mask.all_heads")
        self.op("Cast", ["mask.all_heads"], "is_given", to=TensorProto.BOOL)
        self.op("And", ["is_given", "is_before"], "is_read")
        self.op("Where", ["is_read", "nothing", "never"], "bias")

    def norm(self, x: str, name: str, out: str) -> str:
        weight = self.constant(f"{name}.weight", self.weights.norm(name), np.float32)
        self.op("Mul", [x, x], f"{out}.squares")
        self.op("ReduceMean", [f"{out}.squares", "last_axis"], f"{out}.mean", keepdims=1)
        self.op("Add", [f"{out}.mean", "epsilon"], f"{out}.more")
        self.op("Sqrt", [f"{out}.more"], f"{out}.root")
        self.op("Div", [x, f"{out}.root"], f"{out}.unit")
        return self.op("Mul", [f"{out}.unit", weight], out)

    def add_and_norm(self, x: str, y: str, name: str, out: str) -> tuple[str, str]:
        total = self.op("Add", [x, y], f"{out}.sum")
        return total, self.norm(total, name, out)

    def attention(self, x: str, layer: int) -> str:
        at = f"l{layer}."
        for part, shape in (("q", "by_heads"), ("k", "by_kv_heads"), ("v", "by_kv_heads")):
            flat = self.linear(x, f"{layer}.{part}", f"{at}{part}")
            self.op("Reshape", [flat, shape], f"{at}{part}.split")
            self.op("Transpose", [f"{at}{part}.split"], f"{at}{part}.heads", perm=[0, 2, 1, 3])
        queries, keys = self._rotated(f"{at}q"), self._rotated(f"{at}k")
        for name, new, out in (("key", keys, "K"), ("value", f"{at}v.heads", "V")):
            past, present = f"past_key_values.{layer}.{name}", f"present.{layer}.{name}"
            self.op("Concat", [past, new], present, axis=2)
            self.op("Unsqueeze", [present, "axis_2"], f"{at}{out}.one")
            self.op("Tile", [f"{at}{out}.one", "copies"], f"{at}{out}.all")
            self.op("Reshape", [f"{at}{out}.all", "for_all_heads"], f"{at}{out}")
        self.op("Transpose", [f"{at}K"], f"{at}K.turned", perm=[0, 1, 3, 2])
        self.op("Mul", [queries, "score_scale"], f"{at}scaled")
        self.op("MatMul", [f"{at}scaled", f"{at}K.turned"], f"{at}scores")
        self.op("Add", [f"{at}scores", "bias"], f"{at}masked")
        self.op("Softmax", [f"{at}masked"], f"{at}shares", axis=-1)
        self.op("MatMul", [f"{at}shares", f"{at}V"], f"{at}read")
        self.op("Transpose", [f"{at}read"], f"{at}read.rows", perm=[0, 2, 1, 3])
        return self.op("Reshape", [f"{at}read.rows", "together"], f"{at}attended")

    def _rotated(self, name: str) -> str:
        """Turn pairs of channels by the angle of their row."""
        heads = f"{name}.heads"
        self.op("Split", [heads, "halves_of_head"], f"{name}.left", f"{name}.right", axis=-1)
        self.op("Neg", [f"{name}.right"], f"{name}.minus")
        self.op("Concat", [f"{name}.minus", f"{name}.left"], f"{name}.crossed", axis=-1)
        self.op("Mul", [heads, "cosine"], f"{name}.straight")
        self.op("Mul", [f"{name}.crossed", "sine"], f"{name}.turned")
        return self.op("Add", [f"{name}.straight", f"{name}.turned"], f"{name}.rotated")
