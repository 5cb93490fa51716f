"""Broker: the address of an MQTT broker, and the login there. Facts and rules: no file or socket is opened here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from edgepart.planner.errors import UsageError

PORT, TLS_PORT = 1883, 8883
"""The registered ports of MQTT, without and with TLS."""
SCHEMES = {"mqtt": False, "mqtts": True}
"""Maps each URL scheme to whether the connection to the broker itself uses TLS."""


@dataclass(frozen=True, slots=True)
class Broker:
    """The address and credentials of a broker, which are read once, when the agent starts."""

    host: str
    port: int
    tls: bool = False
    """Without TLS a listener on the network sees the password and which agents talk to each other, but not the content."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: Path | None = None
    """The CA of the broker's certificate; None stands for the CAs that the system trusts."""

    def __str__(self) -> str:
        """The broker's URL without user and password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.tls else 'mqtt'}://{host}:{self.port}"


def parse_broker(
    text: str, *, password: str | None = None, ca: Path | None = None, option: str = "--mqtt"
) -> Broker:
    """Return the broker that `text` names. Raises a UsageError that names `option` and never shows a password.

    >>> parse_broker("mqtts://pi@broker.lan").port
    8883
    """
    # A text that cannot be parsed may hold a password anywhere, so it is not shown.
    wrong = f"{option}: give mqtt://[USER[:PASSWORD]@]HOST[:PORT], or mqtts:// for TLS"
    try:
        url = urlsplit(text)
        host, port = url.hostname, url.port
    except ValueError as error:
        raise UsageError(f"{wrong} ({error})") from None
    if not _is_plain(text, url) or not host or port == 0:
        raise UsageError(wrong)
    user = None if url.username is None else unquote(url.username)
    inside = None if url.password is None else unquote(url.password)
    _check_login(option, user, inside, password)
    tls = SCHEMES[url.scheme]
    if ca is not None and not tls:
        raise UsageError(f"{option}-ca: a CA is of use with mqtts:// only; {option} is mqtt://")
    return Broker(host, port or (TLS_PORT if tls else PORT), tls, user, inside or password, ca)


def _is_plain(text: str, url: SplitResult) -> bool:
    printable = text.isprintable() and " " not in text
    return printable and url.scheme in SCHEMES and url.path in ("", "/") and not (url.query or url.fragment)


def _check_login(option: str, user: str | None, inside: str | None, apart: str | None) -> None:
    if inside and apart:
        raise UsageError(f"{option}: the password is given twice, in the URL and apart from it; give it once")
    if (inside or apart) and not user:
        raise UsageError(f"{option}: there is a password but no user; give {option} mqtt://USER@HOST")
