"""Draws schedules and clusters that nothing coincides in, so that no order is left to chance."""

from __future__ import annotations

from itertools import permutations
from random import Random

from edgepart.planner.devices.cluster import Cluster, Device, Link, Medium
from edgepart.planner.plans.plan import GATEWAY, Receive, Send
from edgepart.planner.plans.timeline import Compute, MessageTimes, TimedSchedule

Steps = dict[str, list[Receive | Compute | Send]]


def names(count: int) -> list[str]:
    return [f"d{n}" for n in range(count)]


def link(chance: Random) -> Link:
    return Link(
        chance.uniform(100, 2000), chance.uniform(0, 0.3), chance.choice([0.0, chance.uniform(0, 0.2)])
    )


def a_cluster(chance: Random, count: int) -> Cluster:
    """Some links of their own, some with two directions; at times a medium that some devices share, or some links."""
    devices = names(count)
    pairs = [(a, b) for a in devices for b in devices if a < b]
    links = {pair: link(chance) for pair in pairs if chance.random() < 0.5}
    links |= {(b, a): link(chance) for a, b in pairs if chance.random() < 0.2}
    media = []
    if chance.random() < 0.6:
        members = frozenset(chance.sample(devices, chance.randint(1, count)))
        media.append(Medium("air", chance.uniform(100, 1500), members, relayed=chance.random() < 0.5))
    if chance.random() < 0.4:
        through = frozenset(chance.sample(pairs, chance.randint(1, len(pairs))))
        media.append(Medium("cable", chance.uniform(100, 1500), links=through))
    made = tuple(Device(name, "k", 1.0, 1.0, 1e9) for name in devices)
    return Cluster(made, links, link(chance), tuple(media), routes(chance, devices))


def routes(chance: Random, devices: list[str]) -> dict[tuple[str, str], tuple[str, ...]]:
    """Some links lead over another device, or over two."""
    found = {}
    for a, b in permutations(devices, 2):
        between = [name for name in devices if name not in (a, b)]
        if between and chance.random() < 0.15:
            found[a, b] = (a, *chance.sample(between, min(len(between), chance.randint(1, 2))), b)
    return found


def a_schedule(chance: Random, count: int) -> TimedSchedule:
    """Rounds of computing, sending and receiving; at the end every device sends something to the gateway."""
    steps: Steps = {name: [] for name in names(count)}
    messages: list[MessageTimes] = []

    def send(source: str, target: str) -> int:
        messages.append(MessageTimes(source, target, chance.randint(0, 1500)))
        return len(messages) - 1

    for name in chance.sample(list(steps), chance.randint(1, count)):
        steps[name].append(Receive(send(GATEWAY, name)))
    for _ in range(chance.randint(1, 4)):
        came: dict[str, list[int]] = {name: [] for name in steps}
        for source in steps:
            steps[source].append(Compute(chance.uniform(0.01, 2.0), "x"))
            for target in chance.sample(sorted(set(steps) - {source}), chance.randint(0, count - 1)):
                came[target].append(send(source, target))
                steps[source].append(Send(came[target][-1]))
        for target, numbers in came.items():
            chance.shuffle(numbers)
            steps[target] += [Receive(number) for number in numbers]
    for name in steps:
        steps[name] += [Compute(chance.uniform(0.01, 2.0), "last"), Send(send(name, GATEWAY))]
    return TimedSchedule(steps, messages)


def a_star(chance: Random, count: int) -> TimedSchedule:
    """The first device hands out, all others compute and give back, the first one computes."""
    hub, *others = names(count)
    steps: Steps = {name: [] for name in (hub, *others)}
    messages = [MessageTimes(GATEWAY, hub, chance.randint(0, 1500))]
    steps[hub] = [Receive(0), Compute(chance.uniform(0, 1), "parts")]
    for name in others:
        messages += [
            MessageTimes(hub, name, chance.randint(0, 1500)),
            MessageTimes(name, hub, chance.randint(0, 1500)),
        ]
        there, back = len(messages) - 2, len(messages) - 1
        steps[hub].append(Send(there))
        steps[name] = [Receive(there), Compute(chance.uniform(0, 2), "part"), Send(back)]
    steps[hub] += [Receive(n) for n in range(2, len(messages), 2)]
    messages.append(MessageTimes(hub, GATEWAY, 10))
    steps[hub] += [Compute(chance.uniform(0, 1), "all"), Send(len(messages) - 1)]
    return TimedSchedule(steps, messages)


def a_chain(chance: Random, count: int) -> TimedSchedule:
    """One device after another."""
    steps: Steps = {}
    messages = [MessageTimes(GATEWAY, "d0", chance.randint(0, 1500))]
    for n, name in enumerate(names(count)):
        target = f"d{n + 1}" if n + 1 < count else GATEWAY
        messages.append(MessageTimes(name, target, chance.randint(0, 1500)))
        steps[name] = [Receive(n), Compute(chance.uniform(0, 2), "stage"), Send(n + 1)]
    return TimedSchedule(steps, messages)
