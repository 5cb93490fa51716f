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
    try:
        url = urlsplit(text if "//" in text else f"http://{text}")
        sound = url.scheme in ("http", "https") and url.hostname and (url.port is None or url.port > 0)
    except ValueError:
        sound = False
    if not sound or url.path not in ("", "/") or url.query or url.fragment or "@" in url.netloc:
        raise UsageError(
            f"{where}: give a URL such as http://127.0.0.1:8433, or several with commas between them"
        )
    return f"{url.scheme}://{url.netloc}"


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
    urls = (m["http"] for m in members if m.get("http") and m.get("state") in ANSWERING)
    return reachable((str(url).rstrip("/") for url in urls), asked)


def reachable(urls: Iterable[str], asked: str) -> tuple[str, ...]:
    """The URLs that a client of `asked` may reach, each once. What another machine calls its loopback is not here, so a
    loopback URL counts only for clients that reach the agent itself that way.

    >>> reachable(["http://127.0.0.1:1", "http://pi-b:1"], "http://pi-a:1")
    ('http://pi-b:1',)
    """
    return tuple(dict.fromkeys(url for url in urls if is_loopback(asked) or not is_loopback(url)))
