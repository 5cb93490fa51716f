"""Addresses: the URLs of agents, as people write them and as members tell them. Rules: no door."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from edgepart.planner.errors import UsageError

ANSWERING = ("alive", "flapping")
"""States of members that answer clients. (A flapping member computes nothing, but it is a gateway.)"""


def parse_urls(text: str, where: str) -> tuple[str, ...]:
    """The URLs in a list with commas between them, without a slash at the end. Raises UsageError, which begins with
    `where`.

    >>> parse_urls("pi-a:8433, http://[::1]:1/", "--agent")
    ('http://pi-a:8433', 'http://[::1]:1')
    """
    return tuple(_parse_url(part.strip(), f"{where} {text!r}") for part in text.split(","))


def _parse_url(text: str, where: str) -> str:
    found = _origin(text if "//" in text else f"http://{text}")
    if found is None:
        raise UsageError(
            f"{where}: give a URL such as http://127.0.0.1:8433, or several with commas between them"
        )
    return found


def _origin(text: str) -> str | None:
    """The URL of an agent without a slash at the end; None if the text is none."""
    try:
        url = urlsplit(text)
        sound = url.scheme in ("http", "https") and url.hostname and (url.port is None or url.port > 0)
    except ValueError:
        return None
    rest = url.path not in ("", "/") or url.query or url.fragment or "@" in url.netloc
    return (
        f"{url.scheme}://{url.netloc}"
        if sound and not rest and text.isprintable() and " " not in text
        else None
    )


def is_loopback(url: str) -> bool:
    """Whether the URL leads to this machine, where reading and inference need no credential.

    >>> is_loopback("http://127.0.0.1:8433"), is_loopback("http://pi-a:8433")
    (True, False)
    """
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def urls_of_members(status: Mapping[str, Any], asked: str) -> tuple[str, ...]:
    """The URLs of the members that answer clients, from the document of /api/status that the agent at `asked` gave."""
    members = status.get("members", ())
    return reachable((str(m.get("http")) for m in members if m.get("state") in ANSWERING), asked)


def reachable(urls: Iterable[str], asked: str) -> tuple[str, ...]:
    """The URLs among these that a client of `asked` may reach, each once. What another machine calls its loopback is not
    here, so a loopback URL counts only for clients that reach the agent itself that way.

    >>> reachable(["http://127.0.0.1:1", "http://pi-b:1"], "http://pi-a:1")
    ('http://pi-b:1',)
    """
    found = dict.fromkeys(url for url in map(_origin, urls) if url is not None)
    return tuple(url for url in found if is_loopback(asked) or not is_loopback(url))
