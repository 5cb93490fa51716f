"""The page in a real Chromium: what people see and do there. Skipped where there is no Chromium."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from edgepart.agent.api.model_card import CandidateCard
from edgepart.agent.gateway.gateway import Gateway
from edgepart.agent.http.page.api_paths import API_PATHS
from edgepart.agent.http.server import HttpServer
from edgepart.agent.text.generation import ChatPrompt
from tests.agent.http.fake_text import PARTS, TEXT, FakeText
from tests.chromium import PHONE, Tab, chromium, find_chromium
from tests.page_scenes import NAME, SCENES, SceneNode

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="there is no chromium")
CREDENTIAL = "open-sesame"
PRESS = "[...document.querySelectorAll('button')].find(one => one.textContent === '{}').click()"
DROP = """
(async () => {
  const canvas = new OffscreenCanvas(40, 20), context = canvas.getContext("2d");
  context.fillStyle = "rgb(10, 220, 40)";
  context.fillRect(0, 0, 40, 20);
  const carried = new DataTransfer();
  carried.items.add(new File([await canvas.convertToBlob()], "meadow.png", { type: "image/png" }));
  document.querySelector(".drop").dispatchEvent(new DragEvent("drop", { dataTransfer: carried, cancelable: true }));
})()
"""


@dataclass
class Opened:
    """The page of an agent in a browser."""

    tab: Tab
    node: SceneNode
    server: HttpServer
    url: str

    async def shows(self, selector: str, text: str) -> None:
        """Wait until an element's text has this in it."""
        await self.tab.until(
            f"[...document.querySelectorAll({selector!r})].some(one => one.textContent.includes({text!r}))"
        )


@asynccontextmanager
async def opened(scene: str, folder: Path, text: FakeText | None = None) -> AsyncIterator[Opened]:
    node = SceneNode()
    gateway = Gateway(node, CREDENTIAL)
    server = HttpServer(gateway, spool=folder, text=text)
    url = await server.start()
    try:
        SCENES[scene](node, server)
        async with chromium() as tab:
            await tab.open(f"{url}/")
            yield Opened(tab, node, server, url)
    finally:
        await server.stop()


def played(
    scene: str, folder: Path, story: Callable[[Opened], Awaitable[None]], text: FakeText | None = None
) -> None:
    async def play() -> None:
        async with opened(scene, folder, text) as page:
            await story(page)

    asyncio.run(play())


def test_it_shows_what_there_is_and_what_happens_and_asks_nobody_else(tmp_path: Path) -> None:
    async def story(page: Opened) -> None:
        tab = page.tab
        await tab.until("document.querySelectorAll('.drawing svg').length == 2")
        await page.shows("#link", "live")
        await page.shows(".graph .name", "★ desk")
        await page.shows(".graph text", "74.4 GFLOP/s")
        await page.shows(".deployment", "serving")
        await page.shows(".why", "x slower than attic alone. Use auto?")
        await page.shows(".stat", "requests/s")
        assert await tab.run("document.querySelectorAll('.chart-mark').length") == 4
        assert await tab.run("document.querySelectorAll('.drawing title').length") > 50

        trial = CandidateCard("net.candidate", "2", 10, False, "", answers=3, serving_answers=27, fallbacks=1)
        (name,) = page.node.cards
        page.node.cards[name] = replace(
            page.node.cards[name], candidate=replace(trial, last_failure="no room")
        )
        page.node.event_log.tell(1.0, "candidate", name, "version 2 is tried")
        await page.shows(
            ".why", "Candidate: version 2 answers 10 % of the requests; 3 of 30 so far; 1 failed: no room"
        )
        page.node.lost = [{"name": "shelf", "node": "3" * 16, "state": "lost", "at_s": 0.0}]
        page.node.event_log.tell(
            1.0, "lost", "shelf", "shelf <b>is</b> lost", "<script>window.bad = 1</script>"
        )
        await page.shows("#events", "shelf <b>is</b> lost")
        await page.shows(".graph .gone", "shelf")
        assert await tab.run("window.bad") is None
        page.node.cards.clear()
        await page.shows("#deployments", "Nothing is deployed")

        await tab.run(f"location.href = '{page.url}/api'")
        await tab.until(f"document.querySelectorAll('.operation').length == {len(API_PATHS)}")
        await tab.look(PHONE, dark=True)
        assert await tab.run("document.documentElement.scrollWidth") <= PHONE[0]
        await tab.run(f"location.href = '{page.url}/'")
        await page.shows("#link", "live")
        assert await tab.run("document.documentElement.scrollWidth") <= PHONE[0]
        assert tab.faults == []
        assert {url for url, _ in tab.requests if not url.startswith((page.url, "data:"))} == set()

    played("serving", tmp_path, story)


