"""Agents' links, and joining, through a real mosquitto."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import numpy as np
import pytest
from benchmarks.mosquitto import Mosquitto, program
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID

from edgepart.agent.admission import joining
from edgepart.agent.mqtt.broker import Broker, parse_broker
from edgepart.agent.mqtt.carrier import BrokerCarrier, JoinerCarrier, root_of
from edgepart.agent.mqtt.presence import Present, read_present
from edgepart.agent.mqtt.session import Session, SessionOptions
from edgepart.agent.net.sightings import AgentHint
from edgepart.agent.security import certificates, identity, tokens
from edgepart.agent.wire.address import Address, mqtt_address
from edgepart.agent.wire.frames import Frame
from edgepart.planner.errors import Unavailable
from tests.agent.net.linked import BOUND_S, Station
from tests.agent.security.test_identity import NOW, admit
from tests.waiting import eventually

Identities = list[identity.Identity]
SOON_S = 2.0
"""By then even a busy machine has been told what is wrong."""


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Identities:
    root = tmp_path_factory.mktemp("members")
    first = identity.create_cluster(root / "0", NOW)
    return [first, admit(first, root / "1")]


@contextmanager
def present(
    who: identity.Identity, broker: Broker, on_join: object = None
) -> Iterator[tuple[Station, list[AgentHint]]]:
    """An agent's transport at the broker, and whom it was told of."""
    seen: list[AgentHint] = []
    reach = BrokerCarrier(broker, who.fingerprint, who.node_id, seen.append)
    station = Station(who, on_join=on_join, carrier=reach.tunnels)  # type: ignore[arg-type]
    reach.start(who.node_id, "pi", "0", lambda: [station.address])
    try:
        yield station, seen
    finally:
        station.transport.stop(0.5)
        reach.stop()


@pytest.fixture
def pair(members: Identities, mosquitto: Mosquitto) -> Iterator[list[Station]]:
    """Two agents that found each other at the broker, linked."""
    with ExitStack() as stack:
        broker = parse_broker(mosquitto.url)
        (a, seen), (b, _) = (stack.enter_context(present(who, broker)) for who in members)
        eventually(lambda: seen)
        a.transport.connect(b.node_id, seen[0].addresses)
        a.until(lambda: bool(a.links))
        b.until(lambda: bool(b.links))
        yield [a, b]


def test_a_link_carries_frames_of_all_sizes_both_ways_in_order(pair: list[Station]) -> None:
    a, b = pair
    rng = np.random.default_rng(0)
    sent = [rng.integers(0, 256, size, np.uint8) for size in (0, 1, 16_385, 100_000, 3, 5_000_000, 0, 7)]
    for one, other in ((a, b), (b, a)):
        for number, payload in enumerate(sent):
            one.transport.send(other.node_id, "data", Frame("x", {"n": number}, (payload.data,)))
        other.until(lambda other=other: len(other.frames) == len(sent))  # type: ignore[misc]
        assert [frame.header["n"] for _, _, frame in other.frames] == list(range(len(sent)))
        assert all(bytes(f.body) == s.tobytes() for (_, _, f), s in zip(other.frames, sent, strict=True))


def test_a_reader_that_is_slow_holds_up_its_sender_and_nothing_is_lost(pair: list[Station]) -> None:
    a, b = pair
    go_on = threading.Event()

    def handle(*_: object) -> None:
        go_on.wait(BOUND_S)

    b.handle = handle
    payload = bytes(1_000_000)
    for number in range(40):
        a.transport.send(b.node_id, "data", Frame("x", {"n": number}, (payload,)))
    a.transport.send(b.node_id, "control", Frame("first", {}))
    b.until(lambda: any(frame.kind == "first" for _, _, frame in b.frames))
    go_on.set()
    b.until(lambda: len(b.frames) == 41)


