"""Which file of a folder is the model, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgepart.client.model_files import find_model
from edgepart.planner.errors import UsageError


def test_the_model_of_a_folder(tmp_path: Path) -> None:
    assert find_model(tmp_path / "m.onnx") == tmp_path / "m.onnx", "a path is taken as it is"
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx/model_q4.onnx").write_bytes(b"")
    assert find_model(tmp_path).name == "model_q4.onnx"
    (tmp_path / "onnx/model_q8.onnx").write_bytes(b"")
    with pytest.raises(UsageError, match=r"There are: onnx/model_q4\.onnx, onnx/model_q8\.onnx"):
        find_model(tmp_path)
    (tmp_path / "onnx/model.onnx").write_bytes(b"")
    assert find_model(tmp_path).name == "model.onnx"
    (tmp_path / "genai_config.json").write_text('{"model": {"decoder": {"filename": "own.onnx"}}}')
    assert find_model(tmp_path) == tmp_path / "own.onnx"


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no \.onnx file in this folder$"):
        find_model(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a\x0e\x0a\x05")
    with pytest.raises(UsageError, match=r"there is no \.onnx file in this folder$"):
        find_model(tmp_path)


def test_a_folder_with_a_model_in_another_format(tmp_path: Path) -> None:
    header = b'{"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}'
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    with pytest.raises(
        UsageError, match=r"no \.onnx file in this folder; model\.safetensors: these are weights"
    ):
        find_model(tmp_path)