def test_a_deployment_under_way_shows_how_far_the_weights_of_each_device_are(tmp_path: Path) -> None:
    async def story(page: Opened) -> None:
        tab = page.tab
        await tab.until("document.querySelectorAll('.weights').length == 4")
        shown = "[...document.querySelectorAll('.weights')].map(one => one.innerText.replace(/\\s+/g, ' '))"
        assert await tab.run(shown) == [
            "weights on attic 24.5 MB of 24.5 MB",
            "weights on desk 24.5 MB of 24.5 MB",
            "weights on garage 8 MB of 24.5 MB",
            "weights on shelf 16.7 MB of 24.5 MB",
        ]
        assert await tab.run("document.querySelectorAll('.weights i')[2].style.width.slice(0, 5)") == "32.65"
        card = page.node.cards[NAME]
        weights = [replace(one, here_bytes=one.needed_bytes) for one in card.weights]
        page.node.cards[NAME] = replace(card, weights=tuple(weights))
        await page.shows(".weights", "on garage24.5 MB of 24.5 MB")
        # The agent that the client asked tells its stage; devices are not stages of it.
        tries = page.server._management._tries
        tries.reached(NAME, "preparing a plan", 0, 0)
        tries.reached(NAME, "weights on garage", 9e6, 24.5e6)
        await page.shows(".progress p", "preparing a plan")
        await tab.look(PHONE, dark=True)
        assert await tab.run("document.documentElement.scrollWidth") <= PHONE[0]
        page.node.serve()
        tries.ended(NAME)
        await tab.until("document.querySelectorAll('.weights').length == 0")
        assert tab.faults == []

    played("deploying", tmp_path, story)


def test_a_model_is_tried_with_a_picture_and_with_arrays(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "blue.npz", picture=np.stack([np.full((8, 8), n, np.float64) for n in (0, 0.1, 0.9)])[None]
    )
    np.savez_compressed(
        tmp_path / "red.npz", picture=np.stack([np.full((8, 8), n) for n in (0.9, 0, 0)])[None].astype("f2")
    )
    np.save(tmp_path / "wrong.npy", np.zeros((1, 2, 2, 2), np.float32))
    (tmp_path / "broken.npy").write_bytes(b"no array")
    (tmp_path / "names.txt").write_text("red\ngreen\nblue\n")

    async def story(page: Opened) -> None:
        tab = page.tab
        await tab.until("document.querySelectorAll('.drawing svg').length == 2")
        await tab.run(PRESS.format("Try it"))
        await tab.until("!!document.querySelector('.drop')")
        await tab.run(DROP)
        await page.shows(".classes li:first-child", "class 1")
        await page.shows(".classes li:first-child", "100%")
        await page.shows(".answer", "colour")
        await page.shows(".answer", "by the plan of epoch 1.2")
        await tab.until("!!document.querySelector('.drop img')")
        for files, found in (
            (["blue.npz", "names.txt"], "blue"),
            (["red.npz"], "red"),
        ):
            await tab.give_files("input[type=file]", [tmp_path / name for name in files])
            await page.shows(".classes li:first-child", found)
        for name, said in (("wrong.npy", "1, 3, 8, 8"), ("broken.npy", "broken is no .npy file")):
            await tab.give_files("input[type=file]", [tmp_path / name])
            await page.shows(".answer .bad", said)
        await tab.run(PRESS.format("Random input"))
        await page.shows(".classes li:first-child", "%")
        await tab.run(PRESS.format("Details"))
        await page.shows("dl", f"{page.url}/v2/models/{NAME}/infer")
        # The browser itself notes the request that was refused.
        assert [fault for fault in tab.faults if "status of 400" not in fault] == []

    played("serving", tmp_path, story)


