"""Errors cross HTTP with their class."""

from __future__ import annotations

import pytest

from edgepart.client.failures import describe_loss, error_from
from edgepart.planner.errors import (
    ContextExceeded,
    EdgepartError,
    Infeasible,
    ModelError,
    NotAuthorised,
    RequestError,
    Unavailable,
    UnknownDeployment,
)


def test_errors_keep_their_class() -> None:
    assert type(error_from({"error": "x", "kind": "Infeasible"}, 507)) is Infeasible
    assert type(error_from({"error": "x", "kind": "ModelError"}, 400)) is ModelError
    assert type(error_from({"error": "x", "kind": "Exception"}, 400)) is RequestError
    assert type(error_from({}, 503)) is Unavailable
    assert "418" in str(error_from({}, 418))


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("model_not_found", 404, UnknownDeployment),
        ("context_length_exceeded", 400, ContextExceeded),
        ("invalid_api_key", 401, NotAuthorised),
        ("unavailable", 200, Unavailable),
        ("rate_limit_exceeded", 429, Unavailable),
        ("invalid_value", 400, RequestError),
        (None, 200, EdgepartError),
    ],
)
def test_errors_of_openai_become_our_own(code: str | None, status: int, kind: type[EdgepartError]) -> None:
    found = error_from({"error": {"message": "why", "code": code}}, status)
    assert type(found) is kind and str(found) == "why"


def test_a_loss_is_told_in_the_systems_words() -> None:
    assert "(connection refused); is it running?" in describe_loss(
        "http://a", OSError(111, "Connect call failed")
    )
    assert "(TimeoutError)" in describe_loss("http://a", TimeoutError())
    assert "(it gives no sign of life)" in describe_loss("http://a", TimeoutError("it gives no sign of life"))
