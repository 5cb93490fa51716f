"""JSON bodies: reads a body's JSON object, within bounds on the memory and the time that it takes. Rules: no door."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from edgepart.agent.gateway.oip import expect_object
from edgepart.planner.errors import RequestError

MAX_JSON_BYTES = 32 << 20
"""The largest JSON part; more data has to be sent in binary."""
MAX_JSON_LISTS = 200_000
"""The most lists and objects in the JSON: each takes some hundred bytes of memory for two bytes of text, and garbage
collection has to visit it. The parser itself refuses JSON that is nested deeper than 1,024."""
MAX_JSON_ITEMS = 4 << 20
"""The most numbers and texts in the JSON; each takes some 32 bytes when it is parsed."""


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
