"""Agents in complex networks: only IPv6, two interfaces, a bridge of containers, changing addresses, two
rooms with a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.models.builder import Builder
from benchmarks.models.model import save
from benchmarks.mosquitto import program

from edgepart.agent.wire.address import parse_address
from tests.lab.roaming import BOUND_S, roaming
from tests.lab.rooms import ROUTER, Rooms

pytestmark = pytest.mark.processes

A, B, C = "pi-a", "pi-b", "pi-c"


def hosts_of(addresses: list[str]) -> list[str]:
    return [parse_address(text)[0] for text in addresses]


@pytest.fixture
def room(possible: None) -> Iterator[Rooms]:
    with Rooms({A: [0], B: [0]}) as rooms:
        yield rooms


@pytest.mark.nightly
def test_they_find_each_other_over_ipv6_alone(room: Rooms, tmp_path: Path) -> None:
    """Link-local addresses need the interface of the dialling host."""
    for host in (A, B):
        room.run(host, "ip", "-4", "address", "flush", "dev", "eth0")
    with roaming(room, tmp_path) as agents:
        agents.add(A)
        agents.add(B)  # it joins by what mDNS announces
        agents.wait(lambda: agents.together(A, B), "both to be members")
        for host in (A, B):
            (addresses,) = agents.seen(host).values()
            assert addresses and all(at.startswith("fe80:") for at in hosts_of(addresses))


@pytest.mark.nightly
def test_the_second_interface_does_and_an_address_may_change(possible: None, tmp_path: Path) -> None:
    """The first interfaces are in different rooms, both boxes have the same bridge for containers, and the
    address of the second box changes, as with a new lease."""
    with Rooms({A: [0, 2], B: [1, 2]}) as rooms, roaming(rooms, tmp_path) as agents:
        for host in (A, B):
            rooms.run(host, "ip", "route", "del", "default")
            rooms.run(host, "ip", "link", "add", "docker0", "type", "bridge")
            rooms.run(host, "ip", "address", "add", "172.17.0.1/16", "dev", "docker0")
            rooms.run(host, "ip", "link", "set", "docker0", "up")
        agents.add(A)
        agents.add(B)
        agents.wait(lambda: agents.together(A, B), "both to be members")
        (addresses,) = agents.seen(A).values()
        before = rooms.address(B, 2)
        assert before in hosts_of(addresses)
        rooms.run(B, "ip", "address", "add", "10.81.2.77/24", "dev", "eth1")
        rooms.run(B, "ip", "address", "del", f"{before}/24", "dev", "eth1")
        rooms.run(B, "ip", "address", "replace", "10.81.2.77/24", "dev", "eth1")

        def moved() -> bool:
            hosts = hosts_of([at for known in agents.seen(A).values() for at in known])
            return "10.81.2.77" in hosts and before not in hosts

        agents.wait(moved, "pi-a to know the new address")
        agents.wait(lambda: agents.together(A, B), "both to be members again")

        def announced() -> bool:
            """Whether the new address is announced: an agent tells its cluster at once, and announces by mDNS
            later."""
            (box,) = agents.doctor(A)["boxes"]
            return bool(box["state"] == "member" and "10.81.2.77:7433" in box["addresses"])

        agents.wait(announced, "the new address to be announced")


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    b = Builder("dense")
    x = b.input("x", (1, 64))
    b.output(b.add("Relu", b.linear(x, 64, 64, gain=2.0)), "y")
    save(b.model(), tmp_path / "dense.onnx")
    return tmp_path / "dense.onnx"


@pytest.mark.nightly
@pytest.mark.skipif(program() is None, reason="mosquitto is not installed")
def test_a_broker_brings_two_rooms_together_and_may_die(possible: None, dense: Path, tmp_path: Path) -> None:
    """There is no multicast between the rooms: agents hear of the other room's agents at the broker, and
    reach them by TCP. While the broker is down everything continues; when it is back, newcomers are found."""
    configuration = tmp_path / "mosquitto.conf"
    configuration.write_text("listener 1883 0.0.0.0\nallow_anonymous true\npersistence false\nuser root\n")
    with Rooms({A: [0], B: [1], C: [1]}) as rooms:
        # Each room has its own address of the broker.
        urls = {
            host: ("--mqtt", f"mqtt://{rooms.address(ROUTER, room)}")
            for host, room in ((A, 0), (B, 1), (C, 1))
        }
        command = (str(program()), "-c", str(configuration))
        broker = rooms.start(ROUTER, *command)
        with roaming(rooms, tmp_path, "--no-mdns") as agents:
            first = agents.add(A, *urls[A])
            second = agents.add(B, *urls[B], join=urls[B])
            agents.wait(lambda: agents.together(A, B), "both rooms to be one cluster")
            deployed = first.type("deploy", str(dense), "--name", "dense", timeout_s=BOUND_S)
            assert deployed["url"]
            broker.kill()
            broker.wait()
            for agent in (first, second):  # bench exits with 1 if a request is lost
                agent.type("bench", "dense", "-n", "20", timeout_s=BOUND_S)
            assert agents.together(A, B)
            broken = next(c for c in agents.doctor(A)["checks"] if c["name"] == "broker")
            assert broken["level"] == "bad"
            rooms.start(ROUTER, *command)
            agents.add(C, *urls[C], join=urls[C])
            agents.wait(lambda: agents.together(A, B, C), "the newcomer to be found")
            agents.agents[C].type("bench", "dense", "-n", "5", timeout_s=BOUND_S)
            assert {box["state"] for box in agents.doctor(A)["boxes"]} == {"member"}
