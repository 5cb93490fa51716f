"""Who may do what over HTTP. Rules: no door.

Writes (deploy, undeploy) always need the cluster's admin credential as `Authorization: Bearer ...`. Reads and
inference are free from this machine and need the credential from anywhere else; inference may be opened to all, or
closed to this machine's programs too. A request counts as from this machine only when it came over loopback, through no
proxy, and not from a web page of another origin: a page that a person's browser has open must not reach the agent
(cross-site requests, DNS rebinding).
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from edgepart.agent.wire.vocabulary import CLOSED, LOCAL, OPEN
from edgepart.planner.errors import NotAuthorised

FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")
"""Headers that a proxy adds: behind one, loopback says nothing about the client."""


def authorise(
    peer: str | None, headers: Mapping[str, str], credential: str, *, write: bool, openness: str = LOCAL
) -> None:
    """NotAuthorised unless the request may be served. `peer` is the client's address, None where it is not
    known."""
    if headers.get("Authorization"):
        if shows(headers, credential):
            return
        raise NotAuthorised("the credential is not this cluster's; see identity/admin in a member's state")
    if write:
        raise NotAuthorised("this changes the cluster: send `Authorization: Bearer <admin credential>`")
    if openness == OPEN and is_same_origin(headers):
        return
    if openness == CLOSED:
        raise NotAuthorised("inference is closed here: send `Authorization: Bearer <admin credential>`")
    if not is_local(peer, headers):
        raise NotAuthorised("from another machine or site, send `Authorization: Bearer <admin credential>`")


def shows(headers: Mapping[str, str], credential: str) -> bool:
    """Whether the request shows the credential. How long this takes does not depend on how much of it is right."""
    scheme, _, secret = headers.get("Authorization", "").partition(" ")
    right = hmac.compare_digest(secret.strip().encode(errors="surrogateescape"), credential.encode())
    return right and bool(credential) and scheme.lower() == "bearer"


def is_same_origin(headers: Mapping[str, str]) -> bool:
    """Whether the request is from no web page, or from one that this agent served."""
    return "Origin" not in headers or urlsplit(headers["Origin"]).netloc == headers.get("Host")


def is_local(peer: str | None, headers: Mapping[str, str]) -> bool:
    """Whether the request is from a program on this machine, or a page that this agent served to it."""
    if not _is_loopback(peer or "") or any(name in headers for name in FORWARDED):
        return False
    netloc = _own_netloc(headers.get("Host", ""))
    return netloc is not None and ("Origin" not in headers or _netloc(headers["Origin"]) == netloc)


@lru_cache(maxsize=256)
def _own_netloc(host: str) -> str | None:
    """Of a Host header that names this machine, or an address; None of any other."""
    netloc = _netloc(f"//{host}")
    if netloc != host or not _is_host_and_port(netloc):
        return None
    name = urlsplit(f"//{netloc}").hostname or ""
    return netloc if name == "localhost" or _is_address(name) else None


def _is_host_and_port(netloc: str) -> bool:
    try:
        port = urlsplit(f"//{netloc}").port
    except ValueError:
        return False
    return "@" not in netloc and (port is None or port > 0)


def _netloc(url: str) -> str:
    """ "" where it is none."""
    try:
        return urlsplit(url).netloc
    except ValueError:
        return ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=256)
def _is_loopback(host: str) -> bool:
    if not _is_address(host.partition("%")[0]):
        return False
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
