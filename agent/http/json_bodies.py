"""JSON bodies: reads a body's JSON object, within bounds on the memory and the time that it takes. Rules: no door."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from edgepart.planner.errors import RequestError

MAX_JSON_BYTES = 32 << 20
"""The largest JSON part; more data has to be sent in binary."""
MAX_JSON_LISTS = 200_000
"""The most lists and objects in the JSON: each takes some hundred bytes of memory for two bytes of text, and garbage
collection has to visit it. The parser itself refuses JSON that is nested deeper than 1,024."""
MAX_JSON_ITEMS = 4 << 20
"""The most numbers and texts in the JSON; each takes some 32 bytes when it is parsed."""
ASIDE_FROM_BYTES = 64 << 10
"""JSON or texts of this many bytes or more are read in a thread of the pool, so that the event loop's heartbeats are not
late. Binary numbers are read and written in the event loop, because that is faster than changing threads."""


def read_object(text: memoryview, advice: str, not_finite: str = "it has no NaN") -> Mapping[str, Any]:
    """Return the object that the JSON is. Raises RequestError; `advice` says what to do about JSON that is too large, and
    `not_finite` about NaN and infinities."""
    if len(text) > MAX_JSON_BYTES:
        raise RequestError(f"the JSON has {len(text)} bytes; the limit is {MAX_JSON_BYTES}: {advice}")
    data = bytes(text)
    if data.count(b"[") + data.count(b"{") > MAX_JSON_LISTS:
        raise RequestError(f"the JSON has over {MAX_JSON_LISTS} lists and objects: {advice}")
    if data.count(b",") > MAX_JSON_ITEMS:
        raise RequestError(f"the JSON has over {MAX_JSON_ITEMS} items: {advice}")
    try:
        document = orjson.loads(data)
    except ValueError as error:
        raise RequestError(f"the body is no JSON that can be used ({not_finite}): {error}") from None
    return expect_object(document, "the body")


def expect_object(value: Any, where: str) -> Mapping[str, Any]:
    """Return `value`, which has to be a JSON object. Raises RequestError, which says `where` it stands."""
    if not isinstance(value, dict):
        raise RequestError(f"{where}: expected a JSON object, found {type(value).__name__}")
    return value
