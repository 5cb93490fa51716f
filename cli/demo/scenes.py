"""Scenes: the steps of the demo, in their order. Door: processes, and the client of a cluster."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from edgepart.cli.demo.quickest import TIMED, quickest_s
from edgepart.cli.demo.story import Speed, Story
from edgepart.planner.errors import ClusterError
from edgepart.planner.figures import format_seconds

if TYPE_CHECKING:
    from edgepart.cli.demo.ocr import Reader, Session
    from edgepart.cli.demo.traffic import Tally
    from edgepart.cli.local import LocalAgent, LocalCluster
    from edgepart.planner.region import Array

DETECTOR, RECOGNISER = "find-text", "read-text"
SETTLED_S = 30.0
"""How long boxes are asked for answers, at most, before those that show how fast they are. After a deploy they plan for the
loss of one of them, load this plan and try it, which takes three boxes on two cores some ten seconds. Answers take longer
meanwhile."""
COUNTED = 2 * (TIMED + 1)
"""The number of answers that count. The quickest ones in a row are shown."""
JOIN_LOOK_S = 0.5
"""Seconds between two looks whether the new box is used. Each takes the agent some time, in which it does not plan."""
ANSWERS = 8
"""Number of answers for which the demo waits before and after each event."""
PATIENCE_S = 180.0
"""The longest wait for any event, in seconds. On two cores, a new device is used after half a minute; beside other work,
after over a minute."""


class Scenes:
    """The steps of the demo, in order."""

    def __init__(
        self, story: Story, cluster: LocalCluster, reader: Reader, names: Sequence[str], joiner: str
    ) -> None:
        """`names` are those of the agents that run, and `joiner` is that of one that comes later."""
        from edgepart.cli.demo.traffic import Tally

        self._story = story
        self._cluster = cluster
        self._reader = reader
        self._names = tuple(names)
        self._joiner = joiner
        self._tally: Tally = Tally()
        self._difference = 0.0
        self._relative = 0.0
        self._speeds: list[Speed] = []

    def play(self) -> dict[str, Any]:
        """Play all scenes. Returns the demo's document. Raises ClusterError if something takes too long."""
        found, read = self._reader.read()
        text_alone = self._reader.text
        self._grow(*found.seen[0])
        self._deploy(RECOGNISER, read.seen[0][0], "--devices", self._names[0])
        self._read_together(text_alone)
        asyncio.run(self._lose_and_gain(*found.seen[0]))
        return self._document(text_alone)

    def undeploy(self) -> None:
        """Make room for another model."""
        for name in (DETECTOR, RECOGNISER):
            self._type("undeploy", name)

    def _grow(self, batch: Array, expected: Array) -> None:
        """Have one box answer, then two, and so on, and show how much sooner answers come."""
        for boxes in range(1, len(self._names) + 1):
            among = () if boxes == len(self._names) else ("--devices", ",".join(self._names[:boxes]))
            served = self._deploy(DETECTOR, batch, *among)
            measured_s = asyncio.run(self._time(batch, expected))
            predicted_s = served["predicted_latency_s"]
            self._speeds.append(Speed(boxes, tuple(served["devices"]), measured_s, predicted_s))
        self._story.chapter("How much sooner more boxes answer")
        self._story.speeds(self._speeds)
        self._story.chapter(f"Who computes what, with {len(self._names)} boxes")
        self._story.plan(self._plan(DETECTOR))

    def _deploy(self, name: str, batch: Array, *more: str) -> Any:
        shape = ",".join(map(str, batch.shape))
        model = self._reader.detector if name == DETECTOR else self._reader.recogniser
        options = ("--name", name, "--shape", f"x={shape}", *more)
        self._story.chapter(f"edgepart deploy {model.name} {' '.join(options)}")
        served = self._type("deploy", str(model), *options, timeout_s=PATIENCE_S)
        self._story.say(served["why"].splitlines()[0])
        return served

    async def _time(self, batch: Array, expected: Array) -> float:
        """How many seconds an answer takes. All answers are compared with the expected one."""
        from edgepart.client.async_client import AsyncClient

        async def ask() -> float:
            began = time.monotonic()
            outputs = (await client.infer(DETECTOR, {"x": batch})).outputs
            took_s = time.monotonic() - began
            self._compare(next(iter(outputs.values())), expected)
            return took_s

        until = time.monotonic() + SETTLED_S
        async with AsyncClient(self._target()) as client:
            while not self._is_prepared() and time.monotonic() < until:
                await ask()
            return quickest_s([await ask() for _ in range(COUNTED)])

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
        from edgepart.cli.demo.ocr import relative_difference
        from edgepart.cli.tensors import largest_difference

        self._difference = max(self._difference, largest_difference({"": got}, {"": expected}))
        self._relative = max(self._relative, relative_difference(got, expected))

    async def _lose_and_gain(self, batch: Array, expected: Array) -> None:
        from edgepart.cli.demo.traffic import RequestTraffic
        from edgepart.client.async_client import AsyncClient

        card = self._card()
        others = [name for name in (*card["covered"], *card["devices"]) if name != self._names[0]]
        victim = self._cluster.agents[others[0]]
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
            self._story.chapter(
                f"A new box, {self._joiner}, joins with a token; its links are measured, and requests go on"
            )
            await asyncio.to_thread(self._cluster.add, self._joiner)
            await self._until(self._is_measured, f"{self._joiner} to be measured")
            # One at a time: more would take the time of the boxes in which they try the new plan.
            async with RequestTraffic(*traffic, concurrency=1) as running:
                await self._until(
                    lambda: self._joiner in self._devices(),
                    f"a plan that uses {self._joiner}",
                    every_s=JOIN_LOOK_S,
                )
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
            "speeds": [
                {
                    "boxes": speed.boxes,
                    "devices": list(speed.devices),
                    "measured_s": speed.measured_s,
                    "predicted_s": speed.predicted_s,
                    "times_as_fast": self._speeds[0].measured_s / speed.measured_s,
                }
                for speed in self._speeds
            ],
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

    def _card(self) -> dict[str, Any]:
        models = self._outside(lambda: self._get("/api/models"))["models"]
        card: dict[str, Any] = next(card for card in models if card["name"] == DETECTOR)
        return card

    def _is_prepared(self) -> bool:
        """Whether the boxes have prepared for a loss, as far as there can be another plan."""
        card = self._card()
        return bool(card["covered"]) or len(card["devices"]) == 1

    def _devices(self) -> list[str]:
        return list(self._plan(DETECTOR)["devices"])

    def _is_measured(self) -> bool:
        members = self._outside(self._cluster.status)["members"]
        return any(m["name"] == self._joiner and m["measured"] for m in members)

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

    async def _until(self, done: Callable[[], Any], what: str, *, every_s: float = 0.05) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not await asyncio.to_thread(done):
            if time.monotonic() > deadline:
                raise ClusterError(f"waited {PATIENCE_S:.0f} s in vain for {what}")
            await asyncio.sleep(every_s)


def _finite(difference: float) -> float | None:
    """The difference, or None for infinity, which JSON lacks. (A NaN in one answer counts as an infinite difference.)"""
    return difference if math.isfinite(difference) else None
