"""A headless Chromium, driven by the DevTools protocol over aiohttp. Tests of pages use it; where there is none, they are
skipped."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
PATIENCE_S = 60.0
"""The longest wait for anything."""
DESKTOP, PHONE = (1280, 900), (390, 844)


def find_chromium() -> str | None:
    """The path of a Chromium; None if there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Navigated(RuntimeError):
    """The page was left while it was asked."""


@dataclass
class Tab:
    """One page that is open."""

    socket: aiohttp.ClientWebSocketResponse
    faults: list[str] = field(default_factory=list)
    """What the page's console and its scripts complained of, violations of its policy included."""
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """The URL of everything that the page asked for, and the headers that it set."""
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _answers: dict[int, asyncio.Future[dict[str, Any]]] = field(default_factory=dict)

    async def listen(self) -> None:
        async for message in self.socket:
            document = json.loads(message.data)
            if "id" in document:
                self._answers.pop(document["id"]).set_result(document)
                continue
            match document["method"], document["params"]:
                case "Runtime.exceptionThrown", {"exceptionDetails": details}:
                    self.faults.append(details.get("exception", {}).get("description") or details["text"])
                case "Log.entryAdded", {"entry": entry} if entry["level"] == "error":
                    self.faults.append(f"{entry['text']} {entry.get('url', '')}")
                case "Network.requestWillBeSent", {"request": request}:
                    self.requests.append((request["url"], request["headers"]))

    async def call(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self.socket.send_json({"id": number, "method": method, "params": params})
        document = await asyncio.wait_for(answer, PATIENCE_S)
        if "navigated" in str(document.get("error")):
            raise Navigated(method)
        if "error" in document:
            raise RuntimeError(f"{method}: {document['error']}")
        return document["result"]

    async def open(self, url: str, size: tuple[int, int] = DESKTOP, *, dark: bool = False) -> None:
        """Open a page, as wide and high as a screen, in light or dark colours."""
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            await self.call(f"{domain}.enable")
        await self.look(size, dark=dark)
        await self.call("Page.navigate", url=url)

    async def look(self, size: tuple[int, int], *, dark: bool = False) -> None:
        phone = size[0] < 600
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=size[0],
            height=size[1],
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.call("Emulation.setEmulatedMedia", features=scheme)

    async def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is awaited."""
        found = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    async def until(self, script: str) -> Any:
        """Wait until an expression has a value that counts as true, and return it."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with suppress(Navigated):
                    if value := await self.run(script):
                        return value
                await asyncio.sleep(0.05)

    async def give_files(self, selector: str, paths: Sequence[Path]) -> None:
        """Choose files in the page's field for files."""
        root = await self.call("DOM.getDocument")
        node = await self.call("DOM.querySelector", nodeId=root["root"]["nodeId"], selector=selector)
        await self.call("DOM.setFileInputFiles", files=[str(path) for path in paths], nodeId=node["nodeId"])

    async def picture(self, *, whole: bool = True) -> bytes:
        """The page as a PNG; the whole of it, also what lies below the screen."""
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(shot["data"])


@asynccontextmanager
async def chromium() -> AsyncIterator[Tab]:
    """A tab of a browser of its own, without any profile."""
    path = find_chromium()
    assert path is not None
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            path,
            *FLAGS,
            f"--user-data-dir={folder}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            port = await _port(Path(folder), process)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                    pages = await answer.json()
                url = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
                async with session.ws_connect(url, max_msg_size=0) as socket:
                    tab = Tab(socket)
                    listening = asyncio.create_task(tab.listen())
                    try:
                        yield tab
                    finally:
                        listening.cancel()
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _port(folder: Path, process: asyncio.subprocess.Process) -> int:
    """The port that the browser writes down once it listens."""
    file = folder / "DevToolsActivePort"
    async with asyncio.timeout(PATIENCE_S):
        while not file.exists() or not file.read_text().strip():
            if process.returncode is not None:
                raise RuntimeError(f"chromium ended with {process.returncode}")
            await asyncio.sleep(0.05)
    return int(file.read_text().split()[0])
