"""Chaos: emulated hosts serve a model while agents are killed, frozen or cut off, disks fill up and the power fails.

    python -m benchmarks.chaos [--seconds 300] [--seed 1] [--model resnet50] [--kinds kill,cut] [--calm 0] [--json FILE]

There are four hosts. A client on a host of its own, which is not a member, sends requests without pause, four at a
time, and compares every answer with that of one session. A request counts once with all of its tries, by its gateway
and by the client on other agents. It is lost if it is refused for good or has no answer after a minute. Exits with 1
and leaves a report if a request was lost, an answer was wrong or a ghost was listed. The requirements are those of the
laboratory (docs/laboratory.md).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.lab.cluster import cluster
from tests.lab.hosts import Host, LabError, numbered
from tests.lab.lab import Lab

from benchmarks.chaos_acting import Acting
from benchmarks.chaos_asking import Asked, Job
from benchmarks.chaos_figures import HEADS, Outcome, lines, outcome, sentence
from benchmarks.chaos_presence import Presence, ghosts
from benchmarks.chaos_report import leave
from benchmarks.chaos_schedule import KINDS, Incident, schedule
from benchmarks.chaos_watch import Watch, fetch, listed
from benchmarks.comparing import run_alone
from benchmarks.machine import describe, show_table
from benchmarks.machine import sentence as machine
from benchmarks.models import light, sample_inputs
from benchmarks.serving import client_of, deploy, settle
from benchmarks.stalls import Stalls
from benchmarks.work import pack
from edgepart.agent.wire.inference import DeployOptions
from edgepart.cli.local import LocalCluster
from edgepart.cli.output import note, say, table
from edgepart.client.target import AgentTarget
from edgepart.planner.errors import ClusterError, EdgepartError
from edgepart.planner.model.load import load_graph

CLIENT = "client"
DEADLINE_S = 60.0
"""A request that has no answer by then is lost."""
SETTLED_WITHIN_S = 40.0
"""Time after the schedule within which all agents have to see the same members and the same leader."""


@dataclass(frozen=True)
class Settings:
    """Settings of a run. The same settings give the same schedule."""

    model: str = "resnet50"
    seconds: float = 300.0
    seed: int = 1
    kinds: tuple[str, ...] = tuple(KINDS)
    hosts: int = 4
    slow: float = 8.0
    rate: str = "1gbit"
    disk: str = "1G"
    concurrency: int = 4
    calm_s: float = 0.0
    options: tuple[str, ...] = ("--compiled", "256M")
    """Options of every agent."""

    @property
    def boxes(self) -> tuple[str, ...]:
        return tuple(f"box-{number}" for number in range(1, self.hosts + 1))

    @property
    def incidents(self) -> tuple[Incident, ...]:
        return schedule(self.seed, self.seconds, self.boxes, self.kinds, self.calm_s)

    def command(self) -> list[str]:
        """Return the command that repeats the run."""
        given = {
            "--model": self.model,
            "--seconds": f"{self.seconds:g}",
            "--seed": str(self.seed),
            "--kinds": ",".join(self.kinds),
            "--hosts": str(self.hosts),
            "--slow": f"{self.slow:g}",
            "--rate": self.rate,
            "--disk": self.disk,
            "--concurrency": str(self.concurrency),
            "--calm": f"{self.calm_s:g}",
            "--agent-options": " ".join(self.options),
        }
        return ["python", "-m", "benchmarks.chaos", *(f"{key}={value}" for key, value in given.items())]


class Run:
    """One run in a laboratory that has been set up."""

    def __init__(
        self, settings: Settings, lab: Lab, running: LocalCluster, work: Path, tell: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._lab = lab
        self._running = running
        self._work = work
        self._tell = tell
        self._like = lab.hosts[settings.boxes[0]]
        self._out = lab.folder / "asked.jsonl"

    def make(self, reports: Path) -> Outcome:
        """Run the whole schedule and return its outcome; leave a report if the outcome is not fine."""
        settings, incidents = self._settings, self._settings.incidents
        with Watch() as watch:
            for name in settings.boxes:
                self._watch(watch, name)
            acting = Acting(
                self._lab, self._running, self._like, lambda name: self._watch(watch, name), self._tell
            )
            with Stalls() as stalls, self._asking():
                began, wall = time.monotonic(), time.time()
                acting.run(incidents, began, began + settings.seconds)
                troubles = [*acting.troubles, *self._unsettled()]
        seen = list(
            ghosts(Presence(frozenset(settings.boxes)), acting.done, watch.looks, tuple(self._lab.hosts))
        )
        asked = [Asked(**json.loads(line)) for line in self._out.read_text().splitlines()]
        texts = [
            f"{look.at - began:.1f} s: {look.viewer} lists {box}, which has not been there for {absent_s:.1f} s"
            for look, box, absent_s in seen
        ]
        found = outcome(asked, incidents, acting.done, texts, troubles, stalls.found)
        if not found.fine:
            leave(
                reports,
                command=settings.command(),
                began=began,
                wall=wall,
                incidents=incidents,
                done=acting.done,
                asked=asked,
                looks=watch.looks,
                logs=[(agent.name, agent.log) for agent in self._running.agents.values()],
                found=found,
            )
        return found

    def _watch(self, watch: Watch, name: str) -> None:
        agent = self._running.agents[name]
        watch.add(name, agent.url, agent.state)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Send requests while the block runs; at its end, wait for the answers to requests already sent."""
        first, settings = self._running.first, self._settings
        job = self._lab.folder / "job.json"
        asks = Job(
            first.url,
            str(first.state),
            settings.model,
            str(self._work),
            settings.concurrency,
            DEADLINE_S,
            str(self._out),
        )
        job.write_text(json.dumps(asdict(asks)))
        with (self._lab.folder / "client.log").open("wb") as log:
            command = (sys.executable, "-m", "benchmarks.chaos_asking", str(job))
            process = self._lab.start(CLIENT, *command, stdout=log, stderr=log)
            try:
                self._running.wait(
                    lambda: self._out.exists() and self._out.stat().st_size, "the first answer"
                )
                yield
            finally:
                process.terminate()
                process.wait(DEADLINE_S + 10)

    def _unsettled(self) -> list[str]:
        """Return what agents still see wrongly when `SETTLED_WITHIN_S` has passed since everything was mended."""
        agents, texts = self._running.agents, ["nobody was asked"]
        until = time.monotonic() + SETTLED_WITHIN_S
        while texts and time.monotonic() < until:
            texts = []
            leaders = set()
            for agent in agents.values():
                try:
                    credential = AgentTarget(agent.url, agent.state).credential()
                    status = fetch(agent.url, credential, "/api/status")
                    models = fetch(agent.url, credential, "/api/models")["models"]
                except (OSError, EdgepartError, KeyError) as error:
                    texts.append(f"at the end {agent.name} does not answer: {error!r}")
                    continue
                leaders.add(status["leader"])
                if (members := listed(status)) != set(agents):
                    texts.append(f"at the end {agent.name} lists {sorted(members)}")
                if [card["state"] for card in models] != ["serving"]:
                    texts.append(
                        f"at the end {agent.name} says of its models: {[card['state'] for card in models]}"
                    )
            if len(leaders) != 1 or None in leaders:
                texts.append(f"at the end the leaders are {leaders}")
            if texts:
                time.sleep(1.0)
        return texts


