"""Standard architectures as torch exports them, with torch's own random weights: `pip install 'edgepart[bench]'`.

The zoo has each of them without torch, too. What is different here is what no builder of ours would think of writing.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto

from edgepart.planner.errors import UsageError

PACKAGES = ("torch", "torchvision", "timm", "transformers", "onnxscript")


def has_torch() -> bool:
    """Whether the packages that exporting takes are installed."""
    return all(importlib.util.find_spec(name) is not None for name in PACKAGES)


def _picture() -> dict[str, Any]:
    import torch

    return {"pixel_values": torch.randn(1, 3, 224, 224)}


def _text() -> dict[str, Any]:
    import torch

    ones = torch.ones(1, 128, dtype=torch.int64)
    return {"input_ids": ones, "attention_mask": ones.clone(), "token_type_ids": torch.zeros_like(ones)}


def _bert_base() -> Any:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig())


def _mobilenet_v2() -> Any:
    from torchvision.models import mobilenet_v2

    return mobilenet_v2(weights=None)


def _timm(name: str) -> Any:
    import timm

    return timm.create_model(name)


EXPORTS: Mapping[str, tuple[Callable[[], Any], Callable[[], dict[str, Any]], int]] = {
    "torch_bert_base": (_bert_base, _text, 18),
    "torch_mobilenet_v2": (_mobilenet_v2, _picture, 18),
    "torch_resnet50": (lambda: _timm("resnet50"), _picture, 18),
    "torch_vit_b16": (lambda: _timm("vit_base_patch16_224"), _picture, 20),
}
"""The network, its inputs in order, the opset."""


def exported(name: str) -> ModelProto:
    """UsageError where a package is missing."""
    missing = [package for package in PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        raise UsageError(f"{name} needs {', '.join(missing)}: pip install 'edgepart[bench]'")
    import torch

    network, inputs, opset = EXPORTS[name]
    torch.manual_seed(0)
    model, given = network().eval(), inputs()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = Path(folder) / "exported.onnx"
        names = list(given)
        torch.onnx.export(
            model, tuple(given.values()), path, opset_version=opset, input_names=names, dynamo=True
        )
        return onnx.load(path)
