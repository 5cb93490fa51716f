"""`edgepart demo`: agents on this machine, each as a slow box, read a page together; one of them is killed, and another
joins; then a language model answers. The demo runs the commands that a person would type, and sends requests as any client
does.
"""

from __future__ import annotations

import os
import tempfile
import webbrowser
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from edgepart.cli.demo.story import Story
from edgepart.cli.options import Json
from edgepart.cli.output import print_json
from edgepart.planner.errors import ClusterError

NAMES = ("attic", "desk", "shelf", "cellar", "garage", "porch", "loft", "study")
JOINER = "van"
START_S = 300.0
"""The longest wait for all boxes, in seconds. They measure themselves as slowly as they compute."""

Boxes = Annotated[int, typer.Option("--boxes", min=2, max=len(NAMES), help="How many boxes there are.")]
Slow = Annotated[
    float,
    typer.Option(
        "--slow", min=1.0, max=64.0, help="How many times as long as this machine each box takes to compute."
    ),
]
Image = Annotated[
    Path | None, typer.Option("--image", help="Read this image instead of the page of the demo.")
]
ChatFolder = Annotated[
    Path | None,
    typer.Option("--chat", metavar="FOLDER", help="At the end, chat with the language model in this folder."),
]
Open = Annotated[
    bool,
    typer.Option("--open", help="At the end, open the cluster's page in a browser, until Enter is pressed."),
]


def demo(
    boxes: Boxes = 3,
    slow: Slow = 8.0,
    image: Image = None,
    chat: ChatFolder = None,
    opened: Open = False,
    as_json: Json = False,
) -> None:
    """Run some slow boxes on this machine: they read a page together, lose one and gain one; and chat."""
    from edgepart.cli.demo.chat_scene import find_hindrance, tell_chat
    from edgepart.cli.demo.ocr import PAGE, Reader
    from edgepart.cli.demo.scenes import Scenes
    from edgepart.cli.local import LocalCluster

    story = Story(as_json)
    story.say(f"Reading {(image or PAGE).name} with one ONNX Runtime session, to know the right answer.")
    reader = Reader(image or PAGE, threads=1)
    names = NAMES[:boxes]
    story.chapter(
        f"{boxes} agents, each as a slow box: it takes {slow:g} times as long to compute as one core here"
    )
    story.say(f"All boxes are equal: {names[0]} measures itself, and the others take over what it finds.")
    env = dict.fromkeys((*names, JOINER), slow_box(slow))
    with (
        tempfile.TemporaryDirectory(prefix="edgepart-") as folder,
        LocalCluster(
            names,
            options=agent_options(Path(folder)),
            env=env,
            folder=Path(folder),
            patience_s=START_S,
            at_once=True,
        ) as cluster,
    ):
        for note in cluster.notes:
            story.say(f"! {note}")
        story.members(cluster.status())
        scenes = Scenes(story, cluster, reader, names, JOINER)
        document = scenes.play()
        if (why := find_hindrance(chat)) or chat is None:
            story.say(f"\n{why}")
        else:
            scenes.undeploy()
            document["chat"] = tell_chat(cluster, chat, story.chapter, story.say, story.part)
        if opened:
            show_page(story, str(cluster.living[0].url))
        else:
            story.say("\n`edgepart demo --open` leaves the boxes running at the end, and opens their page.")
    if as_json:
        print_json(document)
    same = document["equal"] and (document["chat"] is None or document["chat"]["equal"])
    if not same or document["requests"]["lost"]:
        raise ClusterError(
            "the demo did not end as it should: see `equal`, `requests` and the `equal` of `chat` above"
        )


def agent_options(folder: Path) -> list[str]:
    """The options of each agent: one thread, the file with the measurement that all boxes share, and one plan that is kept
    ready for a loss. A plan for each box would take boxes on one machine half a minute, and answers longer meanwhile."""
    return ["--threads", "1", "--measured", str(folder / "measured.json"), "--spares", "1"]


def slow_box(times: float) -> Mapping[str, str]:
    """The environment of an agent that takes so many times as long to compute."""
    from edgepart.cli.emulation import sitecustomize

    folder = str(Path(sitecustomize.__file__).parent)
    path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH", ""))))
    return {"PYTHONPATH": path, sitecustomize.VARIABLE: f"{times:g}"}


def show_page(story: Story, url: str) -> None:
    """Open the page in a browser, and wait until the user has seen enough."""
    story.chapter(f"The cluster's page is at {url} until you press Enter")
    if not webbrowser.open(url):
        story.say("No browser could be opened here; open the page by hand.")
    with suppress(EOFError):  # Without a terminal, nobody can press Enter.
        input()
