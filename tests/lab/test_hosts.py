"""The specification of hosts: rates, sizes, names."""

from __future__ import annotations

from typing import Any

import pytest

from edgepart.planner.errors import UsageError
from tests.lab.hosts import OUTSIDE, Host, LabError, numbered, parse_rate


@pytest.mark.parametrize(
    ("text", "bytes_a_second"),
    [("1gbit", 125e6), ("100mbit", 12.5e6), ("2.5Gbit", 312.5e6), (" 8kbit ", 1000), ("8000bit", 1000)],
)
def test_rates(text: str, bytes_a_second: float) -> None:
    assert parse_rate(text) == bytes_a_second


@pytest.mark.parametrize(
    "text", ["", "fast", "-1mbit", "0mbit", "7kbit", "100", "100MB", "1e3mbit", "1gbit/s"]
)
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(LabError, match="give at least 8kbit"):
        parse_rate(text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": OUTSIDE},
        {"name": ""},
        {"name": "-pi"},
        {"name": "Pi"},
        {"name": "pi.a"},
        {"name": "a" * 33},
        {"slow": 0.5},
        {"slow": float("inf")},
        {"slow": float("nan")},
        {"rate": "some"},
        {"memory": "some"},
        {"disk": "0"},
        {"cpus": 0.0},
        {"cpus": float("nan")},
    ],
)
def test_a_host_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((LabError, UsageError)):
        Host(**{"name": "pi-a", **wrong})


def test_hosts_by_number() -> None:
    assert [host.slow for host in numbered(3, "8")] == [8, 8, 8]
    hosts = numbered(4, "4,8,8,16", rate="1gbit", memory="1G", disk="64M")
    assert [host.slow for host in hosts] == [4, 8, 8, 16]
    assert [host.name for host in hosts] == ["box-1", "box-2", "box-3", "box-4"]
    assert {(host.rate, host.memory, host.disk) for host in hosts} == {("1gbit", "1G", "64M")}


@pytest.mark.parametrize(
    ("count", "slow"), [(0, "8"), (201, "8"), (3, "4,8"), (2, "8,"), (2, "fast"), (2, "1,0")]
)
def test_hosts_that_cannot_be_numbered(count: int, slow: str) -> None:
    with pytest.raises(LabError):
        numbered(count, slow)
