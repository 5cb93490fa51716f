"""Sequences by HTTP: Triton's parameters, what they may say, and the options that say which states there are."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from edgepart.agent.api.inference_request import SequenceTurn
from edgepart.agent.http import oip_bodies
from edgepart.agent.wire.inference import DeployOptions
from edgepart.planner.errors import RequestError, StateLost
from tests.agent.http.conftest import Served
from tests.agent.http.fakes import A
from tests.agent.http.test_http import form

TENSOR = {"name": "a", "datatype": "FP32", "shape": [2, 3], "data": A.tolist()}


def read(parameters: dict[str, Any]) -> SequenceTurn | None:
    body = json.dumps({"inputs": [TENSOR], "parameters": parameters}).encode()
    return oip_bodies.read_request(body, None).sequence


@pytest.mark.parametrize(
    ("parameters", "turn"),
    [
        ({}, None),
        ({"sequence_id": 0}, None),
        ({"sequence_id": ""}, None),
        ({"sequence_id": 0, "sequence_start": False, "sequence_end": False}, None),
        ({"sequence_id": 7}, SequenceTurn("7")),
        ({"sequence_id": "7"}, SequenceTurn("7")),
        ({"sequence_id": 2**64 - 1, "sequence_start": True}, SequenceTurn(str(2**64 - 1), start=True)),
        ({"sequence_id": "ü" * 128, "sequence_end": True}, SequenceTurn("ü" * 128, end=True)),
        ({"sequence_id": "a", "sequence_start": True, "sequence_end": True}, SequenceTurn("a", True, True)),
    ],
)
def test_which_sequence_a_request_is_a_step_of(parameters: dict[str, Any], turn: SequenceTurn | None) -> None:
    assert read(parameters) == turn


@pytest.mark.parametrize(
    ("parameters", "fault"),
    [
        ({"sequence_id": 2**64}, "at most 64 bits"),
        ({"sequence_id": -1}, "at most 64 bits"),
        ({"sequence_id": "x" * 129}, "at most 128 characters"),
        ({"sequence_id": True}, "whole number"),
        ({"sequence_id": 1.5}, "whole number"),
        ({"sequence_id": None}, "whole number"),
        ({"sequence_id": ["a"]}, "whole number"),
        ({"sequence_id": 7, "sequence_start": 1}, "`sequence_start` must be true or false"),
        ({"sequence_id": 7, "sequence_end": "yes"}, "`sequence_end` must be true or false"),
        ({"sequence_start": True}, "need a `sequence_id`, which is not 0"),
        ({"sequence_id": 0, "sequence_end": True}, "need a `sequence_id`, which is not 0"),
    ],
)
def test_what_names_no_sequence_is_refused(parameters: dict[str, Any], fault: str) -> None:
    with pytest.raises(RequestError, match=fault):
        read(parameters)


@pytest.fixture
def stateful(served: Served) -> Served:
    """A server whose model "add" keeps its input `b`."""
    served.node.states["add"] = {"b": np.ones((2, 3), np.float32)}
    return served


def ask(served: Served, *tensors: Any, **parameters: Any) -> Any:
    document = {"inputs": list(tensors or [TENSOR]), "parameters": parameters}
    return served.ask("POST", "/v2/models/add/infer", document)


def test_steps_reach_the_node_and_answers_name_their_sequence(stateful: Served) -> None:
    reply = ask(stateful, sequence_id=7, sequence_start=True)
    assert reply.status == 200
    assert reply.json()["parameters"]["sequence_id"] == "7"
    assert reply.json()["outputs"][0]["data"] == (A + 1).ravel().tolist()
    assert "sequence_id" not in ask(stateful).json()["parameters"]
    assert ask(stateful, sequence_id="7", sequence_end=True).status == 200
    assert stateful.node.turns == [SequenceTurn("7", start=True), None, SequenceTurn("7", end=True)]
    assert "sequence" in stateful.ask("GET", "/v2").json()["extensions"]


def test_states_are_not_given_and_only_models_with_states_have_sequences(stateful: Served) -> None:
    reply = ask(stateful, TENSOR, {**TENSOR, "name": "b"}, sequence_id=7)
    assert reply.status == 400
    assert "input 'b' is a state that the devices keep" in reply.json()["error"]
    stateful.node.states.clear()
    reply = ask(stateful, TENSOR, {**TENSOR, "name": "b"}, sequence_id=7)
    assert reply.status == 400
    assert "'add' keeps no states between requests; leave `sequence_id` out" in reply.json()["error"]
    assert ask(stateful, TENSOR, {**TENSOR, "name": "b"}).status == 200
    assert stateful.node.turns == [None]


def test_lost_states_are_a_conflict_that_the_client_has_to_resolve(stateful: Served) -> None:
    stateful.node.failure = StateLost("the states of sequence '7' are lost: begin it again")
    reply = ask(stateful, sequence_id=7)
    assert reply.status == 409 and "begin it again" in reply.json()["error"]


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, DeployOptions()),
        (
            {"states": [["hn", "h"]], "context": 512, "sequences": 9},
            DeployOptions(states=(("hn", "h"),), context=512, sequences=9),
        ),
        ({"states": []}, DeployOptions(states=())),
        ({"states": None, "context": None}, DeployOptions()),
    ],
)
def test_what_deployments_may_say_of_states(
    served: Served, given: dict[str, Any], options: DeployOptions
) -> None:
    body, headers = form(("options", None, json.dumps(given).encode()), ("file", "m.onnx", b"graph"))
    assert served.ask("POST", "/api/deployments/m", body, headers).status == 200
    assert served.node.deployed["m"][1] == options


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"states": [["hn"]]}, "states"),
        ({"states": [["hn", ""]]}, "states"),
        ({"states": "hn=h"}, "states"),
        ({"context": 0}, "context"),
        ({"sequences": 0}, "sequences"),
        ({"sequences": 5000}, "sequences"),
        ({"sequences": None}, "sequences"),
    ],
)
def test_what_they_may_not_say(served: Served, given: dict[str, Any], fault: str) -> None:
    body, headers = form(("options", None, json.dumps(given).encode()), ("file", "m.onnx", b"graph"))
    reply = served.ask("POST", "/api/deployments/m", body, headers)
    assert reply.status == 400 and fault in reply.json()["error"]
    assert "m" not in served.node.deployed