def run(settings: Settings, reports: Path, tell: Callable[[str], None] = note) -> Outcome:
    """Set up the laboratory and run the schedule in it. Raises LabError if there can be no laboratory."""
    path = light(settings.model)
    inputs = sample_inputs(load_graph(path))
    boxes = numbered(settings.hosts, f"{settings.slow:g}", rate=settings.rate, disk=settings.disk)
    with (
        tempfile.TemporaryDirectory(prefix="echaos-") as folder,
        Lab([*boxes, Host(CLIENT, rate=settings.rate)]) as lab,
        cluster(lab, settings.boxes, options=settings.options) as running,
    ):
        work = Path(folder) / "work.npz"
        pack(work, inputs, run_alone(path, inputs))
        asyncio.run(_deploy(running, path, settings.model))
        return Run(settings, lab, running, work, tell).make(reports)


async def _deploy(running: LocalCluster, path: Path, model: str) -> None:
    async with client_of(running.first) as client:
        await deploy(client, path, model, DeployOptions())
        await settle(client, model)


def settings_of(given: Any, seed: int) -> Settings:
    """Return the settings for parsed arguments and one of their seeds. Raises LabError if a kind is unknown."""
    kinds = tuple(given.kinds.split(","))
    if unknown := set(kinds) - set(KINDS):
        raise LabError(f"--kinds {sorted(unknown)}: there are {', '.join(KINDS)}")
    return Settings(
        model=given.model,
        seconds=given.seconds,
        seed=seed,
        kinds=kinds,
        hosts=given.hosts,
        slow=given.slow,
        rate=given.rate,
        disk=given.disk,
        concurrency=given.concurrency,
        calm_s=given.calm,
        options=tuple(given.agent_options.split()),
    )


