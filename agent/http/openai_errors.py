"""OpenAI errors: the documents that /v1 answers with where it refuses or fails. Rules over aiohttp's records; no socket."""

from __future__ import annotations

from typing import Any

from edgepart.agent.http.answers import error_document, status_of
from edgepart.agent.http.openai_fields import FieldError
from edgepart.planner.errors import ContextExceeded, UnknownDeployment

OPENAI_ROOT = "/v1"
"""The first part of the paths whose errors have this form."""


def is_openai_path(path: str) -> bool:
    """Whether clients of that path expect this form.

    >>> [is_openai_path(path) for path in ("/v1", "/v1/models", "/v10", "/v2/models")]
    [True, True, False, False]
    """
    return path == OPENAI_ROOT or path.startswith(f"{OPENAI_ROOT}/")


def openai_error_document(error: Exception) -> dict[str, Any]:
    """Return the error as {"error": {"message", "type", "param", "code"}}. The text is that of all other routes."""
    status = status_of(error)
    param = error.field if isinstance(error, FieldError) else None
    if isinstance(error, UnknownDeployment):
        param = "model"
    inner = {
        "message": error_document(error)["error"],
        "type": _type_of(status),
        "param": param,
        "code": _code_of(error, status),
    }
    return {"error": inner}


def _type_of(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"


def _code_of(error: Exception, status: int) -> str | None:
    match error:
        case UnknownDeployment():
            return "model_not_found"
        case ContextExceeded():
            return "context_length_exceeded"
        case FieldError():
            return "invalid_value"
    return {
        401: "invalid_api_key",
        404: "unknown_url",
        413: "request_too_large",
        429: "rate_limit_exceeded",
        501: "not_installed",
        503: "unavailable",
    }.get(status)
