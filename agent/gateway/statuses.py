"""Statuses: what each kind of error is in HTTP and in gRPC, and its document. Rules: no door."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgepart.agent.gateway.limits import TooLarge
from edgepart.agent.gateway.oip_models import NotOffered
from edgepart.agent.gateway.rate_limit import Throttled
from edgepart.planner.errors import (
    DeadlinePassed,
    EdgepartError,
    Infeasible,
    NotAuthorised,
    PeerError,
    StateLost,
    Unavailable,
    UnknownDeployment,
    UserError,
)


@dataclass(frozen=True, slots=True)
class Status:
    """The status of an answer that is an error."""

    http: int
    grpc: str
    """The name of the gRPC status code."""


STATUSES: tuple[tuple[type[Exception], Status], ...] = (
    (TooLarge, Status(413, "RESOURCE_EXHAUSTED")),
    (Throttled, Status(429, "RESOURCE_EXHAUSTED")),
    (NotOffered, Status(501, "UNIMPLEMENTED")),
    (UnknownDeployment, Status(404, "NOT_FOUND")),
    (UserError, Status(400, "INVALID_ARGUMENT")),
    (NotAuthorised, Status(401, "UNAUTHENTICATED")),
    (Infeasible, Status(507, "FAILED_PRECONDITION")),
    (Unavailable, Status(503, "UNAVAILABLE")),
    (StateLost, Status(409, "ABORTED")),
    (DeadlinePassed, Status(504, "DEADLINE_EXCEEDED")),
    (PeerError, Status(502, "INTERNAL")),
    (Exception, Status(500, "INTERNAL")),
)
"""The status of each kind of error; the first kind that an error is counts. It says what helps: in HTTP, 4xx another
request (409: the sequence from its first step), 503 a later try, 507 more devices or memory."""


def status_of(error: Exception) -> Status:
    return next(status for kind, status in STATUSES if isinstance(error, kind))


def error_document(error: Exception) -> dict[str, Any]:
    """Return the error as {"error", "kind"} with its further data; the text of an unexpected error stays in the log."""
    match error:
        case Infeasible():
            return {"error": str(error), "kind": "Infeasible", "short_bytes": error.short_bytes}
        case Unavailable():
            return {"error": str(error), "kind": "Unavailable", "retry_after_s": error.retry_after_s}
        case EdgepartError():
            return {"error": str(error), "kind": type(error).__name__}
    text = f"the agent failed inside ({type(error).__name__}); its log says where"
    return {"error": text, "kind": "InternalError"}
