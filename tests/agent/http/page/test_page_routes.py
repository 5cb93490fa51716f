"""The page's files and streams over real HTTP: tags, policies, resuming, ends, and bad input."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from edgepart.agent.chronicle.event_log import MOST_EVENTS
from edgepart.agent.chronicle.log_lines import LogLine
from edgepart.agent.http.page import live_feed, routes, streams
from edgepart.agent.http.page.static_files import FOLDER, static_files
from tests.agent.http.conftest import ADMIN, LIMITS, Served, serving
from tests.agent.http.test_http import ADD
from tests.agent.http.test_rate_limit import FOREIGN

LINE = LogLine(1.0, "INFO", "agent", "hello")
STREAMS = ("/api/live", "/api/events/stream", "/api/logs/stream")


@contextmanager
def reading(served: Served, path: str, **headers: str) -> Iterator[Iterator[tuple[str, str, Any]]]:
    """The events of a stream as (type, id, document)."""
    connection = http.client.HTTPConnection(*served.address, timeout=20)
    connection.request("GET", path, headers={name.replace("_", "-"): text for name, text in headers.items()})
    response = connection.getresponse()
    assert response.status == 200 and response.headers["Content-Type"].startswith("text/event-stream")

    def events() -> Iterator[tuple[str, str, Any]]:
        kind = identity = ""
        quiet = 0
        for line in iter(response.readline, b""):
            quiet += line.startswith(b": waiting")
            assert quiet < 3, "nothing more comes"
            name, _, text = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                kind = text
            elif name == "id":
                identity = text
            elif name == "data":
                yield kind, identity, json.loads(text)
                kind = identity = ""

    try:
        yield events()
    finally:
        connection.close()


def tell(served: Served, *texts: str) -> None:
    for text in texts:
        served.node.event_log.tell(1.0, "leader", "pi-a", text)


def test_files_have_tags_and_a_strict_policy(served: Served) -> None:
    for path, name in (("/", "index.html"), *((f"/page/{name}", name) for name in static_files())):
        reply = served.ask("GET", path, headers={"Host": "pi-a.local"})
        assert reply.status == 200 and reply.body == (FOLDER / name).read_bytes()
        policy = reply.headers["Content-Security-Policy"]
        assert (
            "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        )
        again = served.ask("GET", path, headers={"If-None-Match": reply.headers["ETag"]})
        assert again.status == 304 and not again.body and again.headers["ETag"] == reply.headers["ETag"]
    assert served.ask("GET", "/", headers={"If-None-Match": '"another"'}).status == 200


@pytest.mark.parametrize("name", ["nothing.js", "..%2Froutes.py", "%2Fetc%2Fpasswd", "index.html%00", "."])
def test_there_are_no_other_files(served: Served, name: str) -> None:
    assert served.ask("GET", f"/page/{name}").status == 404


def test_no_file_names_another_host_or_sets_markup() -> None:
    for name, file in static_files().items():
        text = file.body.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text and "https://" not in text and "//cdn" not in text, name
        assert not any(word in text for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval(")), (
            name
        )


@pytest.mark.parametrize("path", STREAMS)
def test_streams_are_for_whom_reads_are(served: Served, path: str) -> None:
    assert served.ask("GET", path, headers=FOREIGN).status == 401
    tell(served, "one")
    served.node.log_lines.add(LINE)
    with reading(served, path, Host="pi-a.local", **ADMIN) as events:
        assert next(events)


def test_the_live_feed_sends_what_there_is_and_then_what_changes(served: Served) -> None:
    tell(served, "one")
    with reading(served, "/api/live") as events:
        first = {}
        while "event" not in first:
            kind, _, document = next(events)
            first[kind] = document
        assert set(first) == {"fault", "cluster", "deployments", "traffic", "event"}
        assert first["fault"] is None and first["event"]["text"] == "one"
        assert first["cluster"]["members"][0]["name"] == "pi-a"
        assert first["cluster"]["lost"][0]["name"] == "pi-away"
        assert {card["name"] for card in first["deployments"]["cards"]} >= {"add"}
        assert first["traffic"]["models"] == {}
        assert served.ask("POST", "/v2/models/add/infer", ADD).status == 200
        assert served.ask("POST", "/v2/models/add/infer", {"inputs": []}).status == 400
        while (found := next(events))[0] != "traffic" or not found[2]["models"]["add"]["errors"]:
            continue
        add = found[2]["models"]["add"]
        assert add["errors"] == {"RequestError": 1} and add["lately"]["p50_s"] > 0
        assert len(add["per_s"]) == len(add["p99_s"]) == 60 and add["last"]["seconds"] > 0
        tell(served, "two")
        while (found := next(events))[0] != "event":
            continue
        assert found[2]["text"] == "two"


def test_nothing_is_composed_while_nobody_reads(served: Served) -> None:
    feed = served.server._page._feed
    assert not feed.is_running
    with reading(served, "/api/live") as events:
        next(events)
        assert feed.is_running
    served.ask("GET", "/api/status")
    wait_until(served, lambda: not feed.is_running)


def wait_until(served: Served, condition: Any) -> None:
    async def wait() -> None:
        async with asyncio.timeout(20):
            while not condition():
                tell(served, "something")  # Writing is how a server finds out that a reader is gone.
                await asyncio.sleep(0.02)

    served.on_loop(wait)


def test_a_reader_goes_on_where_it_was(served: Served) -> None:
    tell(served, "one", "two", "three")
    with reading(served, "/api/events/stream") as events:
        found = [next(events) for _ in range(3)]
    assert [document["text"] for _, _, document in found] == ["one", "two", "three"]
    assert all(kind == "event" and identity == document["id"] for kind, identity, document in found)
    second = found[1][1]
    for headers, path in (({"Last_Event_ID": second}, ""), ({}, f"?after={second}")):
        with reading(served, f"/api/events/stream{path}", **headers) as events:
            assert next(events)[2]["text"] == "three"
            tell(served, "four")
            assert next(events)[2]["text"] == "four"
        assert served.ask("GET", f"/api/events?after={second}").json()["events"][0]["text"] == "three"


@pytest.mark.parametrize("place", ["", "another.2", ".", "x" * 5000, "one.two", "-1", "\u00b2"])
def test_whoever_names_no_place_gets_all(served: Served, place: str) -> None:
    tell(served, "one", "two")
    with reading(served, "/api/events/stream", Last_Event_ID=place) as events:
        assert next(events)[2]["text"] == "one"


def test_what_is_forgotten_is_said(served: Served) -> None:
    tell(served, *map(str, range(MOST_EVENTS + 3)))
    with reading(served, "/api/events/stream") as events:
        assert next(events)[::2] == ("gap", {"forgotten": 3})
        assert next(events)[2]["text"] == "3"
    assert served.ask("GET", "/api/events").json()["forgotten"] == 3
    assert [one["text"] for one in served.ask("GET", "/api/events?most=2").json()["events"]] == ["501", "502"]
    assert served.ask("GET", "/api/events?most=0").json()["events"] == []


@pytest.mark.parametrize("most", ["-1", "many", "1e3", "9" * 30, "\u0663"])
def test_bad_numbers_are_refused(served: Served, most: str) -> None:
    assert served.ask("GET", f"/api/logs?most={quote(most)}").status == 400


def test_lines_of_the_log(served: Served) -> None:
    served.node.log_lines.add(LINE)
    (line,) = served.ask("GET", "/api/logs").json()["lines"]
    assert line["text"] == "hello" and line["level"] == "INFO" and line["id"].endswith(".1")
    with reading(served, "/api/logs/stream") as events:
        assert next(events)[2] == line


def test_readers_have_a_bound(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_feed, "MOST_READERS", 1)
    monkeypatch.setattr(routes, "MOST_FOLLOWERS", 1)
    tell(served, "one")
    with reading(served, "/api/live") as live, reading(served, "/api/events/stream") as followed:
        next(live), next(followed)
        assert served.ask("GET", "/api/live").status == 503
        assert served.ask("GET", "/api/logs/stream").status == 503


def test_a_quiet_stream_has_comments(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.01)
    connection = http.client.HTTPConnection(*served.address, timeout=20)
    connection.request("GET", "/api/logs/stream")
    response = connection.getresponse()
    assert [response.readline() for _ in range(3)] == [b": following\n", b"\n", b": waiting\n"]
    connection.close()


def test_a_server_that_stops_ends_its_streams(tmp_path: Path) -> None:
    with serving(tmp_path, LIMITS) as served:
        tell(served, "one")
        with reading(served, "/api/live") as live, reading(served, "/api/events/stream") as followed:
            next(live), next(followed)
            served.on_loop(served.server.stop)
            assert list(followed) == []
            assert "cluster" in {kind for kind, _, _ in live}  # It ends, too.
            assert not served.server._page._feed.is_running


def test_how_far_a_deployment_is_is_told(served: Served) -> None:
    tries = served.server._management._tries
    tries.reached("net", "receiving the model", 5, 10)
    with reading(served, "/api/live") as events:
        while (found := next(events))[0] != "deployments":
            continue
        assert found[2]["under_way"] == {"net": {"stage": "receiving the model", "done": 5, "total": 10}}
        served.loop.call_soon_threadsafe(tries.ended, "net", "it is no model")
        while (found := next(events))[0] != "deployments":
            continue
        assert found[2]["under_way"] == {} and found[2]["failed"] == {"net": "it is no model"}


def test_a_document_that_cannot_be_made_is_said_and_ends_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(served.node, "devices", fail)
    with reading(served, "/api/live") as events:
        kind, _, document = next(events)
        assert kind == "fault" and "RuntimeError" in document
        monkeypatch.undo()
        while (found := next(events))[0] != "fault":
            continue
        assert found[2] is None


def test_a_plan_is_drawn_or_it_is_said_why_not(served: Served) -> None:
    assert served.ask("GET", "/api/models/add/drawing").json()["timeline"].startswith("<svg")
    served.node.unready["add"] = "planning"
    assert served.ask("GET", "/api/models/add/drawing").status == 503
    assert served.ask("GET", "/api/models/none/drawing").status == 404
