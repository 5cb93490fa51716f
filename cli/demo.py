"""`edgepart demo`: three agents on this machine read a page together; one of them is killed, and another joins; then a
language model answers. The demo runs the commands that a person would type, and sends requests as any client does.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgepart.cli.options import Json
from edgepart.cli.output import console, print_json, table
from edgepart.planner.errors import ClusterError
from edgepart.planner.figures import format_bytes, format_seconds
from edgepart.planner.report.sentences import headline

if TYPE_CHECKING:
    from edgepart.cli.local import LocalAgent, LocalCluster
    from edgepart.cli.ocr import Reader, Session
    from edgepart.cli.traffic import Tally
    from edgepart.planner.region import Array

NAMES = ("attic", "desk", "shelf")
JOINER = "van"
DETECTOR, RECOGNISER = "find-text", "read-text"
STRATEGY = "bbgrap"
"""A strategy that divides a model over all devices. `auto` may rightly use one device only, since all share one machine's
cores."""
ANSWERS = 8
"""Number of answers for which the demo waits before and after each event."""
PATIENCE_S = 180.0
"""The longest wait for any event, in seconds. On two cores, a new device is used after 25 s; beside other work, after over
60 s."""

Image = Annotated[
    Path | None, typer.Option("--image", help="Read this image instead of the page of the demo.")
]

ChatFolder = Annotated[
    Path | None,
    typer.Option("--chat", metavar="FOLDER", help="At the end, chat with the language model in this folder."),
]


def demo(image: Image = None, chat: ChatFolder = None, as_json: Json = False) -> None:
    """Run three agents on this machine: they read a page together, lose an agent, and gain one; and chat."""
    from edgepart.cli.demo_chat import find_hindrance, tell_chat
    from edgepart.cli.local import LocalCluster
    from edgepart.cli.ocr import PAGE, Reader

    story = Story(as_json)
    story.say(f"Reading {(image or PAGE).name} with one ONNX Runtime session, to know the right answer.")
    reader = Reader(image or PAGE, threads=1)
    story.chapter("Three agents, three processes: each finds the others by mDNS, all speak mutual TLS")
    with LocalCluster(NAMES, options=["--threads", "1"]) as cluster:
        for note in cluster.notes:
            story.say(f"! {note}")
        story.members(cluster.status())
        the_demo = Demo(story, cluster, reader)
        document = the_demo.run()
        if (why := find_hindrance(chat)) or chat is None:
            story.say(f"\n{why}")
        else:
            the_demo.undeploy()
            document["chat"] = tell_chat(cluster, chat, story.chapter, story.say, story.part)
    if as_json:
        print_json(document)
    same = document["equal"] and (document["chat"] is None or document["chat"]["equal"])
    if not same or document["requests"]["lost"]:
        raise ClusterError(
            "the demo did not end as it should: see `equal`, `requests` and the `equal` of `chat` above"
        )


class Story:
    """Prints the texts of the demo. They go to stderr if stdout is for the document."""

    def __init__(self, as_json: bool) -> None:
        self._console = console(stderr=as_json)
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False)

    def part(self, text: str) -> None:
        """Print a piece of a line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True, end="")

    def chapter(self, text: str) -> None:
        from rich.text import Text

        self._console.print()
        took = f" ({time.monotonic() - self._began:.0f} s)"
        self._console.rule(Text.assemble((text, "bold"), took), align="left")

    def members(self, status: dict[str, Any]) -> None:
        rows = [
            (m["name"], m["node"], m["address"] or "", "leader" if m["leader"] else m["state"])
            for m in status["members"]
        ]
        self._console.print(table(("device", "node id", "address", ""), rows))

    def plan(self, plan: dict[str, Any]) -> None:
        """Prints what each device computes and which data it sends and receives, and the first sentence about the plan."""
        total = sum(device["flops"] for device in plan["devices"].values()) or 1.0
        shared: dict[str, str] = next(
            (parts for parts in plan["shares"].values() if len(parts) == len(plan["devices"])), {}
        )
        rows = [
            (
                name,
                f"{device['flops'] / total:.0%}",
                shared.get(name, "-"),
                str(device["segments"]),
                format_bytes(device["from_gateway_bytes"]),
                format_bytes(device["received_bytes"]),
                format_bytes(device["to_gateway_bytes"]),
            )
            for name, device in plan["devices"].items()
        ]
        columns = (
            "device",
            "work",
            "rows of the first shared layer",
            "segments",
            "input",
            "halos in",
            "output",
        )
        self._console.print(table(columns, rows, right=columns[1:2] + columns[3:]))
        self.say(headline(plan["why"]))