def test_a_reader_from_elsewhere_gives_the_credential_and_the_page_goes_on_after_a_restart(
    tmp_path: Path,
) -> None:
    async def story(page: Opened) -> None:
        tab = page.tab
        await page.shows("#link", "live")
        await tab.call("Network.setExtraHTTPHeaders", headers={"X-Forwarded-For": "192.0.2.7"})
        await tab.call("Page.reload")
        await page.shows("#fault", "shows nothing without the credential")
        await tab.until("!document.querySelector('#key').hidden")
        await tab.run(f"document.querySelector('#secret').value = {CREDENTIAL!r}")
        await tab.run(PRESS.format("Use it"))
        await page.shows("#link", "live")
        await page.shows(".graph .name", "attic")
        assert await tab.run(
            "document.querySelector('#key').hidden && document.querySelector('#fault').hidden"
        )

        port = page.server.port
        await page.server.stop()
        await page.shows("#fault", "What you see is as it was")
        again = HttpServer(Gateway(page.node, CREDENTIAL), port=port, spool=tmp_path)
        await again.start()
        try:
            await page.shows("#link", "live")
            page.node.event_log.tell(1.0, "joined", "attic", "this is new")
            await page.shows("#events", "this is new")
            texts = await tab.run("[...document.querySelectorAll('#events li')].map(one => one.textContent)")
            assert len(texts) == len(set(texts))
            last = tab.requests[-1][1]
            assert last["Last-Event-ID"].startswith(f"{page.node.event_log.life}.")
        finally:
            await again.stop()

    played("empty", tmp_path, story)


def test_a_language_model_is_talked_to_and_a_request_is_recorded(tmp_path: Path) -> None:
    async def story(page: Opened) -> None:
        tab = page.tab
        page.node.serve("chat")
        await page.shows("h3", "chat")
        await tab.run("document.querySelector('[data-name=chat] .tabs button:nth-child(3)').click()")
        await tab.until("!!document.querySelector('textarea')")
        await tab.run("document.querySelector('textarea').value = 'Tell me a story'")
        await tab.run(PRESS.format("Send"))
        await page.shows(".said", "Tell me a story")
        await page.shows(".said", TEXT)
        await page.shows(".talk", "12.5 tokens/s on pi-a, pi-b")
        assert tab.faults == []

        page.node.trace_document = TRACE
        await tab.run("document.querySelector('[data-name=chat] .tabs button:nth-child(2)').click()")
        await page.shows("[data-name=chat]", "needs the admin credential")
        await tab.run(f"sessionStorage.setItem('credential', {CREDENTIAL!r})")
        await tab.until("!document.querySelector('[data-name=chat] .row button').disabled")
        await tab.run("document.querySelector('[data-name=chat] .row button').click()")
        await page.shows("[data-name=chat]", "What every device did in 20 ms")
        await page.shows("[data-name=chat] .drawing title", "ann to bob: 6 B")

    played("empty", tmp_path, story, FakeText())