def test_a_link_ends_with_the_broker_and_comes_back_with_it(
    pair: list[Station], mosquitto: Mosquitto
) -> None:
    a, b = pair
    mosquitto.kill()
    a.until(lambda: (b.node_id, False) in a.changes())
    b.until(lambda: (a.node_id, False) in b.changes())
    with pytest.raises(Unavailable, match="no connection to the broker"):
        a.transport.connect(b.node_id, [b.address])
    mosquitto.start()

    def linked() -> bool:
        try:
            return bool(a.transport.connect(b.node_id, [b.address]))
        except Unavailable:
            return False

    eventually(linked)
    a.transport.send(b.node_id, "data", Frame("again", {}))
    b.until(lambda: bool(b.frames))


def test_an_agent_that_stops_ends_its_links_at_once(members: Identities, mosquitto: Mosquitto) -> None:
    broker = parse_broker(mosquitto.url)
    with present(members[0], broker) as (a, seen):
        with present(members[1], broker) as (b, _):
            eventually(lambda: seen)
            a.transport.connect(b.node_id, [b.address])
        a.until(lambda: (members[1].node_id, False) in a.changes())
        with pytest.raises(Unavailable, match=r"nobody of that id|has left"):
            a.transport.connect(members[1].node_id, [mqtt_address(members[1].node_id)])


class Forger:
    """A client of the broker that is no member: says that agents are gone, with what it read of them."""

    def __init__(self, root: str) -> None:
        self.read: dict[str, Present] = {}
        self._root = root

    def topics(self) -> list[str]:
        return [f"{self._root}/presence/+"]

    def took(self, topic: str, payload: bytes, retained: bool) -> None:
        present = read_present(topic, payload)
        if present.addresses:
            self.read[present.node] = present

    def connected(self) -> None: ...
    def disconnected(self, why: str) -> None: ...
    def unheard(self, message_id: int) -> None: ...
    def tick(self) -> None: ...
    def ready(self, descriptor: int, events: int) -> None: ...
    def poll_events(self) -> dict[int, int]:
        return {}

    def forge(self, session: Session) -> None:
        for node, said in self.read.items():
            session.publish(f"{self._root}/presence/{node}", said.gone.encode(), qos=1, retain=True)


def test_who_says_that_others_are_gone_ends_no_link(
    pair: list[Station], members: Identities, mosquitto: Mosquitto
) -> None:
    a, b = pair
    forger = Forger(root_of(members[0].fingerprint))
    session = Session(parse_broker(mosquitto.url), "forger", None)
    session.start([forger])
    session.await_up(BOUND_S)
    eventually(lambda: len(forger.read) == 2)
    for number in range(20):
        session.post(lambda: forger.forge(session))
        a.transport.send(b.node_id, "data", Frame("x", {"n": number}))
        b.transport.send(a.node_id, "data", Frame("x", {"n": number}))
        for station in pair:
            station.until(lambda station=station, count=number + 1: len(station.frames) == count)  # type: ignore[misc]
    session.stop()
    assert not [up for station in pair for _, up in station.changes() if not up]


def test_a_device_joins_through_the_broker_alone(mosquitto: Mosquitto, tmp_path: Path) -> None:
    first = identity.create_cluster(tmp_path / "first", NOW)
    keeper = joining.Doorkeeper(first, list, clock=lambda: NOW)
    token = tokens.create(tmp_path / "first", ttl_s=60, uses=1, now=NOW)
    broker = parse_broker(mosquitto.url)
    with present(first, broker, keeper) as (a, _), JoinerCarrier(broker, first.fingerprint) as visit:
        joined = joining.join(token, tmp_path / "b", (), find=visit.find, reach=visit.dial)
    assert joined.first_members == (a.address,)
    assert joined.fingerprint == first.fingerprint


