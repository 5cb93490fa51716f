"""Emulated hosts with agents, for benchmarks. Models are deployed on some hosts and clients ask the first one.

A bare ONNX Runtime session on the fastest of those hosts is the baseline of speed-ups. ONNX Runtime's runs are slowed
down. What an agent does besides (frames, TLS, Python) runs at full speed without `slow_python`, and this machine's
cores do it for all hosts. Does I/O: the laboratory.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tests.lab.cluster import cluster
from tests.lab.hosts import Host, parse_rate
from tests.lab.lab import Lab

from benchmarks.asker import Asked, Job
from benchmarks.comparing import run_alone
from benchmarks.models import named_model
from benchmarks.serving import client_of, deploy, settle
from benchmarks.work import pack
from edgepart.agent.wire.inference import DeployOptions
from edgepart.cli.local import LocalCluster
from edgepart.cli.verification import await_report
from edgepart.client.async_client import AsyncClient
from edgepart.planner.errors import EdgepartError, InternalError

WARM_UP, REQUESTS = 3, 7
TRIES = 3
"""Maximum number of attempts at a measurement during which the plan changes, and at making hosts of equal
speed measure alike."""
QUICK = "1gbit"
"""The rate at which a model's weights are sent if links are slower: sending them is not measured."""
ASK_WITHIN_S = 1200.0
ALIKE = 0.8
"""A host that measured itself at less than this share of its equals' best speed was disturbed meanwhile."""

BARE = """
import sys, time
from pathlib import Path
from benchmarks.executor import Bare
from benchmarks.work import unpack
inputs, _ = unpack(Path(sys.argv[2]))
run = Bare(Path(sys.argv[1]), 1)
run(inputs)
times = []
for _ in range(5):
    began = time.perf_counter()
    run(inputs)
    times.append(time.perf_counter() - began)
print(sorted(times)[2])
"""


@dataclass(frozen=True)
class Case:
    """What to deploy on how many of the hosts, and how to ask."""

    model: str
    hosts: int
    strategy: str = "auto"
    objective: str = "latency"
    count: int = REQUESTS
    at_once: int = 1
    every_s: float = 0.0
    """If not 0, a request begins every so many seconds, however many are in flight."""

    def __str__(self) -> str:
        return f"{self.model} on {self.hosts}, {self.strategy}"


@dataclass(frozen=True)
class Row:
    """The result of a case. Times are in seconds."""

    case: Case
    rate: str
    slow: tuple[float, ...]
    """Slow-down factors of the hosts that could be used."""
    used: tuple[str, ...]
    strategy: str
    """The strategy that made the plan."""
    bare_s: float
    """Time of a bare session on the fastest of the hosts, alone."""
    latency_s: float
    """Median latency at the client."""
    seconds: tuple[float, ...]
    inside_s: float
    """Median latency as the gateway measured it."""
    answers_per_s: float
    predicted_s: float
    compute_s: Mapping[str, float]
    """Maps each device to the compute seconds of a request, as the device measured them."""
    syncs: int
    moved_bytes: int
    largest_difference: float
    why: str

    @property
    def speedup(self) -> float:
        return self.bare_s / self.latency_s

    @property
    def ideal(self) -> float:
        """The sum of the hosts' speeds over the speed of the fastest one."""
        return sum(min(self.slow) / slow for slow in self.slow)

    @property
    def gain(self) -> float:
        """Answers per second over those of the fastest host alone."""
        return self.answers_per_s * self.bare_s


