"""Faults: the kinds of failure on the way to another agent, for programs that explain them. Facts and rules: this module
classifies errors that doors met, and opens nothing.
"""

from __future__ import annotations

import errno
import socket
import ssl
from enum import StrEnum

from edgepart.planner.errors import EdgepartError, FrameError, NotAuthorised, Unavailable


class Fault(StrEnum):
    """The kinds of failure, one for each different remedy."""

    REFUSED = "refused"
    """The box answers that nobody listens on the port."""
    SILENT = "silent"
    """No answer came: a firewall drops packets, or nobody has that address."""
    UNREACHABLE = "unreachable"
    """This machine has no route to the address, or its own firewall forbids the connection."""
    UNKNOWN_NAME = "unknown name"
    NO_TLS = "no tls"
    """Something answers, but it is not an agent."""
    OTHER_CLUSTER = "other cluster"
    NOT_YET_VALID = "not yet valid"
    """The other side's certificate begins later, by this device's clock."""
    EXPIRED = "expired"
    OURS_NOT_TAKEN = "ours not taken"
    """The other side does not accept this device's certificate."""
    OURS_EXPIRED = "ours expired"
    """Our certificate has expired by the other side's clock."""
    REVOKED = "revoked"
    """The other side was put out of the cluster."""
    OURS_REVOKED = "ours revoked"
    OTHER_NODE = "other node"
    """Another member answers at that address."""
    ITSELF = "itself"
    NO_WAY_BACK = "no way back"
    """This agent reaches the other side, which does not reach this agent."""
    TURNED_AWAY = "turned away"
    """The other side refuses the link and says why."""
    PROTOCOL = "protocol"
    """The other side sends frames that this version does not understand."""
    CLOSED = "closed"
    """The connection ended without a reason."""


class Unreached(Unavailable):
    """An address did not lead to the intended agent."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class Mistrusted(NotAuthorised):
    """A link to the device that answered is not allowed."""

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
"""Maps the end of a TLS alert's name to what the other side says about this device's certificate."""


def blame(error: Exception) -> tuple[Fault, str]:
    """Return the kind of fault that made a connection fail, and a text for people.

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
    """Return a text for people that says why a connection to this agent was refused."""
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
    reason = getattr(error, "reason", None) or ""  # an error that Python itself made has no reason
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
