"""Whom a device asks about a suspect."""

from __future__ import annotations

from edgepart.agent.cluster.membership.suspects import MAX_ASKED, MAX_ASKED_OF_MANY, choose_asked
from edgepart.agent.cluster.state.events import LinkDown, SendMessage
from edgepart.agent.wire.control import AskAbout
from tests.agent.cluster.membership.test_failure_detector import crowd

A, B = "000000000000000a", "000000000000000b"


def test_of_many_suspects_each_is_asked_about_less() -> None:
    alive = [f"{number:016x}" for number in range(50)]
    assert len(choose_asked(A, B, alive)) == MAX_ASKED
    assert len(choose_asked(A, B, alive, suspects=MAX_ASKED + 1)) == MAX_ASKED_OF_MANY
    assert choose_asked(A, B, alive[:2], suspects=MAX_ASKED + 1) == alive[:2]
    assert len({tuple(choose_asked(node, B, alive)) for node in alive}) > 10


def test_of_many_only_some_are_asked_and_others_about_each() -> None:
    core = crowd(40)
    asked = []
    for n in (5, 6, 7, 8):
        effects = core.handle(LinkDown(f"{n:016x}"), 0.1)
        asked.append(
            {e.node for e in effects if isinstance(e, SendMessage) and e.message == AskAbout(f"{n:016x}")}
        )
    assert all(len(some) == MAX_ASKED for some in asked)
    assert len(set().union(*asked)) > 2 * MAX_ASKED