@dataclass
class Hosts:
    """Hosts that run agents. `hosts` makes them."""

    lab: Lab
    running: LocalCluster
    rate: str
    slow: tuple[float, ...]
    folder: Path
    say: Any
    _bare_s: dict[tuple[str, float], float] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.lab.hosts)

    def bare_s(self, model: str, factor: float | None = None) -> float:
        """Return the median of a bare session's runs on a host with that slow-down factor; without one, on
        the first host. It is measured once."""
        key = (model, factor or self.slow[0])
        if key not in self._bare_s:
            path, work = named_model(model).path, self._work(model)
            host = self.names[self.slow.index(key[1])]
            done = self.lab.run(
                host, sys.executable, "-c", BARE, str(path), str(work), timeout_s=ASK_WITHIN_S
            )
            if done.returncode:
                raise InternalError(f"the bare session failed: {done.stderr[-2000:]}")
            self._bare_s[key] = float(done.stdout)
            self.say(f"{model}: a bare session takes {self._bare_s[key]:.3f} s at slow={key[1]:g}")
        return self._bare_s[key]

    def measure(self, case: Case) -> Row:
        """Deploy a case, ask it and return its figures. Raises EdgepartError if it cannot be planned,
        InternalError if an answer is wrong."""
        names, slow = self.names[: case.hosts], self.slow[: case.hosts]
        bare_s = self.bare_s(case.model, min(slow))
        name = f"{case.model.replace('_', '-')}-{case.strategy}-{case.hosts}"
        card, asked, report = asyncio.run(self._deployed(case, name, names))
        if asked.wrong:
            raise InternalError(f"{case}: wrong answers: {asked.wrong[:3]}")
        began, ended = min(span[0] for span in asked.spans), max(span[1] for span in asked.spans)
        seconds = tuple(stop - start for start, stop in asked.spans)
        measured = report["measured"]["devices"]
        row = Row(
            case=case,
            rate=self.rate,
            slow=slow,
            used=tuple(report["devices"]),
            strategy=report["strategy"],
            bare_s=bare_s,
            latency_s=median(seconds),
            seconds=seconds,
            inside_s=median(asked.inside_s),
            answers_per_s=len(seconds) / (ended - began),
            predicted_s=float(card["predicted_latency_s"]),
            compute_s={device: one["measured_compute_s"] or 0.0 for device, one in measured.items()},
            syncs=int(report["syncs"]),
            moved_bytes=sum(device["sent_bytes"] for device in report["devices"].values()),
            largest_difference=asked.largest_difference,
            why=str(report["why"]),
        )
        self.say(
            f"{case} at {self.rate}: {row.latency_s:.3f} s, {row.speedup:.2f}x of {row.ideal:.2f} (predicted "
            f"{row.predicted_s:.3f} s, by {row.strategy} on {len(row.used)}, {row.answers_per_s:.2f}/s)"
        )
        return row

    async def _deployed(
        self, case: Case, name: str, names: Sequence[str]
    ) -> tuple[dict[str, Any], Asked, dict[str, Any]]:
        model = named_model(case.model)
        options = DeployOptions(
            shapes=dict(model.shapes),
            strategy=case.strategy,
            devices=tuple(names),
            objective=case.objective,
        )
        async with client_of(self.running.first) as client:
            self._set_rates(QUICK if parse_rate(self.rate) < parse_rate(QUICK) else self.rate)
            await deploy(client, model.path, name, options)
            try:
                card = await settle(client, name)
                self._set_rates(self.rate)
                card, asked = await self._asked(client, case, name, card)
                return card, asked, await await_report(client, name)
            finally:
                await client.undeploy(name)

    async def _asked(
        self, client: AsyncClient, case: Case, name: str, card: dict[str, Any]
    ) -> tuple[dict[str, Any], Asked]:
        agent = self.running.first
        work = self._work(case.model)
        job = Job(
            agent.url, str(agent.state), name, str(work), WARM_UP, case.count, case.at_once, case.every_s
        )
        for _ in range(TRIES):
            asked = await asyncio.to_thread(self._ask, job)
            if len(asked.epochs) == 1:
                return card, asked
            self.say(f"{case}: the plan changed meanwhile; measured again")
            card = await settle(client, name)
        raise InternalError(f"{case}: the plan changed during each of {TRIES} measurements")

    def _ask(self, job: Job) -> Asked:
        file = self.folder / "job.json"
        file.write_text(json.dumps(asdict(job)))
        command = (sys.executable, "-m", "benchmarks.asker", str(file))
        done = self.lab.run(self.names[0], *command, timeout_s=ASK_WITHIN_S)
        if done.returncode:
            raise InternalError(f"the client failed: {done.stderr[-2000:]}")
        return Asked(**json.loads(done.stdout))

    def _set_rates(self, rate: str) -> None:
        for name in self.names:
            self.lab.set_rate(name, rate)

    def _work(self, model: str) -> Path:
        """Return the file with a model's inputs and one session's answers to them; it is made once."""
        work = self.folder / f"{model}.npz"
        if not work.exists():
            known = named_model(model)
            inputs = known.inputs(0)
            pack(work, inputs, run_alone(known.path, inputs))
        return work


@contextmanager
def hosts(
    slow: Sequence[float],
    rate: str,
    say: Any,
    *,
    options: Sequence[str] = (),
    slow_python: float | None = None,
) -> Iterator[Hosts]:
    """Start a host for each factor, all at one rate, and yield them when their agents have found and measured each other.

    Raises LabError if there can be no laboratory. `say(text)` reports the progress.
    """
    names = [
        Host(f"box-{number}", slow=factor, slow_python=slow_python, rate=rate)
        for number, factor in enumerate(slow, 1)
    ]
    with (
        tempfile.TemporaryDirectory(prefix="edgepart-bench-") as folder,
        Lab(names) as lab,
        cluster(lab, options=options) as running,
    ):
        made = Hosts(lab, running, rate, tuple(slow), Path(folder), say)
        asyncio.run(_until_alike(made))
        yield made


async def _until_alike(made: Hosts) -> None:
    """Restart agents that measured themselves while the machine was doing something else."""
    for _ in range(TRIES):
        speeds = await _speeds(made)
        best = {family: max(one[family] for one in speeds.values()) for family in next(iter(speeds.values()))}
        alike = {name: median(one[family] / best[family] for family in best) for name, one in speeds.items()}
        parts = ", ".join(f"{name} {part:.0%}" for name, part in sorted(alike.items()))
        made.say(f"what each measured of itself, of the best, in the median kind of operator: {parts}")
        slower = [name for name, part in alike.items() if part < ALIKE]
        if not slower:
            return
        for name in slower:
            made.say(f"{name} is started again: it was disturbed while it measured itself")
            agent = made.running.agents[name]
            agent.stop()
            agent.start()
            made.running.wait(lambda agent=agent: agent.addresses, f"{name} to be up again", agent)
            # One after the other, because they share this machine's cores.
            made.running.wait_for_members(len(made.names))
    made.say("the hosts are still not what they should be; what follows is of unequal ones")


async def _speeds(made: Hosts) -> dict[str, dict[str, float]]:
    """Return each host's speed by operator family, as its agent measured it, times the host's slow-down factor."""
    factors = dict(zip(made.names, made.slow, strict=True))
    async with client_of(made.running.first) as client:
        for _ in range(240):
            found = (await client.get("/api/devices"))["devices"]
            if len(found) == len(factors):
                return {
                    one["name"]: {
                        family: speed * factors[one["name"]] for family, speed in one["families"].items()
                    }
                    for one in found
                }
            await asyncio.sleep(0.25)
    raise InternalError(f"of {len(factors)} hosts only {len(found)} told what they can do")


def each(made: Hosts, cases: Sequence[Case]) -> Iterator[Row]:
    """Yield rows as they are measured; cases that cannot be planned are reported and left out."""
    for case in cases:
        try:
            yield made.measure(case)
        except InternalError:
            raise
        except EdgepartError as error:
            made.say(f"{case}: {error}")
