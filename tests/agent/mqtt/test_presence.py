"""Presence records: what agents say of themselves, what others write in their place, and who is told what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.mqtt.presence import AGAIN_TICKS, Presence, Present, read_present, will
from edgepart.agent.net.sightings import AgentHint
from edgepart.agent.security import identity
from edgepart.agent.wire.address import Address
from edgepart.planner.errors import FrameError
from tests.agent.mqtt.fakes import FakeBroker, FakeSession
from tests.agent.security.test_identity import NOW

ROOT = "edgepart/0123456789abcdef"
A, B = "a" * 16, "b" * 16
OLD, NEW = "1" * 16, "2" * 16
TOPIC = f"{ROOT}/presence/{B}"
RECORD: dict[str, Any] = {
    "v": 1,
    "node": B,
    "boot": NEW,
    "name": "pi-b",
    "version": "0.1.0",
    "addresses": ["10.0.0.2:7433", "[fe80::2]:7433", f"mqtt:{B}"],
}


class Listener:
    """An agent's presence on a broker in memory, and what it was told."""

    def __init__(self, broker: FakeBroker, me: Present | None = None) -> None:
        self.seen: list[AgentHint] = []
        self.gone: list[str] = []
        self.session = FakeSession(broker)
        self.presence = Presence(
            self.session,  # type: ignore[arg-type]
            ROOT,
            "0123456789abcdef" * 4,
            self.seen.append,
            lambda node, why: self.gone.append(node),
        )
        if me is not None:
            self.presence.say(lambda: me)
        self.session.start(self.presence)
        broker.settle()


def record(node: str, boot: str, *addresses: Address) -> Present:
    return Present(node, boot, f"pi-{node[0]}", "0.1.0", addresses or (("10.0.0.2", 7433),))


def test_a_record_is_read_as_it_was_written() -> None:
    present = read_present(TOPIC, json.dumps(RECORD).encode())
    assert present.addresses == (("10.0.0.2", 7433), ("fe80::2", 7433), (f"mqtt:{B}", 0))
    assert read_present(TOPIC, present.encode()) == present
    assert not read_present(TOPIC, present.gone.encode()).addresses


def test_what_is_published_is_public(tmp_path: Path) -> None:
    """By a member that has all that there is to tell."""
    me = identity.create_cluster(tmp_path, NOW)
    broker = FakeBroker()
    Listener(broker, record(me.node_id, NEW))
    (payload,) = broker.retained.values()
    assert json.loads(payload).keys() == RECORD.keys()
    files = [path.read_text() for path in me.directory.iterdir() if path.name not in ("ca.pem", "node.pem")]
    assert len(files) >= 4
    for text in (line for file in files for line in file.splitlines() if len(line) > 8):
        assert text not in payload.decode()


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"v": None},
        {"node": A},
        {"node": "b"},
        {"boot": ""},
        {"boot": 7},
        {"name": None},
        {"name": "two\nlines"},
        {"version": ["0"]},
        {"addresses": "10.0.0.2:7433"},
        {"addresses": ["10.0.0.2"]},
        {"addresses": ["10.0.0.2:70000"]},
        {"addresses": [None]},
        {"addresses": ["mqtt:../../x"]},
        {"addresses": ["10.0.0.2:1"] * 17},
    ],
)
def test_a_record_that_is_not_as_it_should_be_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(FrameError):
        read_present(TOPIC, json.dumps(RECORD | change).encode())


@pytest.mark.parametrize("payload", [b"\xff", b"{", b"[]", b"null", b"1", b"[" * 4000, b" " * 5000])
def test_what_is_no_record_is_refused(payload: bytes) -> None:
    with pytest.raises(FrameError):
        read_present(TOPIC, payload)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(list(RECORD)), json_values))
def test_whatever_others_write_is_a_record_or_a_stated_error(change: dict[str, Any]) -> None:
    try:
        read_present(TOPIC, json.dumps(RECORD | change).encode())
    except FrameError as error:
        assert str(error)


def test_who_comes_later_reads_who_is_there_and_each_hears_of_the_other_only() -> None:
    broker = FakeBroker()
    a = Listener(broker, record(A, OLD))
    b = Listener(broker, record(B, NEW))
    assert [(seen.node_id, seen.ours) for seen in a.seen] == [(B, True)]
    assert {seen.node_id for seen in b.seen} == {A}
    assert b.seen[0].addresses == (("10.0.0.2", 7433),)
    silent = Listener(broker)
    assert {seen.node_id for seen in silent.seen} == {A, B}


def test_a_will_and_a_goodbye_tell_that_an_agent_is_gone_once() -> None:
    broker = FakeBroker()
    a, b = Listener(broker, record(A, OLD)), Listener(broker, record(B, NEW))
    b.presence.goodbye()
    b.session.is_up = False
    broker.settle()
    assert a.gone == [B]
    last = will(ROOT, B, NEW)
    a.session.hand(last.topic, last.payload, False)
    assert a.gone == [B]


def test_an_earlier_starts_will_ends_nothing() -> None:
    broker = FakeBroker()
    a, _ = Listener(broker, record(A, OLD)), Listener(broker, record(B, NEW))
    late = will(ROOT, B, OLD)
    a.session.hand(late.topic, late.payload, False)
    assert a.gone == []


def test_an_agent_that_started_anew_is_gone_and_seen() -> None:
    broker = FakeBroker()
    a = Listener(broker, record(A, OLD))
    for boot in (OLD, OLD, NEW):
        a.session.hand(TOPIC, record(B, boot).encode(), False)
    assert a.gone == [B] and len(a.seen) == 3


def test_a_late_will_of_its_own_is_contradicted_and_a_copy_of_it_is_not() -> None:
    broker = FakeBroker()
    b = Listener(broker, record(B, NEW))
    late = will(ROOT, B, OLD)
    broker.queue.append((late.topic, late.payload, True))
    broker.settle()
    assert read_present(TOPIC, broker.retained[TOPIC]).boot == NEW
    b.session.hand(TOPIC, record(B, OLD).encode(), False)
    assert not broker.queue and not b.seen


def test_hints_are_told_again_and_new_addresses_are_published() -> None:
    broker = FakeBroker()
    a = Listener(broker)
    addresses: list[Address] = [("10.0.0.2", 7433)]
    b = Listener(broker)
    b.presence.say(lambda: record(B, NEW, *addresses))
    b.presence.connected()
    broker.settle()
    assert len(a.seen) == 1
    addresses.append(("10.1.0.2", 7433))
    for _ in range(AGAIN_TICKS):
        a.presence.tick()
        b.presence.tick()
    broker.settle()
    assert [len(seen.addresses) for seen in a.seen] == [1, 1, 2]


@pytest.mark.parametrize(
    "topic", [f"{ROOT}/to/{B}/x", f"{ROOT}/presence/{B}/more", "edgepart/other/presence/" + B]
)
def test_other_topics_are_no_presence(topic: str) -> None:
    a = Listener(FakeBroker())
    a.presence.took(topic, json.dumps(RECORD).encode(), False)
    assert a.presence._known.keys() <= {B} and (topic.startswith(f"{ROOT}/presence") or not a.seen)


def test_no_more_records_are_kept_than_a_bound() -> None:
    a = Listener(FakeBroker())
    for number in range(1100):
        node = f"{number:016x}"
        a.presence.took(f"{ROOT}/presence/{node}", record(node, NEW).encode(), False)
    assert len(a.seen) == 1024
