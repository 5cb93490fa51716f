"""Every error of every path has the form that clients of the path expect."""

from __future__ import annotations

import re

import pytest

from tests.agent.http.conftest import Reply, Served
from tests.agent.http.fake_text import FakeText

METHODS = ("GET", "POST", "DELETE", "PUT")
STREAMS = ("/stream", "/api/live")
NOWHERE = ("/v1", "/v1/", "/v1/nope", "/v10", "/v2/nope", "/v2/models/add/nope", "/api/nope", "/nope")


def check_form(path: str, reply: Reply) -> None:
    """One error, in JSON; OpenAI's form below /v1, that of the Open Inference Protocol elsewhere."""
    where = f"{path}: {reply.status} {reply.body[:200]!r}"
    assert reply.headers.get_content_type() == "application/json", where
    document = reply.json()
    if re.match("/v1(/|$)", path):
        assert document.keys() == {"error"}, where
        assert document["error"].keys() == {"message", "type", "param", "code"}, where
        text = document["error"]["message"]
    else:
        assert {"error", "kind"} <= document.keys(), where
        text = document["error"]
    assert isinstance(text, str) and text and not re.match(r"\d{3}: ", text), where


def test_every_path_refuses_in_its_form(talking: Served) -> None:
    """Methods that it does not have, names that nothing has, and bodies that are no JSON."""
    refused = 0
    for path in sorted({re.sub(r"\{[^}]*\}", "nope", route.path) for route in talking.server.routes()}):
        for method in METHODS:
            if path.endswith(STREAMS) and method == "GET":
                continue
            reply = talking.ask(method, path, None if method == "GET" else b"{")
            if reply.status >= 400 and "/health/" not in path:
                check_form(path, reply)
                refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    "path", ["/v1", "/v1/", "/v1/nope", "/v10", "/v2/nope", "/v2/models/add/nope", "/api/nope", "/nope"]
)
def test_unknown_paths_too(talking: Served, path: str) -> None:
    reply = talking.ask("GET", path)
    assert reply.status == 404
    check_form(path, reply)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v2/models/add/infer"])
def test_failures_within_too(talking: Served, text: FakeText, path: str) -> None:
    text.failure = talking.node.failure = ValueError("a fault")
    chat = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
    one = {"shape": [2, 3], "datatype": "FP32", "data": [0] * 6}
    body = chat if "chat" in path else {"inputs": [{"name": "a", **one}, {"name": "b", **one}]}
    reply = talking.ask("POST", path, body)
    assert reply.status == 500
    check_form(path, reply)
    reply = talking.ask("POST", path, b"{}", {"Expect": "the-unexpected"})
    assert reply.status == 417
    check_form(path, reply)


def test_a_wrong_method_is_told_the_right_ones(served: Served) -> None:
    reply = served.ask("POST", "/metrics", b"")
    assert reply.json()["error"] == "POST is not possible here: use GET, HEAD"
    assert (
        served.ask("GET", "/nope").json()["error"]
        == "there is no such path; GET /api lists those that there are"
    )
