"""The roster, made row by row, is what it would be made at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.cluster.membership.roster import Roster, make_unique_names
from edgepart.agent.cluster.state.events import Member
from edgepart.agent.wire.control import ALIVE

NODES = [f"{number:016x}" for number in range(6)]
NAMES = ["", "pi", "nas", "pi-0000"]


def row(node: str, name: str) -> Member:
    return Member(node, name, "boot", ALIVE, (), "", "")


@given(
    st.lists(st.tuples(st.sampled_from(NODES), st.sampled_from([*NAMES, None]), st.booleans()), max_size=30)
)
def test_it_is_what_all_of_it_anew_would_be(changes: list[tuple[str, str | None, bool]]) -> None:
    roster, inside = Roster(), dict[str, str]()
    for node, name, look in changes:
        roster.touch(node, name)
        if name is None:
            inside.pop(node, None)
        else:
            inside[node] = name
        if look:
            names = make_unique_names(inside.items())
            assert roster.members(row) == tuple(row(node, names[node]) for node in sorted(inside))


def test_rows_that_nothing_happened_to_are_not_made_again() -> None:
    roster, made = Roster(), list[str]()

    def noted(node: str, name: str) -> Member:
        made.append(node)
        return row(node, name)

    for node in NODES:
        roster.touch(node, node)
    roster.members(noted)
    made.clear()
    roster.touch(NODES[2], NODES[2])
    roster.members(noted)
    assert made == [NODES[2]]
    roster.touch(NODES[3], NODES[2])  # now two have that name, and both another one than they call themselves
    assert len({member.name for member in roster.members(noted)}) == len(NODES)
    roster.touch(NODES[3], None)
    assert [member.name for member in roster.members(noted)] == [n for n in NODES if n != NODES[3]]
