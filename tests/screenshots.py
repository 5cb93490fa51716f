"""Takes pictures of the page of an agent, in every scene of page_scenes.py.

python -m tests.screenshots                  the pictures in docs/ that documents show
python -m tests.screenshots --all FOLDER     every scene, on a desktop and a phone, in light and dark colours
"""

from __future__ import annotations

import argparse
import asyncio
import io
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from PIL import Image

from edgepart.agent.gateway.gateway import Gateway
from edgepart.agent.http.server import HttpServer
from tests.chromium import DESKTOP, PHONE, Tab, chromium, find_chromium
from tests.page_scenes import SCENES, SceneNode

DOCS = Path(__file__).parent.parent / "docs"
SHOWN = {"page.png": ("dead", False), "page-dark.png": ("dead", True)}
"""The pictures in docs/: the scene, and whether it is dark."""
READY = {
    "empty": "document.querySelectorAll('.graph rect').length == 4",
    "deploying": "document.querySelectorAll('.progress .bar').length == 6",
    "serving": "document.querySelectorAll('.drawing svg').length == 2",
    "dead": "document.querySelectorAll('.drawing svg').length == 2 && !!document.querySelector('.graph .gone')",
    "error": "document.querySelectorAll('.deployment .bad').length > 1",
}
"""Scripts that are true once a scene is on the page."""


@asynccontextmanager
async def playing(
    name: str, folder: Path, credential: str = "credential"
) -> AsyncIterator[tuple[str, SceneNode]]:
    """The URL of an agent in this scene, and its node."""
    node = SceneNode("resnet50", "auto")
    gateway = Gateway(node, credential)
    server = HttpServer(gateway, spool=folder)
    url = await server.start()
    try:
        SCENES[name](node, server)
        yield url, node
    finally:
        await server.stop()


async def take(tab: Tab, name: str, size: tuple[int, int], *, dark: bool, folder: Path) -> bytes:
    """A picture of a scene."""
    async with playing(name, folder) as (url, _):
        await tab.open(f"{url}/", size, dark=dark)
        await tab.until(READY[name])
        await tab.run("new Promise(done => setTimeout(done, 300))")
        return await tab.picture()


def shrink(picture: bytes) -> bytes:
    """The picture in a palette of its own, which takes half the bytes and keeps colours that are rare."""
    made = io.BytesIO()
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(
        256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
    ).save(made, "PNG", optimize=True)
    return made.getvalue()


async def take_all(folder: Path | None) -> None:
    with tempfile.TemporaryDirectory() as spool:
        async with chromium() as tab:
            if folder is None:
                for file, (scene, dark) in SHOWN.items():
                    picture = await take(tab, scene, DESKTOP, dark=dark, folder=Path(spool))
                    (DOCS / file).write_bytes(shrink(picture))
                return
            for scene in SCENES:
                for size, screen in ((DESKTOP, "desktop"), (PHONE, "phone")):
                    for dark in (False, True):
                        picture = await take(tab, scene, size, dark=dark, folder=Path(spool))
                        (folder / f"{scene}-{screen}-{'dark' if dark else 'light'}.png").write_bytes(picture)
            for fault in tab.faults:
                print(f"the page complained: {fault}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", type=Path, metavar="FOLDER")
    folder = parser.parse_args().all
    if find_chromium() is None:
        parser.error("there is no chromium here: as root, apt-get install chromium")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(take_all(folder))


if __name__ == "__main__":
    main()