def test_an_answer_is_stopped_forgotten_or_lost_and_the_next_one_is_about_that(tmp_path: Path) -> None:
    text = FakeText()
    said = "[...document.querySelectorAll('[data-name=chat] .said')].map(one => one.textContent)"

    async def say(tab: Tab, what: str) -> None:
        await tab.run(f"document.querySelector('textarea').value = {what!r}")
        await tab.run(PRESS.format("Send"))

    async def story(page: Opened) -> None:
        tab = page.tab
        page.node.serve("chat")
        await page.shows("h3", "chat")
        await tab.run("document.querySelector('[data-name=chat] .tabs button:nth-child(3)').click()")
        await tab.until("!!document.querySelector('textarea')")
        text.whole_until, text.gate = 1, asyncio.Event()
        await say(tab, "Sing")
        await tab.until(f"{said}.at(-1) === {PARTS[0]!r}")
        await tab.run(PRESS.format("Stop"))
        await page.shows(".talk .small", "stopped")
        await say(tab, "Go on")
        await tab.until(f"{said}.length === 4 && {said}.at(-1) === {PARTS[0]!r}")
        assert roles(text) == ["user", "assistant", "user"], "what had come stays a part of the chat"
        await tab.run(PRESS.format("Begin anew"))
        await tab.until(
            "[...document.querySelectorAll('[data-name=chat] button')].at(-2).textContent === 'Send'"
        )
        assert await tab.run(said) == []
        await say(tab, "Again")
        await tab.until(f"{said}.at(-1) === {PARTS[0]!r}")
        assert roles(text) == ["user"], "what was stopped by beginning anew is no part of it"

        other = {
            "name": "pi-z",
            "node": "f" * 16,
            "state": "alive",
            "http": "http://127.0.0.1:9",
            "address": "h:1",
        }
        bad = other | {"name": "pi-x", "node": "e" * 16, "http": "javascript:window.bad=1"}
        introduce_members(page.node, other, bad)
        await page.shows(".graph .name", "pi-z")
        await page.server.stop()
        await page.shows(".talk .small", "This agent was lost in the middle of its answer")
        await page.shows("#fault a", "pi-z")
        assert await tab.run("[...document.querySelectorAll('#fault a')].map(one => one.href)") == [
            "http://127.0.0.1:9/"
        ]
        await say(tab, "Still there?")
        await page.shows(".talk .small", "This agent was lost before its answer")
        assert await tab.run("document.querySelector('textarea').value") == "Still there?"

    played("empty", tmp_path, story, text)


def roles(text: FakeText) -> list[str]:
    """Who said what is in the prompt of the last request."""
    prompt = text.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return [str(message["role"]) for message in prompt.messages]


def introduce_members(node: SceneNode, *members: Mapping[str, object]) -> None:
    known = node.status()
    more = [known["members"][0] | one for one in members]
    node.status = lambda: known | {"members": [*known["members"], *more]}  # type: ignore[method-assign]


def row(lane: str, kind: str, began_s: float, took_s: float, transfer: int = -1) -> list[object]:
    return [lane, kind, began_s, took_s, "chat", 1, 1, "r1", "conv", "", transfer, 0, 0.0]


TRACE = {
    "model": "chat",
    "gateway": "ann",
    "began_s": 10.0,
    "ended_s": 13.0,
    "missing": {},
    "devices": [
        {
            "name": "ann",
            "node": "a" * 16,
            "spans": [
                row("requests", "request", 11.0, 0.02),
                row("compute", "compute", 11.0, 0.008),
                row("compute", "send", 11.008, 0.001, 0),
            ],
        },
        {
            "name": "bob",
            "node": "b" * 16,
            "spans": [
                row("compute", "wait", 11.0, 0.01, 0),
                row("from " + "a" * 16, "receive", 11.009, 0.001, 0),
                row("compute", "compute", 11.01, 0.009),
            ],
        },
    ],
    "plans": [
        {
            "deployment": "chat",
            "nodes": {"x": "a" * 16, "y": "b" * 16},
            "messages": [["x", "y", 6], ["y", "", 3]],
        }
    ],
}
