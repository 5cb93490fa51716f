"""Foreign formats: a file that is no ONNX model is called what it is, and no ONNX model is called so."""

from __future__ import annotations

import gzip
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto

from edgepart.planner.errors import ModelError
from edgepart.planner.model.foreign_formats import BEGIN_BYTES, explain_foreign
from edgepart.planner.model.load import load_graph
from tests.planner.model.test_load import graph_of, model_of, node, value
from tests.planner.model.test_model_file import with_external

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "4d" * 32 + "\nsize 540000000\n"
SMALL = model_of(graph_of([node("Add", "x w", "y")], [value("x", (1, 4))], ["y"], w=np.ones(4, np.float32)))


def write_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"")


def write_ort(path: Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.add_session_config_entry("session.save_model_format", "ORT")
    ort.InferenceSession(SMALL.SerializeToString(), options, providers=["CPUExecutionProvider"])


def write_safetensors(path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))


WRITERS: dict[str, Callable[[Path], object]] = {
    "Git LFS": lambda path: path.write_text(POINTER),
    "GGUF": lambda path: path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(16)),
    "ZIP archive": write_zip,
    "Python pickle": lambda path: path.write_bytes(pickle.dumps({"w": 1}, protocol=2)),
    "Keras": lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(88)),
    "TensorFlow Lite": lambda path: path.write_bytes(b"\x1c\0\0\0TFL3" + bytes(24)),
    r"own format \(.ort\)": write_ort,
    "safetensors": write_safetensors,
    "compressed archive": lambda path: path.write_bytes(gzip.compress(SMALL.SerializeToString())),
    "web page": lambda path: path.write_text("\n<!DOCTYPE html>\n<html><title>404</title></html>"),
    "OpenVINO": lambda path: path.write_text('<?xml version="1.0"?>\n<net name="m" version="11"></net>'),
    "it is JSON": lambda path: path.write_text('{"model_type": "llama"}'),
}


@pytest.mark.parametrize("called", WRITERS)
def test_what_is_given_is_called_what_it_is(called: str, tmp_path: Path) -> None:
    WRITERS[called](tmp_path / "model.onnx")
    with pytest.raises(ModelError, match=rf"^model\.onnx: is not an ONNX file: .*{called}"):
        load_graph(tmp_path / "model.onnx")


def test_a_large_file_of_another_format_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "model.onnx").open("wb") as file:
        file.write(b"GGUF")
        file.truncate(5 << 30)  # a hole; ONNX files cannot be this large, which is not what is wrong with it
    with pytest.raises(ModelError, match="GGUF"):
        load_graph(tmp_path / "model.onnx")


def test_weights_for_which_a_pointer_stands(tmp_path: Path) -> None:
    path = with_external(tmp_path / "m")
    (tmp_path / "m/sub/weights.bin").write_text(POINTER)
    with pytest.raises(ModelError, match=r"^weights\.bin: .* a pointer of Git LFS"):
        load_graph(path)


@given(st.integers(-(2**40), 2**40), st.text(max_size=40), st.text(max_size=40), st.text(max_size=40))
def test_no_model_is_called_foreign(version: int, producer: str, domain: str, text: str) -> None:
    model = ModelProto(ir_version=version, producer_name=producer, domain=domain, doc_string=text)
    assert explain_foreign(model.SerializeToString()[:BEGIN_BYTES]) is None
    for without in ("ir_version", "producer_name", "domain"):
        model.ClearField(without)
        assert explain_foreign(model.SerializeToString()[:BEGIN_BYTES]) is None


@given(st.binary(max_size=BEGIN_BYTES))
def test_any_bytes_are_taken(begin: bytes) -> None:
    said = explain_foreign(begin)
    assert said is None or said.startswith(("it is", "these are"))
