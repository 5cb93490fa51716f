"""Failures: the agent's errors as exceptions of the same class. Rules: no door."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from edgepart.planner import errors
from edgepart.planner.errors import EdgepartError, Unavailable

OPENAI_CODES: Mapping[str, type[EdgepartError]] = {
    "context_length_exceeded": errors.ContextExceeded,
    "invalid_api_key": errors.NotAuthorised,
    "model_not_found": errors.UnknownDeployment,
    "rate_limit_exceeded": Unavailable,
    "unavailable": Unavailable,
}
"""The classes of errors by the codes that /v1 gives them."""


def error_from(document: Mapping[str, Any], status: int) -> EdgepartError:
    """The agent's error, as an exception of the same class. /v1 has a form of its own, which is that of OpenAI's server."""
    inner = document.get("error")
    if isinstance(inner, dict):
        named = OPENAI_CODES.get(str(inner.get("code")))
        document = {"error": inner.get("message"), "kind": named and named.__name__}
    text = str(document.get("error") or f"the agent answered with HTTP status {status}")
    if document.get("kind") == "Unavailable" or status == 503:
        wait_s = document.get("retry_after_s")
        return Unavailable(text, float(wait_s) if isinstance(wait_s, int | float) else 1.0)
    kind = getattr(errors, str(document.get("kind")), None)
    if kind is errors.Infeasible:
        return errors.Infeasible(text, _bytes_by_device(document.get("short_bytes")))
    if isinstance(kind, type) and issubclass(kind, EdgepartError):
        return kind(text)
    return errors.RequestError(text) if 400 <= status < 500 else EdgepartError(text)


def _bytes_by_device(found: Any) -> dict[str, int]:
    entries = found.items() if isinstance(found, dict) else ()
    return {str(name): size for name, size in entries if type(size) is int}


def describe_loss(url: str, error: BaseException) -> str:
    """Says that an agent cannot be reached, and why in the system's words where those are known."""
    code = getattr(error, "errno", None)
    why = os.strerror(code).lower() if isinstance(code, int) and code > 0 else str(error)
    return f"the agent at {url} cannot be reached ({why or type(error).__name__}); is it running?"
