"""HTTP answers: turns errors, documents and tensors into responses. Rules over aiohttp's records; no socket."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiohttp import web

from edgepart.agent.gateway import statuses
from edgepart.agent.http.buffers import pad_head
from edgepart.agent.http.deliveries import Deliveries
from edgepart.planner.errors import NotAuthorised, Unavailable

NOTHING_THERE = "404: Not Found"
"""The text of aiohttp's own answer to an unknown path."""

COMPRESS_FROM_BYTES = 1024
"""Smaller answers are never compressed: it is not worth the time, even if a client asks for it."""


def status_of(error: Exception) -> int:
    """Return the HTTP status, which says what helps (statuses.py)."""
    return error.status if isinstance(error, web.HTTPException) else statuses.status_of(error).http


def error_document(error: Exception) -> dict[str, Any]:
    """Return the error as {"error", "kind"} with its further data."""
    match error:
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            return {"error": f"{error.method} is not possible here: use {allowed}", "kind": "HTTP"}
        case web.HTTPNotFound() if error.text == NOTHING_THERE:
            return {"error": "there is no such path; GET /api lists those that there are", "kind": "HTTP"}
        case web.HTTPException():
            return {"error": error.text or error.reason, "kind": "HTTP"}
    return statuses.error_document(error)


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
