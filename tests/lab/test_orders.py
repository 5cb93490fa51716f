"""Orders that a person types to a lab, tried on a lab that only records calls."""

from __future__ import annotations

from typing import Any, cast

import pytest

from edgepart.cli.local import LocalCluster
from tests.lab.hosts import LabError
from tests.lab.lab import Lab
from tests.lab.network import Traffic
from tests.lab.orders import ORDERS, obey


class Told:
    """A stand-in for a Lab and its agents that records calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.agents = {"box-1": self}
        self.alive = False

    def __getattr__(self, name: str) -> Any:
        def call(*words: Any, **options: Any) -> None:
            self.calls.append((name, *words, *options.values()))

        return call

    def traffic(self) -> dict[str, Traffic]:
        return {"box-1": Traffic(1000, 2)}


def say(told: Told, line: str) -> str:
    return obey(cast(Lab, told), cast(LocalCluster, told), line)


@pytest.mark.parametrize(
    ("line", "call"),
    [
        ("cut box-1", ("cut", "box-1")),
        ("cut box-1 box-2", ("cut", "box-1", "box-2")),
        ("cut-from box-1 box-2", ("cut", "box-1", "box-2", True)),
        ("slow box-1 1mbit", ("slow", "box-1", "1mbit")),
        ("slow box-1 box-2 1mbit", ("slow", "box-1", "box-2", "1mbit")),
        ("heal", ("heal",)),
        ("heal box-1 box-2", ("heal", "box-1", "box-2")),
        ("rate box-1 1mbit", ("set_rate", "box-1", "1mbit")),
        ("pace box-1 2.5", ("pace", "box-1", 2.5)),
        ("freeze box-1", ("freeze", "box-1")),
        ("thaw box-1", ("thaw", "box-1")),
        ("kill box-1", ("kill", "box-1")),
        ("start box-1", ("start",)),
    ],
)
def test_orders(line: str, call: tuple[Any, ...]) -> None:
    told = Told()
    assert say(told, line) == "done"
    assert told.calls == [call]


def test_traffic_is_answered() -> None:
    assert say(Told(), "traffic") == "box-1: 1,000 bytes sent, 2 received"


@pytest.mark.parametrize(
    "line", ["", "help", "cut", "cut a b c", "pace box-1 x", "start box-2", "rate box-1"]
)
def test_what_cannot_be_done_says_what_can(line: str) -> None:
    told = Told()
    with pytest.raises(LabError):
        say(told, line)
    assert not told.calls


def test_an_agent_that_runs_is_not_started() -> None:
    told = Told()
    told.alive = True
    with pytest.raises(LabError, match="kill it first"):
        say(told, "start box-1")


def test_every_order_is_told_by_help() -> None:
    with pytest.raises(LabError) as raised:
        say(Told(), "help")
    assert all(f"\n  {word}" in str(raised.value) for word in ORDERS)
