"""`edgepart events`, `logs` and `top`: what they print, that they go on after a loss, and what they say of bad answers."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import subprocess
import termios
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner, Result

from edgepart.agent.chronicle.log_lines import LogLine
from edgepart.cli.main import app
from edgepart.cli.watching import follow as following
from edgepart.cli.watching.follow import FollowedEvent, follow
from edgepart.cli.watching.top_screen import LiveView, screen, spark
from edgepart.client.event_stream import split_events
from edgepart.client.target import AgentTarget
from edgepart.planner.errors import FrameError, NotAuthorised, Unavailable
from tests.agent.http.conftest import LIMITS, Served, serving
from tests.agent.http.test_http import ADD
from tests.from_terminal import from_terminal


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path, LIMITS) as found:
        yield found


def run(served: Served, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--agent", served.url])


def test_events_are_printed_with_their_reasons(served: Served) -> None:
    assert "Nothing has happened" in run(served, "events").output
    served.node.event_log.tell(1.0, "lost", "pi-b", "pi-b [red]is lost[/red]", "it was silent")
    served.node.event_log.tell(2.0, "joined", "pi-c", "pi-c is a member")
    lines = run(served, "events").output.splitlines()
    assert lines[0].endswith("pi-b [red]is lost[/red]  (it was silent)") and lines[1].endswith(
        "pi-c is a member"
    )
    assert len(run(served, "events", "-n", "1").output.splitlines()) == 1
    document = json.loads(run(served, "events", "--json").output)
    assert [event["kind"] for event in document["events"]] == ["lost", "joined"]


def test_lines_of_the_log_are_printed(served: Served) -> None:
    served.node.log_lines.add(LogLine(0.0, "WARNING", "edgepart.agent", "the disk is full"))
    assert run(served, "logs").output.strip().endswith("WARNING edgepart.agent: the disk is full")
    (line,) = json.loads(run(served, "logs", "--json").output)["lines"]
    assert line["text"] == "the disk is full"


@pytest.mark.parametrize(("command", "kind"), [("events", "joined"), ("logs", "INFO")])
def test_following_goes_on_from_the_past(
    served: Served, monkeypatch: pytest.MonkeyPatch, command: str, kind: str
) -> None:
    """A follower ends here when the server does."""
    for n in range(3):
        served.node.event_log.tell(1.0, "joined", "a", f"event {n}")
        served.node.log_lines.add(LogLine(1.0, "INFO", "agent", f"line {n}"))

    async def no_more(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(asyncio, "sleep", no_more)
    places: list[str] = []
    real = following.follow

    def noted(target: Any, path: str, lost: Any, place: str) -> Any:
        places.append(place)
        served.loop.call_soon_threadsafe(served.server._page._ended.set)
        return real(target, path, lost, place)

    monkeypatch.setattr(following, "follow", noted)
    output = CliRunner().invoke(app, [command, "--follow", "--json", "-n", "2", "--agent", served.url]).output
    documents = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert [document["text"][-1] for document in documents] == ["1", "2"]
    assert places == [documents[-1]["id"]] and kind in documents[0].values()


def test_what_is_followed_is_shown_and_what_was_forgotten_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def told(*_: Any) -> AsyncGenerator[FollowedEvent, None]:
        yield FollowedEvent("event", {"text": "one"}, "1")
        yield FollowedEvent("hello", {"text": "of no concern"})
        yield FollowedEvent("gap", {"forgotten": 7})
        yield FollowedEvent("event", {"text": "two"}, "9")

    monkeypatch.setattr(following, "follow", told)
    shown: list[Any] = []
    target = AgentTarget("http://127.0.0.1:1", tmp_path)
    asyncio.run(following.show_followed(target, "/api/events/stream", "", "event", shown.append))
    assert [document["text"] for document in shown] == ["one", "two"]
    assert "7 events in between are forgotten" in capsys.readouterr().err


def test_top_prints_what_there_is(served: Served) -> None:
    assert served.ask("POST", "/v2/models/add/infer", ADD).status == 200
    served.node.event_log.tell(1.0, "joined", "pi-c", "pi-c is a member")
    text = run(served, "top", "--once").output
    for word in (
        "leader pi-a",
        "1 device ",
        "pi-away",
        "lost 1",
        "add",
        "serving",
        "pi-c is a member",
        "predicted",
    ):
        assert word in text, word
    document = json.loads(run(served, "top", "--json").output)
    assert set(document) == {"cluster", "deployments", "traffic", "events"}
    assert document["traffic"]["models"]["add"]["lately"]["p50_s"] > 0


def shown(view: LiveView, width: int = 160) -> str:
    console = Console(width=width, no_color=True)
    with console.capture() as captured:
        console.print(screen(view, 100.0, width))
    return captured.get()


def test_the_screen_of_top_has_devices_links_progress_and_troubles() -> None:
    view = LiveView()
    assert shown(view).strip() == "asking…"
    device = {
        "kind": "pi5",
        "flops_per_s": 60.5e9,
        "threads": 4,
        "memory_bytes": 6e9,
        "memory_bytes_per_s": 9e9,
    }
    member = {"name": "attic", "state": "alive", "leader": True, "device": device}
    link = {"a": "attic", "b": "desk", "bytes_per_s": 1e8, "latency_s": 1e-4, "sent_bytes_per_s": 1.2e7}
    view.take(
        "cluster",
        {
            "cluster": "f" * 64,
            "leader": None,
            "name": "attic",
            "started_s": 40.0,
            "members": [member, {**member, "name": "desk", "leader": False, "device": None}],
            "lost": [{"name": "shelf", "state": "lost", "since_s": 88.0}],
            "links": [link, {**link, "b": "shelf", "sent_bytes_per_s": 0.0}],
            "notices": [{"text": "the disk is full", "trouble": True}],
        },
    )
    view.take("deployments", {"cards": [], "under_way": {"net": {"stage": "receiving the model", "done": 5, "total": 10}},
                              "failed": {"faces": "no model"}})  # fmt: skip
    view.take("fault", "it failed")
    view.take("a kind of later versions", {})
    text = shown(view)
    for word in ("none yet", "attic *", "60.5 GFLOP/s", "not measured yet", "lost 12 s ago", "attic - desk", "12 %",
                 "net: receiving the model 50 %", "faces: no model", "! the disk is full", "it failed",
                 "up 60 s"):  # fmt: skip
        assert word in text, word
    assert "attic - shelf" not in text
    view.take("fault", None)
    assert "it failed" not in shown(view)
    view.take("event", {"id": "a.1", "at_s": 0.0, "kind": "plan", "text": "net is served", "why": "w" * 99})
    for width in (30, 40, 80):
        lines = shown(view, width).splitlines()
        assert max(map(len, lines)) <= width
        for whole in ("attic *", "desk", "alive", "lost 12 s ago", "being deployed"):
            assert any(whole in line for line in lines), (whole, width)
        (event,) = [line for line in lines if "net is s" in line]
        assert event.endswith("…") and any("threads" in line for line in lines) == (width == 80)


def test_what_another_agent_tells_replaces_the_events_of_the_one_before() -> None:
    view = LiveView()
    for identity in ("a.1", "a.2", "b.1", "b.2"):
        view.take("event", {"id": identity})
    assert [event["id"] for event in view.events] == ["b.1", "b.2"]


@pytest.mark.parametrize("key", ["q", "\x03"])
def test_top_ends_with_q_or_ctrl_c_and_leaves_the_terminal_as_it_was(served: Served, key: str) -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    command = from_terminal("top", "--agent", served.url, controlling=True)
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    try:
        seen = read_until(ours, b"add")
        os.write(ours, b"x" + key.encode())
        assert process.wait(60) == (0 if key == "q" else 130)
        seen += read_until(ours, b"\x1b[?1049l")  # the screen of before is back
        assert b"\x1b[?25h" in seen, "the cursor is shown again"
        assert termios.tcgetattr(theirs) == before
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def read_until(file: int, mark: bytes) -> bytes:
    """What comes from a terminal until the mark."""
    seen = b""
    while mark not in seen:
        assert select.select([file], [], [], 60)[0], seen
        seen += os.read(file, 1 << 16)
    return seen


@given(st.lists(st.none() | st.floats(0.0, 1e9), max_size=30))
def test_small_charts_have_a_letter_for_each_figure(values: list[float | None]) -> None:
    assert len(spark(values)) == len(values)


async def _lines(text: str) -> AsyncIterator[bytes]:
    for line in text.splitlines(keepends=True):
        yield line.encode()


async def _parsed(text: str) -> list[tuple[str, Any, str]]:
    return [(event.kind, event.document(), event.identity) async for event in split_events(_lines(text))]


def test_events_are_parsed_as_the_standard_says() -> None:
    text = ': hello\n\nid: a.1\nevent: line\ndata: {"n":\ndata:1}\n\ndata: 2\n\nevent: empty\n\ndata: 3\r\n\r\ndata: cut'
    assert asyncio.run(_parsed(text)) == [
        ("line", {"n": 1}, "a.1"),
        ("message", 2, ""),
        ("message", 3, ""),
    ]
    with pytest.raises(FrameError, match="no JSON"):
        asyncio.run(_parsed("data: {\n\n"))


def test_a_follower_connects_again_where_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(following, "AGAIN_S", 0.01)
    seen: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        number = len(seen) + 1
        seen.append(request.headers.get("Last-Event-ID"))
        if number == 2:
            return web.json_response({"error": "busy", "kind": "Unavailable"}, status=503)
        return web.Response(text=f"id: life.{number}\nevent: event\ndata: {number}\n\n")

    async def play() -> list[Any]:
        application = web.Application()
        application.router.add_get("/stream", answer)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        told: list[str] = []
        events = follow(AgentTarget(f"http://127.0.0.1:{port}", tmp_path), "/stream", told.append)
        try:
            return [(await anext(events)).document for _ in range(2)] + [len(told)]
        finally:
            await events.aclose()
            await runner.cleanup()

    assert asyncio.run(play()) == [1, 3, 2]
    assert seen == [None, "life.1", "life.1"]


def test_a_follower_goes_on_with_another_member_and_tells_it_no_place(tmp_path: Path) -> None:
    asked: list[tuple[str, str | None]] = []

    async def play() -> list[Any]:
        runners, urls = [], []
        for name in ("a", "b"):

            async def answer(request: web.BaseRequest, name: str = name) -> web.Response:
                asked.append((name, request.headers.get("Last-Event-ID")))
                if name == "a" and len(asked) > 1:
                    request.transport.abort()  # type: ignore[union-attr]
                return web.Response(text=f'id: {name}.1\nevent: event\ndata: "{name}"\n\n')

            runner = web.ServerRunner(web.Server(answer))
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            runners.append(runner)
            urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        told: list[str] = []
        # `b` is known only from what `a` told.
        events = follow(AgentTarget(urls[0], tmp_path), "/", told.append, more=lambda: urls)
        try:
            documents = [(await anext(events)).document for _ in range(3)]
        finally:
            await events.aclose()
            for runner in runners:
                await runner.cleanup()
        assert told[0].endswith(f"trying {urls[1]}")
        return documents

    assert asyncio.run(play()) == ["a", "b", "b"]
    assert asked[:2] == [("a", None), ("b", None)] and asked[-1] == ("b", "b.1")


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (401, '{"error": "no", "kind": "NotAuthorised"}', NotAuthorised),
        (404, "nothing here", Unavailable),
        (503, '{"error": "full", "kind": "str"}', Unavailable),
    ],
)
def test_what_an_agent_refuses_at_first_ends_it(
    tmp_path: Path, status: int, body: str, error: type[Exception]
) -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response(status=status, text=body)

    async def play() -> None:
        runner = web.ServerRunner(web.Server(answer))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        events = follow(AgentTarget(f"http://127.0.0.1:{runner.addresses[0][1]}", tmp_path), "/", print)
        try:
            await anext(events)
        finally:
            await runner.cleanup()

    with pytest.raises(error):
        asyncio.run(play())


def test_no_agent_at_all_is_said(tmp_path: Path) -> None:
    async def play() -> None:
        await anext(follow(AgentTarget("http://127.0.0.1:9", tmp_path), "/", print))

    with pytest.raises(Unavailable, match="Is an agent running there"):
        asyncio.run(play())
