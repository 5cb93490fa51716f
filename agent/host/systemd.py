"""Notifier: tells systemd the agent's state (sd_notify), and feeds its watchdog while the agent makes real progress.

Door: datagrams to the socket that NOTIFY_SOCKET names; nothing is sent if it is not set. The protocol is that of
sd_notify(3); the datagrams are small texts of NAME=value lines.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Watchdog:
    """The rule for when to tell systemd that the agent is alive.

    An agent whose event loop turns but whose computing thread is gone serves nobody, so both count. A long
    run is no fault of the agent: it computes in a worker and ends with its request."""

    interval_s: float
    """How long systemd waits for a sign of life before it restarts the agent."""

    @property
    def period_s(self) -> float:
        """How often to look: twice in an interval, as sd_watchdog_enabled(3) advises."""
        return self.interval_s / 2

    def should_ping(self, now: float, loop_ticked_at: float, computes: bool) -> bool:
        """Whether the agent makes progress: its loop turned within the interval, and the threads that compute are alive
        (`computes`). Both times are of one clock."""
        return computes and now - loop_ticked_at < self.interval_s


class Notifier:
    """Talks to systemd, if there is one. It never raises: a lost datagram must not stop an agent."""

    def __init__(self, address: str | None, watchdog_s: float | None = None) -> None:
        self._address = address
        self.watchdog_s = watchdog_s
        """The watchdog's interval; None if systemd asks for no signs of life."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ, pid: int | None = None) -> Notifier:
        """A notifier as NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID ask for."""
        text = environ.get("WATCHDOG_USEC", "")
        mine = environ.get("WATCHDOG_PID") in (None, str(os.getpid() if pid is None else pid))
        watchdog_s = int(text) / 1e6 if text.isascii() and text.isdigit() and int(text) and mine else None
        return cls(environ.get("NOTIFY_SOCKET") or None, watchdog_s)

    def ready(self) -> None:
        self._send("READY=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """Set the line that `systemctl status` shows."""
        self._send("STATUS=" + " ".join(text.split()))

    def starting_still(self, seconds: float) -> None:
        """Ask for this much more time until the agent is ready: its start takes long, and makes progress."""
        self._send(f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}")

    def ping(self) -> None:
        self._send("WATCHDOG=1")

    async def feed(self, progressing: Callable[[], bool]) -> None:
        """Give a sign of life twice in each interval, as long as `progressing` returns true, until cancelled.
        Returns at once if no watchdog is set."""
        if self.watchdog_s is None:
            return
        period_s = Watchdog(self.watchdog_s).period_s
        while True:
            if progressing():
                self.ping()
            else:
                log.error("no progress: the watchdog is not fed, and systemd will restart this agent")
            await asyncio.sleep(period_s)

    def _send(self, text: str) -> None:
        if self._address is None:
            return
        # "@name" stands for an abstract socket, whose real name begins with a zero byte.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as datagrams:
                datagrams.setblocking(False)
                datagrams.sendto(text.encode(), address)
        except OSError as error:
            log.warning("systemd was not told %s: %s", text.partition("=")[0], error)
