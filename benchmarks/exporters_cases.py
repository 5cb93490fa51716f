"""What `make exporters` tries: decoders of common architectures, small and with drawn weights, and what is made of each by
which program. Facts, which the environments of the exporters read as well: nothing but the standard library is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

VOCABULARY = 320
PROMPTS = (150, 5)
"""Tokens of each prompt: one that is read in blocks, and one that is not."""
ANSWER = 40
"""Tokens of each answer."""
CONTEXT = 256
HEAD = 16
"""The size of a head in all of them."""
END = 2
"""The token that ends a text, as every exporter wants one to be named. It is never said: its logits are 0."""

_PLAIN: Mapping[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
_WEIGHTS: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
}
"""With weights as small as usual, a model that was not trained says one token all the time."""
_INNER: Mapping[str, Any] = {**_PLAIN, "intermediate_size": 128}
_GROUPED: Mapping[str, Any] = {**_INNER, "num_key_value_heads": 2, "head_dim": HEAD}
_GPT: Mapping[str, Any] = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512}
_SCALED: Mapping[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_EXPERTS: Mapping[str, Any] = {"num_experts_per_tok": 2}
_WINDOWED = ["sliding_attention", "full_attention"]


@dataclass(frozen=True)
class Architecture:
    """A decoder of transformers."""

    name: str
    """What people call it."""
    kind: str
    """Its `model_type`."""
    settings: Mapping[str, Any]
    """Those of its configuration that differ from `_WEIGHTS` and the usual ones."""

    @property
    def all_settings(self) -> dict[str, Any]:
        """All settings of its configuration."""
        ends = {"bos_token_id": 0, "eos_token_id": END, "pad_token_id": None}
        return {**_WEIGHTS, **ends, **self.settings}


ARCHITECTURES: Mapping[str, Architecture] = {
    "arcee": Architecture("Arcee", "arcee", _GROUPED),
    "bloom": Architecture("BLOOM", "bloom", {"hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "cohere": Architecture("Cohere", "cohere", {**_GROUPED, "logit_scale": 1.0}),
    "falcon": Architecture("Falcon (one head of keys)", "falcon", {**_PLAIN, "alibi": False}),
    "falcon_grouped": Architecture(
        "Falcon with several heads of keys",
        "falcon",
        {**_PLAIN, "alibi": False, "new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    "gemma": Architecture("Gemma", "gemma", _GROUPED),
    "gemma2": Architecture(
        "Gemma 2", "gemma2", {**_GROUPED, "sliding_window": 24, "query_pre_attn_scalar": 16}
    ),
    "gemma3": Architecture(
        "Gemma 3",
        "gemma3_text",
        {**_GROUPED, "sliding_window": 24, "query_pre_attn_scalar": 16, "layer_types": _WINDOWED},
    ),
    "glm": Architecture("GLM", "glm", _GROUPED),
    "gpt2": Architecture("GPT-2", "gpt2", _GPT),
    "gpt_bigcode": Architecture("GPT-BigCode", "gpt_bigcode", _GPT),
    "gptj": Architecture("GPT-J", "gptj", {**_GPT, "rotary_dim": 8}),
    "gpt_neo": Architecture(
        "GPT-Neo",
        "gpt_neo",
        {
            "hidden_size": 64,
            "num_layers": 2,
            "num_heads": 4,
            "max_position_embeddings": 512,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 24,
        },
    ),
    "gpt_neox": Architecture("GPT-NeoX", "gpt_neox", _INNER),
    "gpt_oss": Architecture(
        "GPT-OSS",
        "gpt_oss",
        {**_GROUPED, **_EXPERTS, "num_local_experts": 4, "sliding_window": 24, "layer_types": _WINDOWED},
    ),
    "granite": Architecture("Granite", "granite", {**_INNER, "num_key_value_heads": 2}),
    "helium": Architecture("Helium", "helium", _GROUPED),
    "lfm2": Architecture(
        "LFM2",
        "lfm2",
        {
            **_INNER,
            "num_key_value_heads": 2,
            "num_hidden_layers": 3,
            "layer_types": ["conv", "full_attention", "conv"],
        },
    ),
    "llama": Architecture("Llama", "llama", _GROUPED),
    "llama31": Architecture("Llama 3.1 (scaled rotation)", "llama", {**_GROUPED, "rope_scaling": _SCALED}),
    "mamba": Architecture("Mamba", "mamba", {"hidden_size": 64, "num_hidden_layers": 2}),
    "mistral": Architecture("Mistral (with its window)", "mistral", {**_GROUPED, "sliding_window": 24}),
    "nemotron": Architecture("Nemotron", "nemotron", _GROUPED),
    "olmo2": Architecture("OLMo 2", "olmo2", {**_INNER, "num_key_value_heads": 2}),
    "opt": Architecture(
        "OPT",
        "opt",
        {**_PLAIN, "ffn_dim": 128, "word_embed_proj_dim": 64, "init_std": 0.2, "pad_token_id": 1},
    ),
    "phi": Architecture(
        "Phi with fewer heads of keys than of queries", "phi", {**_INNER, "num_key_value_heads": 2}
    ),
    "phi3": Architecture(
        "Phi-3", "phi3", {**_INNER, "num_key_value_heads": 2, "original_max_position_embeddings": 512}
    ),
    "qwen2": Architecture("Qwen2", "qwen2", {**_INNER, "num_key_value_heads": 2}),
    "qwen3": Architecture("Qwen3", "qwen3", _GROUPED),
    "qwen3_moe": Architecture(
        "Qwen3-MoE", "qwen3_moe", {**_GROUPED, **_EXPERTS, "num_experts": 4, "moe_intermediate_size": 64}
    ),
    "smollm3": Architecture("SmolLM3", "smollm3", {**_INNER, "num_key_value_heads": 2}),
    "stablelm": Architecture("StableLM", "stablelm", {**_INNER, "num_key_value_heads": 2}),
}


@dataclass(frozen=True)
class Variant:
    """What is made of an architecture, and by which program."""

    exporter: str
    """The program that is named in the table: "optimum", "genai" or "torch"."""
    name: str
    what: str
    """What people do to get it, for the table."""
    architectures: Sequence[str]
    exact: bool = True
    """Whether it computes what transformers does in float32. The others are compared with one session over their file."""

    @property
    def environment(self) -> str:
        """The environment in which it is made."""
        return "genai" if self.exporter == "genai" else "optimum"


@dataclass(frozen=True)
class Case:
    """A variant of an architecture."""

    variant: Variant
    architecture: str

    @property
    def name(self) -> str:
        return f"{self.variant.exporter}-{self.variant.name}-{self.architecture}"


_BY_BUILDER = (
    *(
        "gemma",
        "gemma2",
        "gemma3",
        "gpt_oss",
        "granite",
        "lfm2",
        "llama",
        "mistral",
        "olmo2",
        "phi3",
        "qwen2",
    ),
    *("qwen3", "smollm3"),
)
_FEW = ("llama", "gpt2", "qwen3")
_TWO = ("llama", "gpt2")

VARIANTS: Sequence[Variant] = (
    Variant("optimum", "plain", "as it is", tuple(ARCHITECTURES)),
    *(Variant("optimum", f"o{n}", f"`--optimize O{n}`", _FEW) for n in (1, 2, 3)),
    Variant("optimum", "basic", "`optimized_model_filepath`, basic", _FEW),
    Variant("optimum", "extended", "`optimized_model_filepath`, extended", _FEW),
    Variant("optimum", "merged", "merged (`use_cache_branch`)", _TWO),
    Variant("optimum", "fp16", "fp16", _FEW, False),
    Variant("optimum", "fp16io", "fp16, `keep_io_types`", _FEW, False),
    Variant("optimum", "int8", "`quantize_dynamic`, int8", _FEW, False),
    Variant("optimum", "uint8", "`quantize_dynamic`, uint8", _TWO, False),
    Variant("optimum", "q4", "q4: MatMulNBits, symmetric", _FEW, False),
    Variant("optimum", "q4asym", "q4: MatMulNBits, with zero points", _TWO, False),
    Variant("optimum", "q4f16", "q4f16", _FEW, False),
    Variant("optimum", "bnb4", "bnb4: MatMulBnb4", _TWO, False),
    Variant("torch", "dynamo", "`torch.onnx.export(dynamo=True)`", _FEW),
    Variant("genai", "fp32", "`-p fp32`", _BY_BUILDER),
    Variant("genai", "fp16", "`-p fp16`", ("llama", "qwen3", "phi3"), False),
    Variant("genai", "int8", "`-p int8`", ("llama", "qwen3"), False),
    Variant("genai", "int4", "`-p int4`", ("llama", "qwen3", "gpt_oss"), False),
)


def all_cases() -> Iterator[Case]:
    """Yield what is tried, in the order of the table."""
    for variant in VARIANTS:
        for architecture in variant.architectures:
            yield Case(variant, architecture)
