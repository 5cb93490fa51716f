"""Speed of the simulator: schedules of 200 devices with 5,000 steps each, and plans of a real model.

    python -m benchmarks.simulator [--json FILE] [--devices 200] [--steps 5000]

Every schedule is drawn from a seed. A simulation is repeated and the median of its CPU time counts, so that
other programs disturb little. Prints a table; nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import median

from benchmarks.machine import describe, sentence, show_table
from benchmarks.models import light
from edgepart.cli.output import note, say, table
from edgepart.planner.devices.cluster import Cluster, Device, Link, Medium
from edgepart.planner.figures import format_seconds
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.model.load import load_graph
from edgepart.planner.planner import best_strategy
from edgepart.planner.plans.plan import GATEWAY, Receive, Send
from edgepart.planner.plans.timeline import Compute, MessageTimes, TimedSchedule
from edgepart.planner.search.study import Study
from edgepart.planner.simulation.latency import run_schedule
from edgepart.planner.simulation.throughput import default_in_flight, run_requests, simulate_stream

TARGET_S = 2.0
"""CPU seconds for a schedule of full size: 200 devices with 5,000 steps each."""
TRIES = 3

IN_FLIGHT = 10
"""Requests in flight, of twice as many in all."""

Steps = dict[str, list[Receive | Compute | Send]]


@dataclass(frozen=True)
class Measured:
    """The simulation of one schedule."""

    what: str
    devices: int
    steps: int
    """Steps of all devices."""
    messages: int
    requests: int
    cpu_s: float
    """Median of the tries."""
    wall_s: float

    @property
    def ratio(self) -> float:
        """CPU time over the target, which is for schedules of full size."""
        return self.cpu_s / TARGET_S


def drawn(
    chance: Random, devices: int, steps: int, partners: Callable[[int], Sequence[int]]
) -> TimedSchedule:
    """Return a schedule of rounds: every device computes, sends to its partners and receives, until each has
    about that many steps."""
    names = [f"d{n}" for n in range(devices)]
    programs: Steps = {name: [] for name in names}
    messages: list[MessageTimes] = []
    while max(map(len, programs.values())) < steps:
        came: list[list[int]] = [[] for _ in names]
        for n, name in enumerate(names):
            programs[name].append(Compute(chance.uniform(1e-4, 1e-2), "x"))
            for other in partners(n):
                messages.append(MessageTimes(name, names[other], chance.randint(100, 100_000)))
                programs[name].append(Send(len(messages) - 1))
                came[other].append(len(messages) - 1)
        for name, numbers in zip(names, came, strict=True):
            programs[name] += [Receive(number) for number in numbers]
    messages.append(MessageTimes(names[0], GATEWAY, 1000))
    programs[names[0]].append(Send(len(messages) - 1))
    return TimedSchedule(programs, messages)


def schedules(devices: int, steps: int) -> Iterator[tuple[str, TimedSchedule, Cluster]]:
    """Yield schedules with one neighbour, both neighbours, random partners on unequal links, a shared medium
    for a tenth of the devices and for all, and one hub for all."""
    chance = Random(0)
    link = Link(1.17e8, 2e-4)
    boxes = tuple(Device(f"d{n}", "k", 1e9, 1e9, 1e9) for n in range(devices))
    even = Cluster(boxes, {}, link)
    yield "ring", drawn(chance, devices, steps, lambda n: [(n + 1) % devices]), even
    both = drawn(chance, devices, steps, lambda n: [m for m in (n - 1, n + 1) if 0 <= m < devices])
    yield "both neighbours", both, even
    slow = {(f"d{n}", f"d{n + 1}"): Link(1.17e7, 1e-3) for n in range(0, devices - 1, 3)}
    mixed = Cluster(boxes, slow, link)
    few = drawn(chance, devices, steps, lambda n: chance.sample(range(devices), 2)) if devices > 2 else both
    yield "two at random", _without_loops(few), mixed
    air = Medium("wifi", 2e7, frozenset(f"d{n}" for n in range(devices // 10)), relayed=True)
    yield "both neighbours, a tenth on Wi-Fi", both, Cluster(boxes, slow, link, (air,))
    everywhere = Medium("wifi", 2e7, frozenset(box.name for box in boxes), relayed=True)
    yield "two at random, all on Wi-Fi", _without_loops(few), Cluster(boxes, {}, link, (everywhere,))
    hub = drawn(chance, devices, steps, lambda n: [0] if n else range(1, devices))
    yield "all with one hub", hub, even


def _without_loops(schedule: TimedSchedule) -> TimedSchedule:
    """Return the schedule without messages from a device to itself."""
    loops = {n for n, message in enumerate(schedule.messages) if message.source == message.target}
    kept = {old: new for new, old in enumerate(n for n in range(len(schedule.messages)) if n not in loops)}
    programs: Steps = {}
    for name, steps in schedule.steps.items():
        programs[name] = []
        for step in steps:
            if isinstance(step, Compute):
                programs[name].append(step)
            elif step.transfer in kept:
                programs[name].append(type(step)(kept[step.transfer]))
    return TimedSchedule(programs, [schedule.messages[old] for old in kept])


def measure(
    what: str, schedule: TimedSchedule, devices: int, requests: int, run: Callable[[], object]
) -> Measured:
    taken: list[tuple[float, float]] = []
    for _ in range(TRIES):
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        taken.append((time.process_time() - cpu, time.perf_counter() - wall))
    steps = sum(map(len, schedule.steps.values()))
    cpu_s, wall_s = (median(column) for column in zip(*taken, strict=True))
    return Measured(what, devices, steps, len(schedule.messages), requests, cpu_s, wall_s)


def drawn_ones(devices: int, steps: int) -> Iterator[Measured]:
    for what, schedule, cluster in schedules(devices, steps):
        note(f"{what}: {sum(map(len, schedule.steps.values())):,} steps")
        yield measure(what, schedule, devices, 1, partial(run_schedule, schedule, cluster, "d0"))


def crowded_ones(devices: int, steps: int) -> Iterator[Measured]:
    """Measure as many steps in all, divided among many requests of which some are in flight at a time."""
    count = 2 * IN_FLIGHT
    for what, schedule, cluster in schedules(devices, max(1, steps // count)):
        note(f"{what}: {count} requests, {IN_FLIGHT} in flight")
        run = partial(run_requests, schedule, cluster, "d0", count, IN_FLIGHT)
        yield measure(f"{what}, {IN_FLIGHT} in flight", schedule, devices, count, run)


def real_ones() -> Iterator[Measured]:
    """Measure resnet50 along its rows on 8 unequal devices: one request, and many in flight."""
    graph = load_graph(light("resnet50"))
    boxes = tuple(Device(f"d{n}", "k", 1e10 / (n + 1), 2.5e9 / (n + 1), 4e9) for n in range(8))
    cluster = Cluster(boxes, {}, Link(1.17e8, 2e-4))
    study = Study(Problem(graph, cluster, "d0", axis="height"))
    found = study.scorer.forecast(best_strategy(study.memo.problem, "bbgrap", study))
    schedule = found.schedule
    what = "resnet50 along its rows"
    yield measure(what, schedule, 8, 1, lambda: run_schedule(schedule, cluster, "d0"))
    flying = default_in_flight(cluster)
    many = simulate_stream(found, cluster, "d0", flying)
    what = f"{what}, {many.in_flight} in flight"
    yield measure(
        what, schedule, 8, len(many.answers_s), lambda: simulate_stream(found, cluster, "d0", flying)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulator", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--devices", type=int, default=200)
    parser.add_argument("--steps", type=int, default=5000, help="of each device")
    parser.add_argument("--json", type=Path, help="write every number there")
    options = parser.parse_args(arguments)
    big = [*drawn_ones(options.devices, options.steps), *crowded_ones(options.devices, options.steps)]
    found = [*big, *real_ones()]
    say(f"On {sentence()}.")
    rows = [
        (
            one.what,
            f"{one.devices}",
            f"{one.steps * one.requests:,}",
            f"{one.messages * one.requests:,}",
            format_seconds(one.cpu_s),
            format_seconds(one.wall_s),
            f"{one.ratio:.2f}" if one in big else "",
        )
        for one in found
    ]
    columns = ("schedule", "devices", "steps", "messages", "CPU time", "time", f"of {TARGET_S:g} s")
    show_table(table(columns, rows, right=columns[1:]))
    if options.json:
        results = [asdict(one) | {"ratio": one.ratio if one in big else None} for one in found]
        options.json.write_text(
            json.dumps({"machine": describe(), "target_s": TARGET_S, "results": results}, indent=2)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
