"""HTTP answers: turns errors, documents and tensors into responses. Rules over aiohttp's records; no socket."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiohttp import web

from edgepart.agent.http.bodies import TooLarge
from edgepart.agent.http.buffers import pad_head
from edgepart.agent.http.deliveries import Deliveries
from edgepart.agent.http.rate_limit import Throttled
from edgepart.planner.errors import (
    EdgepartError,
    Infeasible,
    NotAuthorised,
    PeerError,
    StateLost,
    Unavailable,
    UnknownDeployment,
    UserError,
)

COMPRESS_FROM_BYTES = 1024
"""Smaller answers are never compressed: it is not worth the time, even if a client asks for it."""


def status_of(error: Exception) -> int:
    """Return the HTTP status, which says what helps: 4xx another request (409: the sequence from its first step), 503 a
    later try, 507 more devices or memory."""
    match error:
        case web.HTTPException():
            return error.status
        case TooLarge():
            return 413
        case Throttled():
            return 429
        case UnknownDeployment():
            return 404
        case UserError():
            return 400
        case NotAuthorised():
            return 401
        case Infeasible():
            return 507
        case Unavailable():
            return 503
        case StateLost():
            return 409
        case PeerError():
            return 502
    return 500


def error_document(error: Exception) -> dict[str, Any]:
    """Return the error as {"error", "kind"} with its further data; the text of an unexpected error stays in the log."""
    match error:
        case web.HTTPException():
            return {"error": error.text or error.reason, "kind": "HTTP"}
        case Infeasible():
            return {"error": str(error), "kind": "Infeasible", "short_bytes": error.short_bytes}
        case Unavailable():
            return {"error": str(error), "kind": "Unavailable", "retry_after_s": error.retry_after_s}
        case EdgepartError():
            return {"error": str(error), "kind": type(error).__name__}
    text = f"the agent failed inside ({type(error).__name__}); its log says where"
    return {"error": text, "kind": "InternalError"}


def error_response(
    error: Exception, describe: Callable[[Exception], Mapping[str, Any]] = error_document
) -> web.Response:
    """Return the answer to a request that failed. `describe` makes its document."""
    headers: dict[str, str] = {}
    if isinstance(error, Unavailable):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if isinstance(error, NotAuthorised):
        headers["WWW-Authenticate"] = 'Bearer realm="edgepart"'
    if isinstance(error, web.HTTPNotImplemented):
        headers["X-Should-Retry"] = "false"  # OpenAI's own clients would try again, as they do after any 5xx.
    if isinstance(error, web.HTTPMethodNotAllowed):
        headers["Allow"] = error.headers["Allow"]
    return web.json_response(describe(error), status=status_of(error), headers=headers)


def document_response(document: Any, status: int = 200) -> web.Response:
    return web.json_response(document, status=status, headers={"Cache-Control": "no-store"})


def tensor_response(
    head: bytes, buffers: Sequence[bytes | memoryview], accepted: str, deliveries: Deliveries
) -> web.Response:
    """Return an answer of protocol v2: its JSON `head`, followed by the binary data, which is not copied unless it is
    compressed. `accepted` is the request's Accept-Encoding."""
    kind = "application/octet-stream" if buffers else "application/json"
    headers = {"Content-Type": kind}
    if buffers:
        head = pad_head(head)
        headers["Inference-Header-Content-Length"] = str(len(head))
    coding = choose_coding(accepted)
    if not coding or len(head) + sum(map(len, buffers)) < COMPRESS_FROM_BYTES:
        return web.Response(body=deliveries.answer((head, *buffers), kind), headers=headers)
    body = b"".join((head, *buffers))
    headers["Content-Encoding"] = coding
    body = gzip.compress(body, 1) if coding == "gzip" else zlib.compress(body, 1)
    return web.Response(body=deliveries.answer((body,), kind), headers=headers)


def choose_coding(accepted: str) -> str:
    """Return the coding with which to compress the answer, from an Accept-Encoding; "" for none. Tensors rarely shrink, so
    answers are compressed only for a client that names a single coding (as tritonclient does when told to)."""
    coding = accepted.strip().lower()
    return coding if coding in ("gzip", "deflate") else ""


def json_line(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document).encode() + b"\n"
