"""Folders with tiny language models: two layers, seeded weights, and the small tokenizer. What they say means nothing.

The one with the attention of ONNX Runtime's builder never says the same token twice in a row for long, and each row of its
caches shows in the logits."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from benchmarks.models.decoder_graph import DecoderShape
from benchmarks.models.language import LanguageFolder
from benchmarks.models.optimum_style import OptimumDecoder
from benchmarks.models.seeded_decoder import SeededWeights
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

from edgepart.planner.region import Array
from tests.agent.text.small_tokenizer import small_tokenizer_json

LAYERS, HIDDEN, HEADS, KV_HEADS, SIZE, VOCABULARY, LONGEST = 2, 32, 4, 2, 16, 300, 1024
MICROSOFT = "com.microsoft"
TEMPLATE = "<s>{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def tiny_language(folder: Path) -> Path:
    """Make the folder, and return it."""
    folder.mkdir()
    onnx.save(_Writer().model(), folder / "model.onnx")
    (folder / "tokenizer.json").write_text(small_tokenizer_json())
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


OPTIMUM = DecoderShape("tiny", LAYERS, HIDDEN, HEADS, KV_HEADS, SIZE, 64, VOCABULARY, LONGEST, 1e-5, 10_000.0)


class _OptimumWeights(SeededWeights):
    def matrix(self, name: str) -> Array:
        """With these scales the model does not say the same token all the time: its layers count as much as the token."""
        found = super().matrix(name)
        return found * np.float32(0.3 if name == "embedding" else 2 * found.shape[1] ** -0.5)


class CountingDecoder(OptimumDecoder):
    """A decoder that is not told the positions of its tokens: it counts the rows of its past, as optimum exports Gemma."""

    def more_inputs(self) -> list[ValueInfoProto]:
        return []

    def prepare_rotation(self) -> None:
        self.constant("row_axis", 2)
        self.op("Shape", ["past_key_values.0.key"], "rotated.past_shape")
        self.op("Gather", ["rotated.past_shape", "row_axis"], "rotated.first", axis=0)
        self.op("Shape", ["input_ids"], "rotated.shape")
        self.op("Gather", ["rotated.shape", "one"], "rotated.count", axis=0)
        self.op("Add", ["rotated.first", "rotated.count"], "rotated.end")
        self.op("Range", ["rotated.first", "rotated.end", "one"], "rotated.rows")
        self.op("Unsqueeze", ["rotated.rows", "first"], "rotated.positions")
        self.op("Unsqueeze", ["rotated.positions", "axis_1"], "rotated.row")
        self.op("Cast", ["rotated.row"], "rotated.numbers", to=TensorProto.FLOAT)
        frequencies = self.shape.base ** (-np.arange(0, self.shape.size, 2) / self.shape.size)
        self.constant("frequencies", frequencies[:, None], np.float32)
        self.op("MatMul", ["frequencies", "rotated.numbers"], "rotated.columns")
        self.op("Transpose", ["rotated.columns"], "rotated.half", perm=[0, 2, 1])
        self.op("Concat", ["rotated.half", "rotated.half"], "rotated.angles", axis=2)
        for name, kind in (("cosine", "Cos"), ("sine", "Sin")):
            self.op(kind, ["rotated.angles"], f"{name}.rows")
            self.op("Unsqueeze", [f"{name}.rows", "axis_1"], name)


def optimum_decoder(*, counts: bool = False) -> onnx.ModelProto:
    """A decoder in optimum's style. With `counts` it is the same, but counts the positions of its tokens itself."""
    style = CountingDecoder if counts else OptimumDecoder
    return style(_OptimumWeights(OPTIMUM), quantised=False).build()


