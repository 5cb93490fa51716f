"""What goes wrong in a run, and when: drawn from a seed before it begins, so that the same seed always has the same."""

from __future__ import annotations

import random
from dataclasses import dataclass

LARGE = 20
"""Agents from which on many plays begin alike."""
KINDS = {
    "kill": 6,
    "tear": 4,
    "power": 4,
    "freeze": 4,
    "slow": 2,
    "jump": 2,
    "slow disk": 3,
    "cut one way": 3,
    "cut": 2,
    "split": 3,
    "heal": 6,
    "start": 14,
    "leave": 2,
    "wipe": 1,
    "deploy": 3,
    "undeploy": 1,
    "drain": 3,
    "undrain": 1,
    "remove": 2,
    "want": 2,
    "ask": 14,
}
"""By kind of fault, how often it is drawn beside the others."""


@dataclass(frozen=True, slots=True)
class Fault:
    after_s: float
    """Seconds of virtual time since the one before."""
    kind: str
    boxes: tuple[int, ...]
    """Whom it hits, by number; of a split, one side."""
    amount: float = 0.0
    """Seconds, or whatever it takes."""


@dataclass(frozen=True, slots=True)
class Schedule:
    seed: int
    agents: int
    lossy: float
    first_s: float
    """When something is deployed for the first time."""
    faults: tuple[Fault, ...]
    gone: tuple[int, ...]
    """Boxes that stay off at the end."""
    late: tuple[int, ...]
    """Boxes that join later: by a start among the faults, or at the end."""


def schedule(seed: int, agents: int) -> Schedule:
    rng = random.Random(f"{seed} of {agents}")
    count = rng.randint(4, 14)
    faults: list[Fault] = []
    once: set[str] = set()
    for _ in range(count):
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        if kind in once:
            kind = "ask"  # with two disks lost, or on their way out, nothing is promised
        if kind in ("wipe", "remove"):
            once |= {"wipe", "remove"}
        faults.append(
            Fault(rng.choice([0.0, 0.02, 0.2, 0.6, 1.5]), kind, _boxes(kind, agents, rng), rng.random())
        )
    removed = {fault.boxes[-1] for fault in faults if fault.kind == "remove"}
    stay = [number for number in range(1, agents + 1) if number not in removed]
    many = min(rng.choice([0, 0, 0, 1, 2]), len(stay) - 1)
    gone = tuple(rng.sample(stay, many))
    lossy = rng.choice([0.0, 0.0, 0.0, 0.03])
    return Schedule(seed, agents, lossy, rng.uniform(0.5, 2.5), tuple(faults), gone, _late(seed, agents))


def _late(seed: int, agents: int) -> tuple[int, ...]:
    """In large clusters always the same number, as many plays begin alike there."""
    if agents >= LARGE:
        return (agents - 1, agents)
    return (agents,) if seed % 4 == 3 and agents > 2 else ()


def _boxes(kind: str, agents: int, rng: random.Random) -> tuple[int, ...]:
    numbers = range(1, agents + 1)
    if kind == "split":
        return tuple(sorted(rng.sample(numbers, rng.randint(1, agents - 1))))
    if kind in ("cut", "cut one way", "remove"):
        return tuple(rng.sample(numbers, 2))
    many = (
        rng.choice([1, 1, 1, 2, max(agents // 3, 1)]) if kind in ("kill", "power", "freeze", "start") else 1
    )
    if kind == "start":
        many = agents if rng.random() < 0.5 else many
    return tuple(sorted(rng.sample(numbers, min(many, agents))))
