"""Orders that a person types to a running lab: "cut box-1 box-2", "freeze box-3". They call the lab and print
nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgepart.cli.local import LocalCluster
from tests.lab.hosts import LabError
from tests.lab.lab import Lab


@dataclass(frozen=True, slots=True)
class Order:
    usage: str
    least: int
    """Minimum number of words that must follow; `usage` shows how many may."""
    most: int
    obey: Callable[[Lab, LocalCluster, Sequence[str]], str | None]


def obey(lab: Lab, running: LocalCluster, line: str) -> str:
    """Obey the line and return the answer. Raises LabError if it is not an order."""
    word, *rest = line.split() or ["help"]
    order = ORDERS.get(word)
    if order is None or not order.least <= len(rest) <= order.most:
        usages = [order.usage] if order else [one.usage for one in ORDERS.values()]
        raise LabError("type one of these:\n  " + "\n  ".join(usages))
    return order.obey(lab, running, rest) or "done"


def _restart(lab: Lab, running: LocalCluster, words: Sequence[str]) -> None:
    agent = running.agents.get(words[0])
    if agent is None:
        raise LabError(f"no agent was ever on {words[0]}")
    if agent.alive:
        raise LabError(f"the agent on {words[0]} runs; kill it first")
    agent.start()


def _slow(lab: Lab, running: LocalCluster, words: Sequence[str]) -> None:
    *stations, rate = words
    lab.slow(*stations, rate=rate)


def _pace(lab: Lab, running: LocalCluster, words: Sequence[str]) -> None:
    try:
        lab.pace(words[0], float(words[1]))
    except ValueError:
        raise LabError(f"pace {words[1]!r}: give a number from 1 up") from None


def _traffic(lab: Lab, running: LocalCluster, words: Sequence[str]) -> str:
    return "\n".join(
        f"{name}: {one.sent_bytes:,} bytes sent, {one.received_bytes:,} received"
        for name, one in lab.traffic().items()
    )


ORDERS = {
    "cut": Order("cut HOST [HOST]", 1, 2, lambda lab, _, words: lab.cut(*words)),
    "cut-from": Order(
        "cut-from HOST [HOST]    one way", 1, 2, lambda lab, _, words: lab.cut(*words, one_way=True)
    ),
    "slow": Order("slow HOST [HOST] RATE", 2, 3, _slow),
    "heal": Order("heal [HOST [HOST]]", 0, 2, lambda lab, _, words: lab.heal(*words)),
    "rate": Order("rate HOST RATE", 2, 2, lambda lab, _, words: lab.set_rate(*words)),
    "pace": Order("pace HOST TIMES", 2, 2, _pace),
    "freeze": Order("freeze HOST", 1, 1, lambda lab, _, words: lab.freeze(*words)),
    "thaw": Order("thaw HOST", 1, 1, lambda lab, _, words: lab.thaw(*words)),
    "kill": Order("kill HOST", 1, 1, lambda lab, _, words: lab.kill(*words)),
    "start": Order("start HOST              its agent, after a kill", 1, 1, _restart),
    "traffic": Order("traffic", 0, 0, _traffic),
}
