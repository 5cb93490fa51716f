"""A decoder as ONNX Runtime GenAI's builder writes it: GroupQueryAttention rotates queries and keys itself and writes new
rows into the cache in place; norms are fused with the sum before them. Rules."""

from __future__ import annotations

from onnx import TensorProto, ValueInfoProto

from benchmarks.models.decoder_graph import MICROSOFT, DecoderGraph


class GenaiDecoder(DecoderGraph):
    """A decoder in this style."""

    def more_inputs(self) -> list[ValueInfoProto]:
        return []

    def prepare(self) -> None:
        cosine, sine = self.rotation()
        self.constant("cosine", cosine, cosine.dtype)
        self.constant("sine", sine, sine.dtype)
        self.constant("one", 1)
        axis = self.constant("row_axis", [1])
        self.op("ReduceSum", ["attention_mask", axis], "mask.sum", keepdims=0)
        self.op("Sub", ["mask.sum", "one"], "mask.last")
        self.op("Cast", ["mask.last"], "last_rows", to=TensorProto.INT32)
        self.op("Shape", ["attention_mask"], "mask.shape")
        self.op("Gather", ["mask.shape", "one"], "mask.rows", axis=0)
        self.op("Cast", ["mask.rows"], "total_rows", to=TensorProto.INT32)

    def norm(self, x: str, name: str, out: str) -> str:
        return self.op(
            "SimplifiedLayerNormalization",
            [x, self._norm_weight(name)],
            out,
            axis=-1,
            epsilon=self.shape.epsilon,
        )

    def add_and_norm(self, x: str, y: str, name: str, out: str) -> tuple[str, str]:
        inputs, outputs = [x, y, self._norm_weight(name)], (out, "", "", f"{out}.sum")
        kind = "SkipSimplifiedLayerNormalization"
        self.op(kind, inputs, *outputs, domain=MICROSOFT, epsilon=self.shape.epsilon)
        return f"{out}.sum", out

    def attention(self, x: str, layer: int) -> str:
        heads = [self.linear(x, f"{layer}.{part}", f"l{layer}.{part}") for part in "qkv"]
        past = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
        return self.op(
            "GroupQueryAttention",
            [*heads, *past, "last_rows", "total_rows", "cosine", "sine"],
            f"l{layer}.attended",
            f"present.{layer}.key",
            f"present.{layer}.value",
            domain=MICROSOFT,
            num_heads=self.shape.heads,
            kv_num_heads=self.shape.kv_heads,
            do_rotary=1,
            rotary_interleaved=0,
            scale=self.shape.size**-0.5,
        )

    def _norm_weight(self, name: str) -> str:
        weight = self.weights.norm(name)
        return self.constant(f"{name}.weight", weight, weight.dtype)
