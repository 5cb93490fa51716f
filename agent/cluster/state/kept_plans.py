"""Kept plans: the plan by which a deployment is served, as each member has it on disk, so that it can serve again after a
power cut without a search. Rules, without I/O.

A plan is read only by the version of edgepart that wrote it: plans have no format of their own that other versions know.
Nothing is lost with one that cannot be read, because the leader makes another one.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from typing import Any

from edgepart.agent.wire.codec import json_record, read_json_record
from edgepart.agent.wire.control import Prepare
from edgepart.planner.errors import FrameError, UsageError


class OtherVersion(UsageError):
    """The plan was kept by another version of edgepart."""


def to_json(order: Prepare, made_with: str) -> dict[str, Any]:
    """The content of a plan's file. `made_with`: this version of edgepart."""
    packed = json_record(order) | {"plan": b64encode(order.plan).decode()}
    return {"made_with": made_with, "order": packed}


def from_json(document: Any, made_with: str) -> Prepare:
    """The order that brought the plan. Raises OtherVersion if it is not of the version `made_with`, and UsageError, which
    says what is wrong, if it cannot be read."""
    if not isinstance(document, dict):
        raise UsageError(f"expected dict, found {type(document).__name__}")
    if document.get("made_with") != made_with:
        raise OtherVersion(f"it was kept by edgepart {str(document.get('made_with'))[:40]}, not {made_with}")
    packed = document.get("order")
    if not isinstance(packed, dict) or not isinstance(packed.get("plan"), str):
        raise UsageError("it holds no plan")
    try:
        return read_json_record(Prepare, packed | {"plan": b64decode(packed["plan"], validate=True)})
    except (FrameError, binascii.Error, ValueError) as error:
        raise UsageError(str(error)) from error
