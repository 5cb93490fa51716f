"""Standard architectures as torch exports them, with torch's own random weights.

The zoo has some of them without torch, too. These contain constructs that none of our builders would write.
They are made where torch is installed, which the product never requires: by `pip install 'edgepart[bench]'`,
or by `make exports`, which does it in an environment of its own.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto

from edgepart.planner.errors import UsageError

TORCH = ("torch", "onnxscript")
TRANSFORMERS = (*TORCH, "transformers")


@dataclass(frozen=True)
class Export:
    """How to make one export."""

    network: Callable[[], Any]
    inputs: Callable[[], dict[str, Any]]
    """Makes the example inputs, by name."""
    opset: int = 18
    packages: tuple[str, ...] = TRANSFORMERS
    """The packages that it needs."""

    @property
    def missing(self) -> list[str]:
        """Packages that are not installed."""
        return [name for name in self.packages if importlib.util.find_spec(name) is None]


def _picture(side: int = 224) -> dict[str, Any]:
    import torch

    return {"pixel_values": torch.randn(1, 3, side, side)}


def _text(tokens: int = 32) -> dict[str, Any]:
    import torch

    ids = torch.arange(3, 3 + tokens)[None]
    return {"input_ids": ids, "attention_mask": torch.ones(1, tokens, dtype=torch.int64)}


def _kinds_of_text() -> dict[str, Any]:
    import torch

    return {**_text(128), "token_type_ids": torch.zeros(1, 128, dtype=torch.int64)}


def _written(given: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs with an output that a decoder has written so far."""
    import torch

    return {**given, "decoder_input_ids": torch.arange(3, 11)[None]}


def _heard() -> dict[str, Any]:
    import torch

    return {"input_features": torch.randn(1, 80, 500)}


def _samples() -> dict[str, Any]:
    import torch

    return {"input_values": torch.randn(1, 8000)}


def _mobilenet_v2() -> Any:
    from torchvision.models import mobilenet_v2

    return mobilenet_v2(weights=None)


def _timm(name: str) -> Any:
    import timm

    return timm.create_model(name)


def _transformer(name: str, **settings: Any) -> Any:
    """Return a model of the transformers package with random weights, with attention written out as operators."""
    import transformers

    kind = getattr(transformers, name)
    config = kind.config_class(**settings)
    config._attn_implementation = "eager"
    config.use_cache = False
    return kind(config)


_PLAIN: Mapping[str, Any] = {
    "hidden_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "intermediate_size": 768,
}
_WORDS: Mapping[str, Any] = {"vocab_size": 4000}
_WHISPER: Mapping[str, Any] = {
    "d_model": 192,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 768,
    "decoder_ffn_dim": 768,
    "max_source_positions": 250,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
_STAGES: Mapping[str, Any] = {"hidden_sizes": [32, 64, 128, 256], "depths": [1, 1, 2, 1]}


def _seen(name: str, side: int = 96, **settings: Any) -> Export:
    """Return the export of a model that takes a picture."""
    return Export(lambda: _transformer(name, **settings), lambda: _picture(side))


def _read(name: str, **settings: Any) -> Export:
    """Return the export of a model that takes a text."""
    return Export(lambda: _transformer(name, **_WORDS, **settings), _text)


EXPORTS: Mapping[str, Export] = {
    "torch_bert_base": Export(lambda: _transformer("BertModel"), _kinds_of_text),
    "torch_mobilenet_v2": Export(_mobilenet_v2, _picture, packages=(*TORCH, "torchvision")),
    "torch_resnet50": Export(lambda: _timm("resnet50"), _picture, packages=(*TORCH, "timm")),
    "torch_vit_b16": Export(lambda: _timm("vit_base_patch16_224"), _picture, 20, (*TORCH, "timm")),
    "torch_clip": Export(
        lambda: _transformer(
            "CLIPModel",
            text_config={**_WORDS, **_PLAIN, "eos_token_id": 34},
            vision_config={"image_size": 96, "patch_size": 16, **_PLAIN},
        ),
        lambda: {**_text(), **_picture(96)},
    ),
    "torch_convnext_v2": _seen("ConvNextV2ForImageClassification", **_STAGES),
    "torch_deberta": _read("DebertaV2Model", relative_attention=True, pos_att_type=["p2c", "c2p"], **_PLAIN),
    "torch_efficientnet": _seen(
        "EfficientNetForImageClassification",
        image_size=96,
        width_coefficient=0.5,
        depth_coefficient=0.5,
        hidden_dim=640,
    ),
    "torch_gpt2": _read("GPT2LMHeadModel", n_embd=192, n_layer=3, n_head=6),
    "torch_llama": _read("LlamaForCausalLM", num_key_value_heads=2, **_PLAIN),
    "torch_mamba": _read("MambaForCausalLM", hidden_size=192, num_hidden_layers=2),
    "torch_mobilenet_v2_96": _seen("MobileNetV2ForImageClassification", image_size=96),
    "torch_mobilevit": _seen("MobileViTForImageClassification", 128, image_size=128),
    "torch_regnet": _seen("RegNetForImageClassification", groups_width=16, **_STAGES),
    "torch_resnet18": _seen(
        "ResNetForImageClassification",
        depths=[2, 2, 2, 2],
        layer_type="basic",
        hidden_sizes=[64, 128, 256, 512],
    ),
    "torch_segformer": _seen("SegformerForSemanticSegmentation", num_labels=20),
    "torch_swin": _seen(
        "SwinForImageClassification", 112, image_size=112, embed_dim=48, depths=[2, 2], num_heads=[2, 4]
    ),
    "torch_t5": Export(
        lambda: _transformer(
            "T5ForConditionalGeneration",
            d_model=192,
            d_ff=768,
            num_layers=2,
            num_heads=6,
            d_kv=32,
            decoder_start_token_id=0,
            **_WORDS,
        ),
        lambda: _written(_text(24)),
    ),
    "torch_vit_96": _seen("ViTForImageClassification", image_size=96, **_PLAIN),
    "torch_wav2vec2": Export(lambda: _transformer("Wav2Vec2ForCTC", vocab_size=32, **_PLAIN), _samples),
    "torch_whisper": Export(
        lambda: _transformer("WhisperForConditionalGeneration", **_WORDS, **_WHISPER),
        lambda: _written(_heard()),
    ),
    "torch_yolos": _seen("YolosForObjectDetection", image_size=[96, 96], num_detection_tokens=20, **_PLAIN),
}
"""Maps the name of an export to its network, inputs and packages."""


def exported(name: str) -> ModelProto:
    """Return the exported model. Raises UsageError if a package is missing."""
    export = EXPORTS[name]
    if missing := export.missing:
        raise UsageError(
            f"{name} needs {', '.join(missing)}: `make exports`, or pip install 'edgepart[bench]'"
        )
    import torch

    torch.manual_seed(0)
    model, given = export.network(), export.inputs()
    _normalise(model, given)
    model.eval()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = Path(folder) / "exported.onnx"
        torch.onnx.export(
            model, (), path, kwargs=given, opset_version=export.opset, input_names=list(given), dynamo=True
        )
        return onnx.load(path)


def _normalise(model: Any, given: Mapping[str, Any]) -> None:
    """Give batch normalisations the statistics of random inputs.

    With the weights and statistics that torch initialises, deep networks pass on so little of a picture that
    their answers would not reveal errors.
    """
    import torch

    several = [m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    if not several:
        return
    for one in several:
        one.momentum = None  # the mean over all inputs
    with torch.no_grad():
        model.train()(**{name: torch.randn(16, *value.shape[1:]) for name, value in given.items()})
