"""`edgepart feed`: streams a folder, a topic or a camera into a deployment. Door: it puts the other modules together."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgepart.agent.mqtt.broker import Broker
from edgepart.cli.options import (
    Agent,
    Deadline,
    DeployedName,
    MqttCa,
    MqttPasswordFile,
    Picture,
    State,
    broker_of,
)
from edgepart.cli.output import FAILED, note
from edgepart.cli.query import note_detour
from edgepart.client.target import AgentTarget, target_of
from edgepart.planner.errors import UsageError

if TYPE_CHECKING:
    from edgepart.cli.feed.answers import AnswerWriter
    from edgepart.cli.feed.feeding import Feeder, Source
    from edgepart.cli.feed.frames import FeedCounts, LineLimits
    from edgepart.cli.feed.topics import BrokerTopics

Camera = Annotated[
    str | None,
    typer.Option(metavar="DEVICE", help="A camera such as /dev/video0, a URL (rtsp://...), or a video file."),
]
Topic = Annotated[
    str | None,
    typer.Option("--mqtt", metavar="TOPIC", help="Messages: a picture, a .npy file, or a JSON array each."),
]
Folder = Annotated[
    Path | None, typer.Option(help="Pictures and .npy, .npz and .json files that appear there.")
]
Once = Annotated[bool, typer.Option("--once", help="With --folder: send the files that are there, and end.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Append the answers to this file, as JSON lines.")
]
ToTopic = Annotated[
    str | None, typer.Option(metavar="TOPIC", help="Publish the answers there, a JSON document each.")
]
BrokerUrl = Annotated[
    str | None,
    typer.Option(
        "--broker",
        envvar="EDGEPART_MQTT",
        show_envvar=True,
        metavar="URL",
        help="The MQTT broker of the topics: mqtt://[USER@]HOST[:PORT], or mqtts:// for TLS.",
    ),
]
AtOnce = Annotated[int, typer.Option(min=1, help="The most requests under way.")]
Waiting = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="The most frames that wait; older ones are dropped.",
        show_default="1; with --folder any number",
    ),
]
MaxAge = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Drop frames that have waited longer.", show_default="no limit"),
]
JsonLines = Annotated[bool, typer.Option("--json", help="Print JSON documents, one a line.")]


@dataclass(frozen=True)
class FeedPlan:
    """What the options say. At most one of `camera`, `topic` and `folder` is given."""

    name: str
    camera: str | None
    topic: str | None
    folder: Path | None
    once: bool
    output: Path | None
    to_topic: str | None
    broker: Broker | None
    limits: LineLimits
    picture: str
    timeout_s: float
    as_json: bool


def feed(
    name: DeployedName,
    camera: Camera = None,
    mqtt: Topic = None,
    folder: Folder = None,
    once: Once = False,
    output: Output = None,
    to_topic: ToTopic = None,
    broker: BrokerUrl = None,
    mqtt_password_file: MqttPasswordFile = None,
    mqtt_ca: MqttCa = None,
    at_once: AtOnce = 2,
    waiting: Waiting = None,
    max_age: MaxAge = None,
    picture: Picture = "",
    timeout_s: Deadline = 60.0,
    state: State = None,
    agent: Agent = None,
    as_json: JsonLines = False,
) -> None:
    """Send a stream of frames from a camera, a topic or a folder, and write down the answers. Ctrl-C ends it."""
    from edgepart.agent.api.deployment_name import check_name
    from edgepart.cli.feed.frames import LineLimits
    from edgepart.cli.feed.topics import check_topics

    check_name(name)
    if sum(one is not None for one in (camera, mqtt, folder)) != 1:
        raise UsageError("give one source: --camera DEVICE, --mqtt TOPIC or --folder DIR")
    if once and folder is None:
        raise UsageError("--once is for --folder: the files that are there are sent")
    if output is not None and to_topic is not None:
        raise UsageError("--output and --to-topic exclude each other")
    check_topics(mqtt, to_topic)
    uses_broker = mqtt is not None or to_topic is not None
    if uses_broker and broker is None:
        raise UsageError("--mqtt and --to-topic need a broker: --broker mqtt://HOST")
    found = broker_of(broker, mqtt_password_file, mqtt_ca, "--broker") if uses_broker else None
    kept = waiting if waiting is not None or folder is not None else 1
    limits = LineLimits(at_once, kept, inf if max_age is None else max_age)
    plan = FeedPlan(
        name, camera, mqtt, folder, once, output, to_topic, found, limits, picture, timeout_s, as_json
    )
    counts = asyncio.run(_feed(target_of(agent, state), plan))
    if once and counts.failed:
        raise typer.Exit(FAILED)


async def _feed(target: AgentTarget, plan: FeedPlan) -> FeedCounts:
    """Feeds until the source ends or a signal comes, and says what became of the frames."""
    from edgepart.cli.feed.answers import summary_of
    from edgepart.cli.feed.contents import FrameReader
    from edgepart.cli.feed.feeding import Feeder
    from edgepart.cli.feed.frames import FrameLine
    from edgepart.cli.feed.topics import BrokerTopics
    from edgepart.cli.tensors import bound_metadata
    from edgepart.client.async_client import AsyncClient

    line, loop = FrameLine(plan.limits), asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(AsyncClient(target))
        await client.learn()
        metadata = await client.get(f"/v2/models/{plan.name}")
        card = next((card for card in await client.models() if card["name"] == plan.name), {})
        note_detour(target, client.url)
        reader = FrameReader(bound_metadata(metadata, card), plan.picture, note)
        topics = None
        if plan.broker is not None:
            topics = await stack.enter_async_context(BrokerTopics(plan.broker, plan.topic))
        writer = stack.enter_context(_writer(plan, topics))
        feeder = Feeder(client, plan.name, reader, line, writer, note, plan.timeout_s)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, _stop_once, loop, feeder, number)
        began = loop.time()
        try:
            await feeder.run(_source(plan, topics))
        finally:
            took_s, unsent = loop.time() - began, 0 if topics is None else topics.unsent
            if line.counts.came or sys.exc_info()[0] is None:
                note(summary_of(line.counts, took_s, unsent))
        if plan.as_json:
            about = {"seconds": took_s, "unpublished": unsent}
            print(json.dumps({"summary": line.counts.document() | about}), flush=True)
    return line.counts


def _stop_once(loop: asyncio.AbstractEventLoop, feeder: Feeder, number: int) -> None:
    """Tells the feed to stop. The same signal once more ends the program at once."""
    loop.remove_signal_handler(number)
    feeder.stop()


def _source(plan: FeedPlan, topics: BrokerTopics | None) -> Source:
    from edgepart.cli.feed.camera import camera_frames
    from edgepart.cli.feed.folder import files_of

    if plan.folder is not None:
        return files_of(plan.folder, once=plan.once)
    if plan.camera is not None:
        return camera_frames(plan.camera)
    assert topics is not None
    return topics.frames()


def _writer(plan: FeedPlan, topics: BrokerTopics | None) -> AnswerWriter:
    from edgepart.cli.feed.answers import AnswerFile, PrintedAnswers, PublishedAnswers

    if plan.output is not None:
        return AnswerFile(plan.output)
    if plan.to_topic is not None and topics is not None:
        return PublishedAnswers(topics, plan.to_topic)
    return PrintedAnswers(as_json=plan.as_json)