def parser() -> argparse.ArgumentParser:
    usual = Settings()
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    made.add_argument("--model", default=usual.model, help="one of the light models")
    made.add_argument("--seconds", type=float, default=usual.seconds, help="how long things happen")
    made.add_argument(
        "--seed",
        type=lambda text: [int(seed) for seed in text.split(",")],
        default=[usual.seed],
        help="the schedule is made of it; of several (1,2) one run after the other",
    )
    made.add_argument("--kinds", default=",".join(usual.kinds), help=f"of {','.join(KINDS)}")
    made.add_argument("--hosts", type=int, default=usual.hosts)
    made.add_argument("--slow", type=float, default=usual.slow, help="times as slow as this machine")
    made.add_argument("--rate", default=usual.rate)
    made.add_argument("--disk", default=usual.disk, help="the size of each host's state folder")
    made.add_argument("--concurrency", type=int, default=usual.concurrency)
    made.add_argument(
        "--calm", type=float, default=usual.calm_s, help="seconds of peace before each incident"
    )
    made.add_argument("--agent-options", default=" ".join(usual.options), help="such as '--log-level debug'")
    made.add_argument(
        "--reports", type=Path, default=Path("results/chaos"), help="where a failing run leaves a report"
    )
    made.add_argument("--schedule", action="store_true", help="print the schedule, and do nothing")
    made.add_argument("--markdown", action="store_true")
    made.add_argument("--json", type=Path)
    return made


def main() -> None:
    given = parser().parse_args()
    try:
        every = [settings_of(given, seed) for seed in given.seed]
        if given.schedule:
            print(json.dumps([asdict(one) for settings in every for one in settings.incidents], indent=1))
            return
        runs = {}
        for settings in every:
            runs[settings.seed] = found = run(settings, _reports(given, settings))
            _print_run(settings, found, given.markdown)
    except (LabError, ClusterError) as error:
        sys.exit(f"error: {error}")
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        documents = [asdict(one) | runs[one.seed].document() for one in every]
        given.json.write_text(json.dumps({"machine": describe(), "runs": documents}, indent=1))
    for settings in every:
        if not runs[settings.seed].fine:
            again = " ".join(settings.command())
            sys.exit(f"The report is in {_reports(given, settings)}; run it again with: {again}")


def _reports(given: Any, settings: Settings) -> Path:
    return Path(given.reports) / f"seed-{settings.seed}"


def _print_run(settings: Settings, found: Outcome, markdown: bool) -> None:
    say(f"{settings.model} on {settings.hosts} hosts, seed {settings.seed}, on {machine()}.\n")
    show_table(table(HEADS, list(lines(found.rows)), right=HEADS[1:]), markdown)
    say(f"\n{sentence(found)}.\n")
    for text in (*found.troubles, *found.ghosts, *found.errors):
        say(f"! {text}")


if __name__ == "__main__":
    main()