def kept_apart(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model, whose states no rule has written in place: they are not what is read of the past and the new rows,
    but a copy of a copy of it. Changes `model`."""
    presents = {value.name for value in model.graph.output}
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for node in nodes:
        model.graph.node.append(node)
        present = node.output[0]
        if node.op_type == "Concat" and present in presents:
            names = [f"{present}.joined", f"{present}.copied", present]
            model.graph.node[-1].output[0] = names[0]
            model.graph.node.extend(
                helper.make_node("Identity", [one], [other], name=f"{other}.copy")
                for one, other in pairwise(names)
            )
    for node in model.graph.node:
        node.input[:] = [f"{name}.joined" if name in presents else name for name in node.input]
    return model


def tiny_optimum(folder: Path, *, counts: bool = False) -> LanguageFolder:
    """Make the folder of an `optimum_decoder` of the same size, which never ends a text, and return it."""
    tiny_language(folder)
    onnx.save(optimum_decoder(counts=counts), folder / "model.onnx")
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))
    return LanguageFolder("tiny", folder, "optimum", OPTIMUM, end_token=-1)


def said_tokens() -> list[int]:
    """The tokens that the model says: those of plain letters, so that each brings text at once. It never ends a text."""
    vocabulary = json.loads(small_tokenizer_json())["model"]["vocab"]
    return sorted(
        token
        for text, token in vocabulary.items()
        if text.replace("Ġ", "a").isascii() and text.replace("Ġ", "a").isalpha()
    )


class _Writer:
    def __init__(self) -> None:
        self._random = np.random.default_rng(5)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def model(self) -> onnx.ModelProto:
        int64, rest = TensorProto.INT64, TensorProto.FLOAT
        inputs = [
            helper.make_tensor_value_info("input_ids", int64, ["batch", "sequence"]),
            helper.make_tensor_value_info("attention_mask", int64, ["batch", "total"]),
        ]
        outputs = [helper.make_tensor_value_info("logits", rest, ["batch", "sequence", VOCABULARY])]
        for layer in range(LAYERS):
            for kind in ("key", "value"):
                names = f"past_key_values.{layer}.{kind}", f"present.{layer}.{kind}"
                for name, rows, values in zip(names, ("past", "total"), (inputs, outputs), strict=True):
                    shape: list[str | int | None] = ["batch", KV_HEADS, rows, SIZE]
                    values.append(helper.make_tensor_value_info(name, rest, shape))
        self._lengths()
        value = self._op(
            "Gather", [self._drawn("embedding", VOCABULARY, HIDDEN, 1.0), "input_ids"], "embedded"
        )
        for layer in range(LAYERS):
            value = self._layer(value, layer)
        logits = self._op("MatMul", [value, self._drawn("head", HIDDEN, VOCABULARY)], "unbiased")
        # Large enough that no other token is said; a larger number would hide errors, which are compared with the largest.
        said = np.full(VOCABULARY, -40, np.float32)
        said[said_tokens()] = 0
        self._op("Add", [logits, self._kept("said", said)], "logits")
        graph = helper.make_graph(self._nodes, "tiny", inputs, outputs, self._weights)
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def _lengths(self) -> None:
        """How many tokens there are, as attention wants to know it, and the angles of the rotation."""
        axis = self._kept("axis", np.array([1], np.int64))
        self._op("ReduceSum", ["attention_mask", axis], "count", keepdims=0)
        self._op("Sub", ["count", axis], "before")
        self._op("Cast", ["before"], "lengths", to=TensorProto.INT32)
        self._op("Shape", ["attention_mask"], "shape")
        self._op("Gather", ["shape", self._kept("second", np.array(1, np.int64))], "longest", axis=0)
        self._op("Cast", ["longest"], "total", to=TensorProto.INT32)
        angles = np.outer(np.arange(LONGEST), 10000.0 ** (-np.arange(0, SIZE, 2) / SIZE)).astype(np.float32)
        self._kept("cos", np.cos(angles))
        self._kept("sin", np.sin(angles))

    def _layer(self, value: str, layer: int) -> str:
        widths = {"q": HEADS * SIZE, "k": KV_HEADS * SIZE, "v": KV_HEADS * SIZE}
        q, k, v = (
            self._op("MatMul", [value, self._drawn(f"w{one}{layer}", HIDDEN, width)], f"{one}{layer}")
            for one, width in widths.items()
        )
        past = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        present = [f"present.{layer}.{kind}" for kind in ("key", "value")]
        node = helper.make_node(
            "GroupQueryAttention",
            [q, k, v, *past, "lengths", "total", "cos", "sin"],
            [f"attended{layer}", *present],
            name=f"attention{layer}",
            domain=MICROSOFT,
            num_heads=HEADS,
            kv_num_heads=KV_HEADS,
            do_rotary=1,
        )
        self._nodes.append(node)
        mixed = self._op(
            "MatMul", [f"attended{layer}", self._drawn(f"wo{layer}", HEADS * SIZE, HIDDEN)], f"o{layer}"
        )
        kept = self._op("Add", [value, mixed], f"x{layer}")
        wide = self._op("MatMul", [kept, self._drawn(f"up{layer}", HIDDEN, 64)], f"wide{layer}")
        bent = self._op("Tanh", [wide], f"bent{layer}")
        narrow = self._op("MatMul", [bent, self._drawn(f"down{layer}", 64, HIDDEN)], f"narrow{layer}")
        return self._op("Add", [kept, narrow], f"y{layer}")

    def _op(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self._nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def _drawn(self, name: str, rows: int, columns: int, scale: float | None = None) -> str:
        drawn = self._random.standard_normal((rows, columns)) * (scale or rows**-0.5)
        return self._kept(name, drawn.astype(np.float32))

    def _kept(self, name: str, array: Array) -> str:
        self._weights.append(numpy_helper.from_array(array, name))
        return name
