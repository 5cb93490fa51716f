"""Transformers of fused operators, run on three devices along every axis they have: the answer of one session."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from edgepart.agent.verify import backend
from edgepart.planner.region import Array

make = helper.make_node

Made = tuple[onnx.ModelProto, dict[str, Array]]
"""A model and what to feed it."""


def _weights(shapes: dict[str, tuple[int, ...]]) -> list[onnx.TensorProto]:
    random = np.random.default_rng(0)
    values = {name: random.uniform(-0.5, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    return [numpy_helper.from_array(array, name) for name, array in values.items()]


def _model(
    nodes: list[NodeProto],
    feeds: dict[str, Array],
    outputs: list[str],
    weights: dict[str, tuple[int, ...]],
    opset: int,
) -> onnx.ModelProto:
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    wanted = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "fused", given, wanted, _weights(weights))
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def encoder(batch: int = 2, rows: int = 10, width: int = 24, heads: int = 4) -> Made:
    """What ONNX Runtime's transformer optimiser makes of BERT: embeddings, and two layers, of which one is causal."""
    weights: dict[str, tuple[int, ...]] = {
        "words": (50, width),
        "rows": (16, width),
        "kinds": (2, width),
        "g": (width,),
    }
    ids = np.random.default_rng(1).integers(0, 50, (batch, rows)).astype(np.int32)
    mask = np.ones_like(ids)
    mask[1, 7:] = 0
    tables = ["words", "rows", "kinds", "g", "g", "mask"]
    own = {"domain": "com.microsoft"}
    nodes = [make("EmbedLayerNormalization", ["ids", "segments", *tables], ["x0", "lengths"], **own)]
    for n in range(2):
        weights |= {f"w{n}": (width, 3 * width), f"b{n}": (3 * width,), f"o{n}": (width, width)}
        weights |= {f"up{n}": (width, 4 * width), f"ub{n}": (4 * width,), f"down{n}": (4 * width, width)}
        given = [f"x{n}", f"w{n}", f"b{n}", "lengths"]
        nodes += [
            make("Attention", given, [f"a{n}"], num_heads=heads, unidirectional=n, **own),
            make("MatMul", [f"a{n}", f"o{n}"], [f"p{n}"]),
            make("SkipLayerNormalization", [f"p{n}", f"x{n}", "g", "g"], [f"s{n}"], **own),
            make("MatMul", [f"s{n}", f"up{n}"], [f"h{n}"]),
            make("BiasGelu", [f"h{n}", f"ub{n}"], [f"e{n}"], **own),
            make("MatMul", [f"e{n}", f"down{n}"], [f"d{n}"]),
            make("SkipLayerNormalization", [f"d{n}", f"s{n}", "g", "g"], [f"x{n + 1}"], **own),
        ]
    feeds = {"ids": ids, "segments": np.zeros_like(ids), "mask": mask}
    return _model(nodes, feeds, ["x2"], weights, 17), feeds


def decoder(past: int = 0, rows: int = 6, heads: int = 4, keys: int = 2, size: int = 8) -> Made:
    """A layer of a Llama-like model in ONNX's own operators, with or without keys of a past."""
    width, random = heads * size, np.random.default_rng(2)
    weights: dict[str, tuple[int, ...]] = {"g": (width,), "cos": (32, size // 2), "sin": (32, size // 2)}
    weights |= {
        "wq": (width, width),
        "wk": (width, keys * size),
        "wv": (width, keys * size),
        "wo": (width, width),
    }
    feeds: dict[str, Array] = {"x": random.normal(size=(1, rows, width)).astype(np.float32)}
    feeds["places"] = np.arange(past, past + rows)[None]
    kept = ["past_k", "past_v"] if past else []
    feeds |= {name: random.normal(size=(1, keys, past, size)).astype(np.float32) for name in kept}
    present = ["present_k", "present_v"] if past else []
    attributes: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": keys, "is_causal": 1}
    nodes = [
        make("RMSNormalization", ["x", "g"], ["n"]),
        *(make("MatMul", ["n", f"w{name}"], [name]) for name in "qkv"),
        make("RotaryEmbedding", ["q", "cos", "sin", "places"], ["rq"], num_heads=heads),
        make("RotaryEmbedding", ["k", "cos", "sin", "places"], ["rk"], num_heads=keys),
        make("Attention", ["rq", "rk", "v", *(["", *kept] if past else [])], ["a", *present], **attributes),
        make("MatMul", ["a", "wo"], ["o"]),
        make("Add", ["x", "o"], ["y"]),
    ]
    return _model(nodes, feeds, ["y", *present], weights, 23), feeds


@pytest.mark.parametrize(
    ("made", "has"),
    [
        (encoder(), {"batch", "head", "sequence"}),
        (decoder(), {"head", "sequence", "key"}),
        (decoder(past=5), {"head", "sequence"}),
    ],
    ids=["encoder", "decoder", "decoder with a past"],
)
def test_every_axis_gives_the_same_answer(made: Made, has: set[str]) -> None:
    model, feeds = made
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    right = session.run(None, feeds)
    axes = backend.prepare(model).axes
    assert has <= set(axes)
    for axis in axes:
        prepared = backend.prepare(model, axis=axis)
        for found, one in zip(prepared.run(feeds), right, strict=True):
            np.testing.assert_allclose(found, one, rtol=1e-4, atol=1e-5, err_msg=axis)
        assert not prepared.report["opaque"]
        if axis in has:
            assert any(
                kind == axis
                for name, kind in prepared.report["split"].items()
                if name.startswith("Attention")
            )
            assert prepared.report["devices_used"] > 1
