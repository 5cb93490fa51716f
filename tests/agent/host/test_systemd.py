"""The systemd notifier against a fake notify socket, and the watchdog's rule."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgepart.agent.host.systemd import Notifier, Watchdog


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """NOTIFY_SOCKET's text, and the socket behind it."""
    name = f"@edgepart-{tmp_path.name}" if request.param == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + name[1:] if name.startswith("@") else name)
        listener.settimeout(5)
        yield name, listener


def test_says_each_thing_in_a_datagram(systemd: tuple[str, socket.socket]) -> None:
    name, listener = systemd
    notifier = Notifier.from_environment({"NOTIFY_SOCKET": name})
    notifier.status("serving\nREADY=0")
    notifier.ready()
    notifier.ping()
    notifier.stopping()
    heard = [listener.recv(100) for _ in range(4)]
    assert heard == [b"STATUS=serving READY=0", b"READY=1", b"WATCHDOG=1", b"STOPPING=1"]


def test_without_systemd_nothing_is_sent_and_nothing_fails(caplog: pytest.LogCaptureFixture) -> None:
    Notifier.from_environment({}).ready()
    assert not caplog.records


def test_a_socket_that_is_gone_is_logged_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Notifier(str(tmp_path / "gone")).ready()
    assert "READY" in caplog.text


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "10000000"}, 10.0),
        ({"WATCHDOG_USEC": "10000000", "WATCHDOG_PID": "7"}, 10.0),
        ({"WATCHDOG_USEC": "10000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdogs_interval(environ: dict[str, str], expected: float | None) -> None:
    assert Notifier.from_environment(environ, pid=7).watchdog_s == expected


@pytest.mark.parametrize(
    ("ticked_at", "computes", "expected"),
    [
        (99.0, True, True),
        (99.0, False, False),  # a compute thread is gone
        (90.0, True, False),  # the event loop hangs
        (90.0, False, False),
    ],
)
def test_pings_only_while_both_get_on(ticked_at: float, computes: bool, expected: bool) -> None:
    assert Watchdog(interval_s=10.0).should_ping(100.0, ticked_at, computes) is expected


def test_feeds_only_while_there_is_progress(systemd: tuple[str, socket.socket]) -> None:
    name, listener = systemd
    signs = iter([True, False, True])

    def progressing() -> bool:
        try:
            return next(signs)
        except StopIteration:
            raise asyncio.CancelledError from None

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(Notifier(name, watchdog_s=0.001).feed(progressing))
    assert [listener.recv(100) for _ in range(2)] == [b"WATCHDOG=1"] * 2
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.recv(100)