def test_visitors_are_told_what_is_wrong_with_the_broker(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        with (
            pytest.raises(Unavailable, match=f"mqtt://127.0.0.1:{port}"),
            JoinerCarrier(Broker("127.0.0.1", port), "0" * 64, 0.3),
        ):
            pass
    with (
        pytest.raises(Unavailable, match="refused"),
        JoinerCarrier(Broker("127.0.0.1", port), "0" * 64, SOON_S),
    ):
        pass


def test_a_wrong_password_is_said(tmp_path: Path) -> None:
    if program() is None:
        pytest.skip("mosquitto is not installed")
    with Mosquitto(tmp_path, ["allow_anonymous false"]) as broker:
        known = parse_broker(broker.url.replace("//", "//pi:wrong@"))
        with pytest.raises(Unavailable, match="refuses this agent"), JoinerCarrier(known, "0" * 64, 2.0):
            pass


def test_where_topics_may_not_be_read_nobody_is_found(tmp_path: Path) -> None:
    if program() is None:
        pytest.skip("mosquitto is not installed")
    (tmp_path / "acl").write_text("topic read nothing\n")
    (tmp_path / "acl").chmod(0o700)
    with (
        Mosquitto(tmp_path, ["allow_anonymous true", f"acl_file {tmp_path / 'acl'}"]) as broker,
        JoinerCarrier(parse_broker(broker.url), "0" * 64, 3.0) as visit,
    ):
        assert visit.find("0" * 64, 0.1) == ()


def certificate(folder: Path) -> Path:
    """Of 127.0.0.1, signed by itself; with its key beside it."""
    key = certificates.new_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")])
    at = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(at - timedelta(days=1))
        .not_valid_after(at + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "broker.key").write_bytes(certificates.key_pem(key))
    (folder / "broker.pem").write_bytes(certificates.pem(made))
    return folder / "broker.pem"


def test_a_link_through_a_broker_that_speaks_tls(members: Identities, tmp_path: Path) -> None:
    if program() is None:
        pytest.skip("mosquitto is not installed")
    pem = certificate(tmp_path)
    settings = ["allow_anonymous true", f"certfile {pem}", f"keyfile {pem.with_suffix('.key')}"]
    with Mosquitto(tmp_path, settings) as mosquitto, ExitStack() as stack:
        url = mosquitto.url.replace("mqtt:", "mqtts:")
        known = parse_broker(url, ca=pem)
        (a, seen), (b, _) = (stack.enter_context(present(who, known)) for who in members)
        eventually(lambda: seen)
        a.transport.connect(b.node_id, [b.address])
        a.transport.send(b.node_id, "data", Frame("x", {}, (bytes(3_000_000),)))
        b.until(lambda: bool(b.frames))
        assert len(b.frames[0][2].body or b"") == 3_000_000


# paho leaves the socket of a failed handshake to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_broker_that_the_ca_does_not_know_is_told_nothing(tmp_path: Path) -> None:
    if program() is None:
        pytest.skip("mosquitto is not installed")
    pem = certificate(tmp_path)
    settings = ["allow_anonymous true", f"certfile {pem}", f"keyfile {pem.with_suffix('.key')}"]
    with Mosquitto(tmp_path, settings) as mosquitto:
        unknown = parse_broker(mosquitto.url.replace("mqtt:", "mqtts:"))
        with pytest.raises(Unavailable, match="certificate"), JoinerCarrier(unknown, "0" * 64, SOON_S):
            pass


def test_a_small_limit_of_the_broker_is_kept(members: Identities, tmp_path: Path) -> None:
    if program() is None:
        pytest.skip("mosquitto is not installed")
    with (
        Mosquitto(tmp_path, ["allow_anonymous true", "max_packet_size 20000"]) as mosquitto,
        ExitStack() as stack,
    ):
        (a, _), (b, _) = (stack.enter_context(present(who, parse_broker(mosquitto.url))) for who in members)
        addresses: list[Address] = [b.address]

        def linked() -> bool:
            try:
                return bool(a.transport.connect(b.node_id, addresses))
            except Unavailable:
                return False

        eventually(linked)
        a.transport.send(b.node_id, "data", Frame("x", {}, (bytes(300_000),)))
        b.until(lambda: bool(b.frames))
        assert len(b.frames[0][2].body or b"") == 300_000


def test_what_is_posted_to_a_session_that_has_ended_is_dropped() -> None:
    session = Session(Broker("127.0.0.1", 1), "nobody", None, SessionOptions(retry_first_s=0.01))
    session.start([])
    session.stop()
    done: list[int] = []
    session.post(lambda: done.append(1))
    assert not done
