"""Language models as folders, in the layout in which people have them: the model, its tokenizer, its chat template and what
says where a text ends. Door: files; the first time, the network.

    python -m benchmarks.models.language smollm2_genai_float32 -o FOLDER
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from benchmarks.models.decoder_graph import DecoderGraph, DecoderShape, DecoderWeights
from benchmarks.models.genai_style import GenaiDecoder
from benchmarks.models.model import place_of, save
from benchmarks.models.optimum_style import OptimumDecoder
from benchmarks.models.seeded_decoder import BILLION, SeededWeights
from benchmarks.models.smollm import SmolWeights, fetch_gguf
from edgepart.planner.errors import UsageError

MODEL = "model.onnx"
SHAPE = "shape.json"
"""The sizes of the decoder, for benchmarks. Nobody else reads this file."""


@dataclass(frozen=True)
class Language:
    """A language model that can be made."""

    style: str
    """Whose exporter's form it has: "genai" or "optimum"."""
    quantised: bool
    seeded: bool = False
    """Whether its weights are drawn, and not SmolLM2's."""


LANGUAGES: Mapping[str, Language] = {
    "smollm2_genai_float32": Language("genai", False),
    "smollm2_genai_int8": Language("genai", True),
    "smollm2_optimum_float32": Language("optimum", False),
    "smollm2_optimum_int8": Language("optimum", True),
    "billion_int4": Language("genai", True, seeded=True),
}
_STYLES: Mapping[str, type[DecoderGraph]] = {"genai": GenaiDecoder, "optimum": OptimumDecoder}


@dataclass(frozen=True)
class LanguageFolder:
    """A language model on this machine's disk."""

    name: str
    path: Path
    style: str
    shape: DecoderShape
    end_token: int

    @property
    def model(self) -> Path:
        return self.path / MODEL


def language_folder(name: str) -> LanguageFolder:
    """Return a language model of this name. It is made if it is not in the cache folder. Raises UsageError if there is no
    such model, or it cannot be made here."""
    if name not in LANGUAGES:
        raise UsageError(f"no language model {name!r}; there are {', '.join(LANGUAGES)}")
    folder = place_of(name, MODEL).parent
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as making:
            made = Path(making) / name
            _make(name, LANGUAGES[name], made)
            if not folder.exists():
                made.rename(folder)
    kept = json.loads((folder / SHAPE).read_text())
    return LanguageFolder(
        name, folder, LANGUAGES[name].style, DecoderShape(**kept["shape"]), kept["end_token"]
    )


def _make(name: str, language: Language, folder: Path) -> None:
    gguf = fetch_gguf(place_of("smollm2", MODEL).parent)
    smol = SmolWeights(gguf, name)
    weights: DecoderWeights = SeededWeights(BILLION) if language.seeded else smol
    save(_STYLES[language.style](weights, language.quantised).build(), folder / MODEL)
    smol.save_tokenizer(folder / "tokenizer.json")
    end = int(smol.fields["tokenizer.ggml.eos_token_id"])
    for file, document in companions(smol.fields, weights.shape, language.style).items():
        (folder / file).write_text(json.dumps(document, indent=1) + "\n")
    if language.style == "genai":
        (folder / "chat_template.jinja").write_text(smol.fields["tokenizer.chat_template"])
    kept = {"shape": vars(weights.shape), "end_token": end}
    (folder / SHAPE).write_text(json.dumps(kept) + "\n")


def companions(fields: Mapping[str, Any], shape: DecoderShape, style: str) -> dict[str, dict[str, Any]]:
    """Return the documents beside the model, by file: those that the style's exporter writes."""
    begin, end = int(fields["tokenizer.ggml.bos_token_id"]), int(fields["tokenizer.ggml.eos_token_id"])
    tokens = fields["tokenizer.ggml.tokens"]
    tokenizer: dict[str, Any] = {
        "add_bos_token": False,
        "bos_token": tokens[begin],
        "eos_token": tokens[end],
        "model_max_length": shape.context,
        "tokenizer_class": "GPT2Tokenizer",
    }
    if style == "optimum":
        tokenizer["chat_template"] = fields["tokenizer.chat_template"]
    found = {
        "tokenizer_config.json": tokenizer,
        "generation_config.json": {"bos_token_id": begin, "eos_token_id": end},
    }
    if style == "genai":
        found["genai_config.json"] = _genai_config(shape, begin, end)
    return found


def _genai_config(shape: DecoderShape, begin: int, end: int) -> dict[str, Any]:
    caches = {
        "past_key_names": "past_key_values.%d.key",
        "past_value_names": "past_key_values.%d.value",
    }
    presents = {"present_key_names": "present.%d.key", "present_value_names": "present.%d.value"}
    decoder = {
        "filename": MODEL,
        "head_size": shape.size,
        "hidden_size": shape.hidden,
        "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask", **caches},
        "outputs": {"logits": "logits", **presents},
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
    }
    model = {
        "type": "llama",
        "bos_token_id": begin,
        "eos_token_id": end,
        "context_length": shape.context,
        "vocab_size": shape.vocabulary,
        "decoder": decoder,
    }
    search = {"do_sample": False, "max_length": shape.context, "past_present_share_buffer": True}
    return {"model": model, "search": search}


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=tuple(LANGUAGES))
    parser.add_argument("-o", "--output", type=Path, help="the folder to copy it to")
    options = parser.parse_args(given)
    try:
        made = language_folder(options.name)
    except UsageError as error:
        parser.exit(1, f"{error}\n")
    if options.output is not None:
        shutil.copytree(made.path, options.output, ignore=shutil.ignore_patterns(SHAPE))
    size = sum(file.stat().st_size for file in made.path.iterdir())
    nodes = len(onnx.load(made.model, load_external_data=False).graph.node)
    print(f"{options.output or made.path}: {nodes} operators, {size // 1000} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
