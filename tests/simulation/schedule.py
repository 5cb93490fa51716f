"""The faults of a run and their times, drawn from a seed before it begins, so that a seed always gives the
same run."""

from __future__ import annotations

import random
from dataclasses import dataclass

LARGE = 20
"""Number of agents from which several seeds begin alike."""
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
    "sequence": 8,
}
"""Relative frequency of each kind of fault."""

WITH_TEXTS = 3
"""One seed of so many has texts. Such a run takes twice as long to simulate."""
WITHOUT_MIRRORS = 4
"""One of so many seeds that have texts has no mirrors."""
TEXTS = 0.4
"""The share of faults before which texts begin, in seeds that have texts."""
LOST = 0.5
"""The share of these after which a box is killed while they grow, and started again."""


@dataclass(frozen=True, slots=True)
class Fault:
    after_s: float
    """Virtual seconds since the fault before."""
    kind: str
    boxes: tuple[int, ...]
    """Numbers of the boxes that it hits; for a split, those of one side."""
    amount: float = 0.0
    """Strength of the fault, from 0 to 1. Its meaning depends on the kind."""


@dataclass(frozen=True, slots=True)
class Schedule:
    seed: int
    agents: int
    lossy: float
    first_s: float
    """Virtual seconds until the first deployment."""
    faults: tuple[Fault, ...]
    gone: tuple[int, ...]
    """Boxes that are off at the end."""
    texts: bool
    """Whether clients ask for texts too."""
    mirrors: bool
    """Whether plans of decoders may have mirrors."""
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
            kind = "ask"  # nothing is promised if two disks are lost or about to be
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
    first_s, texts = rng.uniform(0.5, 2.5), seed % WITH_TEXTS == WITH_TEXTS - 1
    if texts:
        faults = _with_texts(faults, agents, rng)
    mirrors = seed // WITH_TEXTS % WITHOUT_MIRRORS != WITHOUT_MIRRORS - 1
    return Schedule(seed, agents, lossy, first_s, tuple(faults), gone, texts, mirrors, _late(seed, agents))


def _with_texts(faults: list[Fault], agents: int, rng: random.Random) -> list[Fault]:
    """The faults with texts that begin between them."""
    found = []
    for fault in faults:
        if rng.random() < TEXTS:
            found.append(
                Fault(rng.choice([0.0, 0.2, 0.6]), "text", _boxes("text", agents, rng), rng.random())
            )
            if rng.random() < LOST:
                found += _lost(agents, rng)
        found.append(fault)
    return found


def _lost(agents: int, rng: random.Random) -> list[Fault]:
    """A box that is killed and started again."""
    boxes = _boxes("text", agents, rng)
    back_s = rng.choice([0.2, 0.6, 1.5])
    return [Fault(rng.uniform(0.2, 1.2), "kill", boxes, rng.random()), Fault(back_s, "start", boxes)]


def _late(seed: int, agents: int) -> tuple[int, ...]:
    """Return the boxes that start late. In large clusters their number is fixed, because many plays begin
    alike there."""
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
