"""Access: decides which requests HTTP serves. Rules: no door.

Writes (deploy, undeploy) always need the cluster's admin credential as `Authorization: Bearer ...`. Reads and inference are
free for this machine and need the credential from anywhere else; inference may be opened to all clients, or closed even to
this machine's programs. A request counts as from this machine only if it came over loopback, through no proxy, and not from
a web page of another origin: a page open in the user's browser must not reach the agent (cross-site requests, DNS
rebinding).

A credential that is not the cluster's is refused even where none is needed, so that whoever sends a stale one learns it.
/v1 is an exception: clients of OpenAI's server cannot send no key, and where inference is free people give them any word.
There, any other key counts as none. It gives no right that its absence would not give, and as it changes no answer, it
tells nothing about the credential.
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
    peer: str | None,
    headers: Mapping[str, str],
    credential: str,
    *,
    write: bool,
    openness: str = LOCAL,
    any_key: bool = False,
) -> None:
    """Raises NotAuthorised unless the request may be served. `peer` is the client's address; None if it is unknown.
    `openness` is LOCAL, OPEN or CLOSED. With `any_key`, a wrong credential counts as none."""
    if shows_credential(headers, credential):
        return
    refusal = _refusal(peer, headers, write=write, openness=openness)
    if headers.get("Authorization") and (refusal or not any_key):
        refusal = "the credential is not this cluster's; see identity/admin in a member's state"
    if refusal:
        raise NotAuthorised(refusal)


def _refusal(peer: str | None, headers: Mapping[str, str], *, write: bool, openness: str) -> str | None:
    """Return why a request without a credential may not be served; None if it may."""
    if write:
        return "this changes the cluster: send `Authorization: Bearer <admin credential>`"
    if openness == OPEN and is_same_origin(headers):
        return None
    if openness == CLOSED:
        return "inference is closed here: send `Authorization: Bearer <admin credential>`"
    if not is_local(peer, headers):
        return "from another machine or site, send `Authorization: Bearer <admin credential>`"
    return None


def shows_credential(headers: Mapping[str, str], credential: str) -> bool:
    """Whether the request shows the credential. The time that this takes does not reveal how much of a guess is right."""
    scheme, _, secret = headers.get("Authorization", "").partition(" ")
    right = hmac.compare_digest(secret.strip().encode(errors="surrogateescape"), credential.encode())
    return right and bool(credential) and scheme.lower() == "bearer"


def is_same_origin(headers: Mapping[str, str]) -> bool:
    """Whether the request is from a page that this agent served, or from no web page at all."""
    return "Origin" not in headers or urlsplit(headers["Origin"]).netloc == headers.get("Host")


def is_local(peer: str | None, headers: Mapping[str, str]) -> bool:
    """Whether the request is from a program on this machine, or from a page that this agent served to this machine."""
    if not _is_loopback(peer or "") or any(name in headers for name in FORWARDED):
        return False
    netloc = _own_netloc(headers.get("Host", ""))
    return netloc is not None and ("Origin" not in headers or _netloc(headers["Origin"]) == netloc)


@lru_cache(maxsize=256)
def _own_netloc(host: str) -> str | None:
    """Return the host and port of a Host header that is `localhost` or an address; None for any other."""
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
    """Return the host and port in a URL; "" if it has none."""
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
