"""`edgepart infer` with a photo, with an agent that is gone, and what it prints for programs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from PIL import Image

from tests.agent.http.conftest import Served, served
from tests.agent.http.fakes import A
from tests.cli.test_cli import Edgepart, edgepart, member

__all__ = ["edgepart", "member", "served"]

GONE = "http://127.0.0.1:1"


def means() -> ort.InferenceSession:
    """The mean of each channel of a picture of 8x8."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 1, 1])
    graph = helper.make_graph([helper.make_node("GlobalAveragePool", ["x"], ["y"])], "means", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return ort.InferenceSession(model.SerializeToString())


def test_a_photo_is_an_input_and_what_was_assumed_is_said(
    served: Served, edgepart: Edgepart, member: Path, tmp_path: Path
) -> None:
    served.node.sessions["photos"] = means()
    Image.new("RGB", (30, 20), (255, 0, 0)).save(tmp_path / "red.png")
    infer = ("infer", "photos", "--input", "red.png", "--state", str(member))
    status, out, err = edgepart(*infer)
    assert status == 0 and "2.2489, -2.0357, -1.8044" in out
    assert "red.png for input x: its middle, scaled to 8x8, rgb, channels first" in err
    status, out, _ = edgepart(*infer, "--json", "--picture", "range=255,order=bgr")
    found = json.loads(out)
    assert found["outputs"]["y"]["data"] == [[[[0.0]], [[0.0]], [[255.0]]]]
    assert found["assumed"] == [
        "red.png for input x: its middle, scaled to 8x8, bgr, channels first, values from 0 to 255"
    ]
    status, _, err = edgepart(*infer, "--picture", "order=pink")
    assert status == 2 and "'order=pink' is none of size=WIDTHxHEIGHT" in err


def test_arrays_for_programs_take_one_line(
    served: Served, edgepart: Edgepart, member: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "in.npz", a=A, b=A)
    status, out, _ = edgepart("infer", "add", "-i", "in.npz", "--json", "--state", str(member))
    assert status == 0 and len(out.splitlines()) < 20
    assert '"data": [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]' in out
    assert json.loads(out)["outputs"]["total"]["shape"] == [2, 3]


@pytest.mark.parametrize("way", ["the state folder", "a list of agents"])
def test_another_agent_answers_when_the_first_is_gone_and_the_command_says_so(
    way: str, served: Served, edgepart: Edgepart, member: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "in.npz", a=A, b=A)
    (member / "agent.json").write_text(json.dumps({"http": GONE}))
    (member / "http.json").write_text(json.dumps({"members": [served.url]}))
    where = ("--state", str(member)) if way == "the state folder" else ("--agent", f"{GONE},{served.url}")
    for command in (("infer", "add", "-i", "in.npz"), ("status",), ("bench", "add", "-n", "2")):
        status, _, err = edgepart(*command, *where)
        assert status == 0
        assert err.count(f"note: the agent at {GONE} cannot be reached; {served.url} answers") == 1
