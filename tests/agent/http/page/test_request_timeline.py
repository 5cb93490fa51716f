"""The timeline of a traced request: the last one, with its messages, also where parts of the trace are missing."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from edgepart.agent.http.page.request_timeline import draw_last_request
from tests.agent.http.page.test_page import TRACE, row


def trace() -> dict[str, Any]:
    return deepcopy(TRACE)


def test_the_last_request_is_drawn_with_its_messages() -> None:
    document = trace()
    early = row("requests", "request", 10.5, 9.0)
    early[7] = "r0"
    document["devices"][0]["spans"].insert(0, early)
    found = draw_last_request(document)
    assert found is not None and found["seconds"] == 0.02 and list(found["devices"]) == ["ann", "bob"]
    assert "ann to bob: 6 B" in found["timeline"] and "bob: wait" in found["timeline"]


def test_without_a_request_there_is_nothing_to_draw() -> None:
    document = trace()
    document["devices"][0]["spans"].pop(0)
    assert draw_last_request(document) is None


def test_a_trace_with_holes_is_drawn_as_far_as_it_goes() -> None:
    document = trace()
    document["devices"].pop()
    document["missing"] = {"bob": "it is gone"}
    found = draw_last_request(document)
    assert found is not None and list(found["devices"]) == ["ann"] and " to bob" not in found["timeline"]
    document["plans"] = []
    assert draw_last_request(document) is not None


def test_requests_of_other_deployments_do_not_count() -> None:
    document = trace()
    for part in document["devices"]:
        for span in part["spans"]:
            span[4] = "other"
    assert draw_last_request(document) is None
