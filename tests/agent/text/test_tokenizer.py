"""Tokens for text: a small tokenizer that is trained here, files that are none, and texts that are too long."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from edgepart.agent.text import tokenizer as module
from edgepart.agent.text.text_stream import TextStream
from edgepart.agent.text.tokenizer import TextTokenizer, parse_tokenizer, read_limited
from edgepart.planner.errors import ModelError, NotInstalled, RequestError
from tests.agent.text.small_tokenizer import small_tokenizer_json


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(small_tokenizer_json())
    return path


def load(path: Path) -> TextTokenizer:
    return parse_tokenizer(read_limited(path), path.name)


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> TextTokenizer:
    return load(path)


@given(st.text(max_size=60))
def test_a_text_comes_back(text: str) -> None:
    tokenizer = _kept()
    tokens = tokenizer.encode(text, special=False)
    assert tokenizer.decode(tokens) == text
    assert all(0 <= token < tokenizer.size for token in tokens)
    stream = TextStream(tokenizer.decode)
    assert "".join(map(stream.push, tokens)) + stream.finish() == text


@given(st.lists(st.integers(0, 299), max_size=60))
def test_a_stream_of_any_tokens_is_their_text(tokens: list[int]) -> None:
    tokenizer = _kept()
    stream = TextStream(tokenizer.decode)
    assert "".join(map(stream.push, tokens)) + stream.finish() == tokenizer.decode(tokens)


@cache
def _kept() -> TextTokenizer:
    return TextTokenizer(Tokenizer.from_str(small_tokenizer_json()))


def test_special_tokens(tokenizer: TextTokenizer) -> None:
    begin, end = tokenizer.token_of("<s>"), tokenizer.token_of("</s>")
    assert begin is not None and end is not None and tokenizer.token_of("<none>") is None
    plain = tokenizer.encode("the sea", special=False)
    assert tokenizer.encode("the sea", special=True) == [begin, *plain]
    assert tokenizer.encode("the sea</s>", special=False) == [*plain, end]
    assert tokenizer.decode([begin, *plain, end]) == "the sea"
    assert tokenizer.decode([begin, *plain, end], special=True) == "<s>the sea</s>"
    assert tokenizer.end_tokens([7], ["</s>", "<none>"]) == {7, end}


def test_tokens_that_are_none_have_no_text(tokenizer: TextTokenizer) -> None:
    plain = tokenizer.encode("the sea", special=False)
    assert tokenizer.decode([*plain, 10**6, 2**40, -1]) == "the sea"


def test_settings_of_training_do_not_shorten_prompts(path: Path, tmp_path: Path) -> None:
    document = json.loads(path.read_text())
    document["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    document["padding"] = {"strategy": {"Fixed": 400}, "direction": "Right", "pad_to_multiple_of": None,
                           "pad_id": 0, "pad_type_id": 0, "pad_token": "<s>"}  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    text = "the sea is deep and the sea is wide"
    other = load(tmp_path / "tokenizer.json")
    assert other.encode(text, special=True) == load(path).encode(text, special=True)


def test_texts_that_cannot_be_encoded(tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="half a character at place 2"):
        tokenizer.encode("ab\ud800", special=False)
    monkeypatch.setattr(module, "MOST_TEXT_BYTES", 8)
    assert tokenizer.decode(tokenizer.encode("éééé", special=False)) == "éééé"
    with pytest.raises(RequestError, match=r"10 bytes, and 8 are allowed.*Nothing was generated"):
        tokenizer.encode("ééééé", special=False)


def _lost(path: Path) -> None:
    path.unlink()


def _no_text(path: Path) -> None:
    path.write_bytes(b"\xff\xff")


def _no_json(path: Path) -> None:
    path.write_text("{")


def _no_model(path: Path) -> None:
    path.write_text('{"version": "1.0", "model": {"type": "none"}}')


def _deep(path: Path) -> None:
    path.write_text("[" * 100_000)


@pytest.mark.parametrize("spoil", [_lost, _no_text, _no_json, _no_model, _deep])
def test_files_that_are_no_tokenizers(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("")
    spoil(path)
    with pytest.raises(ModelError, match=r"^tokenizer\.json: it .*\(.+\).*Nothing was stored"):
        load(path)


def test_faults_inside_the_package_are_errors_of_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the package panics depends on its version, so one is made up; other ends of the process pass through."""

    class PanicException(BaseException):
        pass

    class Panicking:
        fault: BaseException = PanicException("index out of bounds")

        @classmethod
        def from_str(cls, text: str) -> None:
            raise cls.fault

        def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str:
            raise self.fault

    monkeypatch.setattr("tokenizers.Tokenizer", Panicking)
    with pytest.raises(ModelError, match="index out of bounds"):
        load(path)
    with pytest.raises(RequestError, match=r"cannot decode .*index out of bounds"):
        TextTokenizer(Panicking()).decode([1])  # type: ignore[arg-type]
    Panicking.fault = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        load(path)


def test_without_the_extra(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(NotInstalled, match=r"pip install 'edgepart\[text\]'"):
        load(path)
