"""What goes wrong in a run, and when: drawn from a seed before it begins, so that the same seed always has the same."""

from __future__ import annotations

import random
from dataclasses import dataclass

KINDS = {
    "kill": 6,
    "tear": 4,
    "power": 4,
    "freeze": 4,
    "slow": 2,
    "jump": 2,
    "cut one way": 3,
    "cut": 2,
    "split": 3,
    "heal": 6,
    "start": 14,
    "leave": 2,
    "wipe": 1,
    "deploy": 3,
    "undeploy": 1,
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


def schedule(seed: int, agents: int) -> Schedule:
    rng = random.Random(f"{seed} of {agents}")
    count = rng.randint(4, 14)
    faults, wiped = [], False
    for _ in range(count):
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        if kind == "wipe" and wiped:
            kind = "ask"  # with two disks lost, nothing is promised
        wiped |= kind == "wipe"
        faults.append(
            Fault(rng.choice([0.0, 0.02, 0.2, 0.6, 1.5]), kind, _boxes(kind, agents, rng), rng.random())
        )
    gone = tuple(rng.sample(range(1, agents + 1), rng.choice([0, 0, 0, 1, min(2, agents - 1)])))
    lossy = rng.choice([0.0, 0.0, 0.0, 0.03])
    return Schedule(seed, agents, lossy, rng.uniform(0.5, 2.5), tuple(faults), gone)


def _boxes(kind: str, agents: int, rng: random.Random) -> tuple[int, ...]:
    numbers = range(1, agents + 1)
    if kind == "split":
        return tuple(sorted(rng.sample(numbers, rng.randint(1, agents - 1))))
    if kind in ("cut", "cut one way"):
        return tuple(rng.sample(numbers, 2))
    many = (
        rng.choice([1, 1, 1, 2, max(agents // 3, 1)]) if kind in ("kill", "power", "freeze", "start") else 1
    )
    if kind == "start":
        many = agents if rng.random() < 0.5 else many
    return tuple(sorted(rng.sample(numbers, min(many, agents))))
