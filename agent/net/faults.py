"""Faults: what kind of thing went wrong on the way to another agent, for programs that explain it. Facts and rules: errors
that doors met are read here, nothing is opened.
"""

from __future__ import annotations

import errno
import socket
import ssl
from enum import StrEnum

from edgepart.planner.errors import EdgepartError, FrameError, NotAuthorised, Unavailable


class Fault(StrEnum):
    """One for each thing that a person would do something else about."""

    REFUSED = "refused"
    """The box is there, and says that nobody listens on the port."""
    SILENT = "silent"
    """Nothing came back: a firewall that drops, or nobody has that address."""
    UNREACHABLE = "unreachable"
    """This machine knows no way to the address, or its own firewall forbids it."""
    UNKNOWN_NAME = "unknown name"
    NO_TLS = "no tls"
    """Somebody answers, but not as an agent does."""
    OTHER_CLUSTER = "other cluster"
    NOT_YET_VALID = "not yet valid"
    """Its certificate begins later, by this device's clock."""
    EXPIRED = "expired"
    OURS_NOT_TAKEN = "ours not taken"
    """It does not take this device's certificate."""
    OURS_EXPIRED = "ours expired"
    """Our certificate has expired by the other side's clock."""
    REVOKED = "revoked"
    """It is put out of the cluster."""
    OURS_REVOKED = "ours revoked"
    OTHER_NODE = "other node"
    """Another member answers at that address."""
    ITSELF = "itself"
    NO_WAY_BACK = "no way back"
    """We reach it, and it does not reach us."""
    TURNED_AWAY = "turned away"
    """It refuses the link and says why."""
    PROTOCOL = "protocol"
    """It sends what this version does not understand."""
    CLOSED = "closed"
    """The connection ended without a word."""


class Unreached(Unavailable):
    """An address that did not lead to the agent that was meant."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class Mistrusted(NotAuthorised):
    """The device that answered is not one that may be linked to."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


def fault_of(error: EdgepartError) -> Fault:
    if isinstance(error, Unreached | Mistrusted):
        return error.fault
    return Fault.PROTOCOL if isinstance(error, FrameError) else Fault.CLOSED


_REFUSED = frozenset({errno.ECONNREFUSED})
_NO_WAY = frozenset(
    {
        errno.ENETUNREACH,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.EADDRNOTAVAIL,
        errno.EINVAL,  # a link-local address without its interface
        errno.ENODEV,
        errno.ENXIO,
        errno.EAFNOSUPPORT,
        errno.EACCES,
        errno.EPERM,  # a packet filter on this machine
    }
)
_NOT_YET_VALID, _EXPIRED, _REVOKED = 9, 10, 23
"""OpenSSL's codes, X509_V_ERR_*."""
_ALERTS = {
    "CERTIFICATE_EXPIRED": Fault.OURS_EXPIRED,
    "CERTIFICATE_REVOKED": Fault.OURS_REVOKED,
    "UNKNOWN_CA": Fault.OURS_NOT_TAKEN,
    "BAD_CERTIFICATE": Fault.OURS_NOT_TAKEN,
    "CERTIFICATE_UNKNOWN": Fault.OURS_NOT_TAKEN,
    "CERTIFICATE_REQUIRED": Fault.OURS_NOT_TAKEN,
    "ACCESS_DENIED": Fault.OURS_NOT_TAKEN,
}
"""What the other side says of our certificate, by the end of the alert's name."""


def blame(error: Exception) -> tuple[Fault, str]:
    """What a connection that failed failed of, and a text for people.

    >>> blame(TimeoutError())
    (<Fault.SILENT: 'silent'>, 'does not answer')
    """
    match error:
        case ssl.SSLCertVerificationError():
            return _of_certificate(error.verify_code)
        case TimeoutError():
            return Fault.SILENT, "does not answer"
        case ssl.SSLError():
            return _of_tls(error)
        case socket.gaierror() | UnicodeError():
            return Fault.UNKNOWN_NAME, str(error)
        case OSError():
            return _of_system(error), str(error)
    return Fault.UNREACHABLE, str(error)


_KNOCKS = {
    Fault.OTHER_CLUSTER: "shows a certificate of another cluster",
    Fault.NOT_YET_VALID: "shows a certificate that is not valid yet, by this device's clock",
    Fault.EXPIRED: "shows a certificate that has expired, by this device's clock",
    Fault.NO_TLS: "does not speak edgepart's TLS",
}


def knock(error: Exception) -> str:
    """Why somebody who connected to this agent was not let in; for people."""
    return str(error) if isinstance(error, EdgepartError) else _KNOCKS.get(blame(error)[0], str(error))


def _of_certificate(code: int) -> tuple[Fault, str]:
    if code == _NOT_YET_VALID:
        return Fault.NOT_YET_VALID, "its certificate is not valid yet, by this device's clock"
    if code == _EXPIRED:
        return Fault.EXPIRED, "its certificate has expired, by this device's clock"
    if code == _REVOKED:
        return Fault.REVOKED, "its certificate is revoked"
    return Fault.OTHER_CLUSTER, "answers with a certificate of another cluster"


def _of_tls(error: ssl.SSLError) -> tuple[Fault, str]:
    reason = getattr(error, "reason", None) or ""  # it has none where Python made the error itself
    for name, fault in _ALERTS.items():
        if reason.endswith(f"ALERT_{name}"):
            return fault, f"does not take this device's certificate ({name.lower().replace('_', ' ')})"
    return Fault.NO_TLS, f"does not speak edgepart's TLS ({reason or error})"


def _of_system(error: OSError) -> Fault:
    if error.errno in _REFUSED:
        return Fault.REFUSED
    if error.errno == errno.ETIMEDOUT:
        return Fault.SILENT
    return Fault.UNREACHABLE if error.errno in _NO_WAY else Fault.CLOSED
