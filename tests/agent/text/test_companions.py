"""Files beside a model: what transformers and GenAI write is understood, and what is wrong is named with its file."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from edgepart.agent.text import tokenizer
from edgepart.agent.text.companions import (
    MOST_TEMPLATE_CHARACTERS,
    TextFiles,
    check_tokenizer,
    parse_companions,
    read_companions,
)
from edgepart.agent.text.generation import Sampling
from edgepart.planner.errors import ModelError
from tests.agent.text.small_tokenizer import small_tokenizer_json

GREEDY = Sampling(temperature=0.0)

CHAT_ML = {
    "tokenizer.json": {},
    "tokenizer_config.json": {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "chat_template": "{{ messages }}",
        "model_max_length": 8192,
    },
    "config.json": {
        "model_type": "llama",
        "eos_token_id": 2,
        "bos_token_id": 1,
        "max_position_embeddings": 8192,
    },
    "generation_config.json": {"_from_model_config": True, "bos_token_id": 1, "eos_token_id": 2},
}
LLAMA_3 = {
    "tokenizer.json": {},
    "tokenizer_config.json": {
        "add_bos_token": True,
        "bos_token": {"content": "<|begin_of_text|>", "lstrip": False, "special": True},
        "eos_token": {"content": "<|eot_id|>", "lstrip": False},
        "chat_template": [
            {"name": "tool_use", "template": "{{ tools }}"},
            {"name": "default", "template": "{{ bos_token }}"},
        ],
    },
    "config.json": {"eos_token_id": [128001, 128008], "max_position_embeddings": 131072},
    "generation_config.json": {
        "do_sample": True,
        "eos_token_id": [128001, 128009],
        "temperature": 0.6,
        "top_p": 0.9,
    },
}
GENAI = {
    "tokenizer.json": {},
    "genai_config.json": {
        "model": {"bos_token_id": 1, "eos_token_id": [7, 8], "context_length": 4096, "type": "phi3"},
        "search": {"do_sample": False, "temperature": 1.0, "top_k": 50, "repetition_penalty": 1.1},
    },
    "config.json": {"max_position_embeddings": 131072},
    "generation_config.json": {"do_sample": True, "temperature": 0.6, "eos_token_id": 9},
}


def parsed(files: dict[str, Any]) -> TextFiles:
    return parse_companions({name: json.dumps(content).encode() for name, content in files.items()})


def test_a_folder_of_a_chat_model(tmp_path: Path) -> None:
    for name, content in CHAT_ML.items():
        (tmp_path / name).write_text(json.dumps(content))
    (tmp_path / "special_tokens_map.json").write_text("{}")
    assert read_companions(tmp_path) == TextFiles(
        names=("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"),
        template="{{ messages }}",
        bos="<|im_start|>",
        eos="<|im_end|>",
        bos_token=1,
        end_tokens=frozenset({2}),
        context=8192,
        sampling=GREEDY,
    )


def test_objects_lists_and_named_templates() -> None:
    found = parsed(LLAMA_3)
    assert (found.bos, found.eos, found.adds_bos) == ("<|begin_of_text|>", "<|eot_id|>", True)
    assert found.template == "{{ bos_token }}"
    assert found.end_tokens == {128001, 128008, 128009}
    assert found.sampling == Sampling(temperature=0.6, top_p=0.9, top_k=50)


def test_the_onnx_models_own_file_goes_first() -> None:
    found = parsed(GENAI)
    assert (found.context, found.bos_token) == (4096, 1)
    assert found.end_tokens == {7, 8, 9}
    assert found.sampling == Sampling(temperature=0.0, repetition_penalty=1.1)


@pytest.mark.parametrize(
    ("generation", "search", "sampling"),
    [
        ({}, {}, GREEDY),
        ({"temperature": 0.7, "top_p": 0.8}, {}, GREEDY),
        ({"do_sample": True}, {}, Sampling(top_k=50)),
        ({"do_sample": True, "top_k": 0, "min_p": 0.1}, {}, Sampling(min_p=0.1)),
        ({"do_sample": True, "temperature": None, "top_k": 20}, {}, Sampling(top_k=20)),
        ({"do_sample": True, "top_k": 20}, {"do_sample": None, "top_k": 30}, Sampling(top_k=30)),
        ({"do_sample": False}, {"do_sample": True, "temperature": 0.5}, Sampling(temperature=0.5, top_k=50)),
        ({"do_sample": True, "temperature": 0.5}, {"do_sample": False}, GREEDY),
        ({"repetition_penalty": 1.2}, {}, Sampling(temperature=0.0, repetition_penalty=1.2)),
    ],
)
def test_how_tokens_are_chosen_if_nobody_says(
    generation: dict[str, Any], search: dict[str, Any], sampling: Sampling
) -> None:
    files = {"generation_config.json": generation, "genai_config.json": {"search": search}}
    assert parsed(files).sampling == sampling


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({}, None),
        ({"tokenizer_config.json": {"chat_template": None}}, None),
        ({"tokenizer_config.json": {"chat_template": []}}, None),
        ({"tokenizer_config.json": {"chat_template": [{"name": "rag", "template": "r"}]}}, "r"),
        (
            {"tokenizer_config.json": {"chat_template": "c"}, "chat_template.json": {"chat_template": "j"}},
            "j",
        ),
        ({"tokenizer_config.json": {"chat_template": "c"}, "chat_template.json": {}}, "c"),
    ],
)
def test_where_templates_are(files: dict[str, Any], template: str | None) -> None:
    assert parsed(files).template == template
    documents = {name: json.dumps(content).encode() for name, content in files.items()}
    assert (
        parse_companions(documents | {"chat_template.jinja": b"\xef\xbb\xbfown \xc3\xa9"}).template == "own é"
    )


def test_the_text_part_of_a_model_that_sees() -> None:
    assert parsed({"config.json": {"text_config": {"max_position_embeddings": 32768}}}).context == 32768
    assert parsed({"config.json": {"n_positions": 1024}}).context == 1024
    assert parsed({}) == TextFiles(names=())


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("config.json", b"{", "not JSON"),
        ("config.json", b"\xff\xfe\xff", "not JSON"),
        ("config.json", b"[" * 100_000, "not JSON"),
        ("config.json", b'{"eos_token_id": ' + b"9" * 5000 + b"}", "not JSON"),
        ("config.json", b"[]", "must be a JSON object"),
        ("config.json", b'{"eos_token_id": -1}', "'eos_token_id' must be"),
        ("config.json", b'{"eos_token_id": [true]}', "'eos_token_id' must be"),
        ("config.json", b'{"eos_token_id": {}}', "'eos_token_id' must be"),
        ("config.json", b'{"eos_token_id": 2.0}', "'eos_token_id' must be"),
        ("config.json", b'{"max_position_embeddings": "long"}', "'max_position_embeddings' must be"),
        ("config.json", b'{"max_position_embeddings": 0}', "'max_position_embeddings' must be"),
        ("config.json", b'{"text_config": 4}', "'text_config' must be"),
        ("genai_config.json", b'{"model": []}', "'model' must be"),
        ("genai_config.json", b'{"search": []}', "'search' must be"),
        ("genai_config.json", b'{"model": {"context_length": true}}', "'context_length' must be"),
        ("genai_config.json", b'{"search": {"do_sample": 1}}', "'do_sample' must be"),
        ("genai_config.json", b'{"search": {"top_k": -5}}', "'top_k' must be a number from 0"),
        ("generation_config.json", b'{"temperature": NaN}', "'temperature' must be a number from 0 to 2"),
        ("generation_config.json", b'{"temperature": 1e999}', "'temperature' must be"),
        ("generation_config.json", b'{"top_p": "0.9"}', "'top_p' must be"),
        ("tokenizer_config.json", b'{"bos_token": 4}', "'bos_token' must be"),
        ("tokenizer_config.json", b'{"eos_token": {"content": null}}', "'eos_token' must be"),
        ("tokenizer_config.json", b'{"add_bos_token": "yes"}', "'add_bos_token' must be"),
        ("tokenizer_config.json", b'{"chat_template": 4}', "'chat_template' must be"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "x"}]}', "'chat_template' must be"),
        ("chat_template.json", b'{"chat_template": ["x"]}', "'chat_template' must be"),
        ("chat_template.jinja", b"\xff", "not UTF-8"),
        ("chat_template.jinja", b"x" * (MOST_TEMPLATE_CHARACTERS + 1), "characters"),
    ],
)
def test_what_is_wrong_is_named_with_its_file(name: str, content: bytes, says: str) -> None:
    with pytest.raises(ModelError, match=f"^{name}: .*{says}.* [nN]othing was stored"):
        parse_companions({name: content})


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(ModelError, match=r"there is no tokenizer\.json"):
        read_companions(tmp_path)


def test_files_that_are_far_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "MOST_FILE_BYTES", 100)
    (tmp_path / "tokenizer.json").write_bytes(b" " * 100)
    assert read_companions(tmp_path).names == ("tokenizer.json",)
    (tmp_path / "tokenizer.json").write_bytes(b" " * 101)
    with pytest.raises(ModelError, match=r"tokenizer\.json: it has more than 100 bytes"):
        read_companions(tmp_path)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "4d" * 32 + "\nsize 11000000\n"


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
def test_files_for_which_pointers_stand(name: str, tmp_path: Path) -> None:
    for there, content in CHAT_ML.items():
        (tmp_path / there).write_text(json.dumps(content))
    (tmp_path / name).write_text(POINTER)
    with pytest.raises(ModelError, match=rf"^{re.escape(name)}: .*git lfs pull.*Nothing was stored"):
        read_companions(tmp_path)


def test_a_tokenizer_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(small_tokenizer_json())
    check_tokenizer(path)
    path.write_text("{}")
    with pytest.raises(
        ModelError, match=r"^tokenizer\.json: it is not a tokenizer that can be used .*Nothing was stored"
    ):
        check_tokenizer(path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    check_tokenizer(path)  # An agent that has the package may find it in order.
    path.write_text("<html>")
    with pytest.raises(ModelError, match=r"^tokenizer\.json: it is not JSON"):
        check_tokenizer(path)