class Demo:
    """The steps of the demo, in order."""

    def __init__(self, story: Story, cluster: LocalCluster, reader: Reader) -> None:
        from edgepart.cli.traffic import Tally

        self._story = story
        self._cluster = cluster
        self._reader = reader
        self._tally: Tally = Tally()
        self._difference = 0.0
        self._relative = 0.0

    def run(self) -> dict[str, Any]:
        found, read = self._reader.read()
        text_alone = self._reader.text
        self._deploy(found.seen[0], read.seen[0])
        self._read_together(text_alone)
        asyncio.run(self._lose_and_gain(*found.seen[0]))
        return self._document(text_alone)

    def undeploy(self) -> None:
        """Make room for another model."""
        for name in (DETECTOR, RECOGNISER):
            self._type("undeploy", name)

    def _deploy(self, found: tuple[Array, Array], read: tuple[Array, Array]) -> None:
        self._story.say(
            f"The demo asks for {STRATEGY}, which divides a model over all devices: these share one machine's cores, "
            "and `auto` takes one device where that is faster."
        )
        for name, model, batch in (
            (DETECTOR, self._reader.detector, found[0]),
            (RECOGNISER, self._reader.recogniser, read[0]),
        ):
            shape = ",".join(map(str, batch.shape))
            options = ("--name", name, "--shape", f"x={shape}", "--strategy", STRATEGY)
            self._story.chapter(f"edgepart deploy {model.name} {' '.join(options[2:])}")
            self._type("deploy", str(model), *options, timeout_s=120)
            self._story.plan(self._plan(name))

    def _read_together(self, text_alone: list[str]) -> None:
        self._story.chapter("What the page says, read by the cluster")
        detected, recognised = self._reader.read(self._session(DETECTOR), self._session(RECOGNISER))
        for line in self._reader.text:
            self._story.say(f"  {line}")
        alone = self._reader.read()
        for mine, theirs in zip((detected, recognised), alone, strict=True):
            for (_, got), (_, expected) in zip(mine.seen, theirs.seen, strict=True):
                self._compare(got, expected)
        same = "the same text" if self._reader.text == text_alone else "OTHER TEXT"
        self._story.say(
            f"One session reads {same}; outputs differ by {self._relative:.1e} of the largest value at most."
        )

    def _compare(self, got: Array, expected: Array) -> None:
        from edgepart.cli.ocr import relative_difference
        from edgepart.cli.tensors import largest_difference

        self._difference = max(self._difference, largest_difference({"": got}, {"": expected}))
        self._relative = max(self._relative, relative_difference(got, expected))

    async def _lose_and_gain(self, batch: Array, expected: Array) -> None:
        from edgepart.cli.traffic import RequestTraffic
        from edgepart.client.async_client import AsyncClient

        victim = self._cluster.agents[next(name for name in NAMES[1:] if name in self._devices())]
        output = self._plan(DETECTOR)["outputs"][0]
        async with AsyncClient(self._target()) as client:
            traffic = (client, DETECTOR, {"x": batch}, {output: expected}, self._tally)
            self._story.chapter(f"Requests keep coming, four at a time; {victim.name} is killed (SIGKILL)")
            async with RequestTraffic(*traffic) as running:
                await running.answers(ANSWERS)
                killed_at = time.monotonic()
                victim.kill()
                await self._until(
                    lambda: victim.name not in self._devices(), "a plan without the dead device"
                )
                self._story.say(
                    f"A plan without {victim.name} serves {format_seconds(time.monotonic() - killed_at)} later."
                )
                await running.answers(ANSWERS)
            self._story.plan(self._plan(DETECTOR))
            self._tell_tally()
            self._story.chapter(f"A new agent, {JOINER}, joins with a token and is measured; requests go on")
            await asyncio.to_thread(self._cluster.add, JOINER)
            await self._until(self._is_measured, f"{JOINER} to be measured")
            async with RequestTraffic(*traffic) as running:
                await self._until(lambda: JOINER in self._devices(), f"a plan that uses {JOINER}")
                await running.answers(ANSWERS)
            self._story.plan(self._plan(DETECTOR))
            self._tell_tally()

    def _tell_tally(self) -> None:
        tally = self._tally
        self._story.say(
            f"Requests: {tally.sent} sent, {tally.answered} answered, {len(tally.lost)} lost, {tally.wrong} wrong, "
            f"{tally.replays} run again; longest gap between answers {format_seconds(tally.longest_gap_s)}."
        )

    def _document(self, text_alone: list[str]) -> dict[str, Any]:
        tally = self._tally
        return {
            "equal": self._relative <= 1e-4 and tally.wrong == 0 and self._reader.text == text_alone,
            "max_abs_diff": _finite(max(self._difference, tally.largest_difference)),
            "max_relative_diff": _finite(self._relative),
            "requests": {"sent": tally.sent, "answered": tally.answered, "lost": len(tally.lost)},
            "replays": tally.replays,
            "longest_gap_s": tally.longest_gap_s,
            "devices": [
                {"name": member["name"], "state": member["state"], "leader": member["leader"]}
                for member in self._cluster.status()["members"]
            ],
            "text": self._reader.text,
            "notes": self._cluster.notes,
            "chat": None,
        }

    # The commands and requests of a person

    @property
    def _agent(self) -> LocalAgent:
        return self._cluster.first

    def _type(self, *command: str, timeout_s: float = 60) -> Any:
        from edgepart.cli.local import edgepart

        return edgepart(*command, "--state", str(self._agent.state), timeout_s=timeout_s)

    def _target(self) -> Any:
        from edgepart.client.target import AgentTarget

        return AgentTarget(self._agent.url, self._agent.state)

    def _get(self, path: str) -> Any:
        from edgepart.client.async_client import AsyncClient

        async def get() -> Any:
            async with AsyncClient(self._target()) as client:
                return await client.get(path)

        return asyncio.run(get())

    def _plan(self, name: str) -> dict[str, Any]:
        plan: dict[str, Any] = self._outside(lambda: self._get(f"/api/models/{name}/plan"))
        return plan

    def _devices(self) -> list[str]:
        return list(self._plan(DETECTOR)["devices"])

    def _is_measured(self) -> bool:
        members = self._outside(self._cluster.status)["members"]
        return any(m["name"] == JOINER and m["measured"] for m in members)

    @staticmethod
    def _outside(call: Callable[[], Any]) -> Any:
        """Runs the call in a thread without an event loop: half of the demo runs inside one."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(call).result()

    def _session(self, name: str) -> Session:
        """A session that runs the deployment on the cluster."""
        from edgepart.client.async_client import AsyncClient

        async def infer(batch: Array) -> Array:
            async with AsyncClient(self._target()) as client:
                outputs = (await client.infer(name, {"x": batch})).outputs
                result: Array = next(iter(outputs.values()))
                return result

        return lambda batch: asyncio.run(infer(batch))

    async def _until(self, done: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not await asyncio.to_thread(done):
            if time.monotonic() > deadline:
                raise ClusterError(f"waited {timeout_s:.0f} s in vain for {what}")
            await asyncio.sleep(0.05)


def _finite(difference: float) -> float | None:
    """The difference, or None for infinity, which JSON lacks. (A NaN in one answer counts as an infinite difference.)"""
    return difference if math.isfinite(difference) else None
