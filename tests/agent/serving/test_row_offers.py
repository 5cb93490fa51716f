"""Row offers: a device that goes on with a sequence gets nearly all rows that there are, and as few as can be travel."""

from __future__ import annotations

from itertools import chain, combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.agent.serving.row_offers import RowOffer, choose_offers, reach, rows_by_node
from edgepart.agent.wire.inference import Epoch, RowsOf
from edgepart.planner.plans.plan import KeptPiece
from tests.agent.serving.carrying import HEADS, program

OLD, NEW = ("m", Epoch(1, 1)), ("m", Epoch(1, 2))


def pieces(begin: int, end: int) -> tuple[KeptPiece, ...]:
    return program("x", (begin, end)).kept


def offer(
    device: str, node: str, position: int, heads: tuple[int, int], plan: tuple[str, Epoch] = NEW
) -> RowOffer:
    return RowOffer(plan, device, node, position, pieces(*heads))


ALL = pieces(0, HEADS)


def test_what_is_here_does_not_travel() -> None:
    own, other = offer("a", "a", 9, (0, 2)), offer("b", "b", 9, (2, 4))
    copies = offer("a", "b", 9, (0, 2)), offer("b", "c", 8, (2, 4))
    assert choose_offers(ALL, [*copies, own, other], "a", 9) == (other, own)


def test_rows_that_two_devices_have_by_two_plans_travel_once() -> None:
    offers = [
        offer("a", node, position, (0, 4), plan)
        for node, position in (("a", 20), ("b", 19))
        for plan in (OLD, NEW)
    ]
    assert choose_offers(ALL, offers, "c", 20) == (offer("a", "a", 20, (0, 4)),)


def test_a_later_plan_of_which_few_rows_are_there_is_not_preferred() -> None:
    early, late = offer("a", "a", 20, (0, 4), OLD), offer("b", "b", 3, (0, 4))
    assert choose_offers(ALL, [late, early], "c", 20) == (early,)


def test_a_copy_that_lags_behind_a_little_is_taken_in_place_of_what_would_travel() -> None:
    owner, copy = offer("a", "a", 2000, (0, 4)), offer("a", "c", 1985, (0, 4))
    assert choose_offers(ALL, [owner, copy], "c", 2000) == (copy,)
    far = offer("a", "c", 1900, (0, 4))
    assert choose_offers(ALL, [owner, far], "c", 2000) == (owner,)


def test_nothing_is_chosen_if_a_piece_is_nowhere() -> None:
    assert choose_offers(ALL, [offer("a", "a", 9, (0, 2)), offer("b", "b", 9, (3, 4))], "a", 9) == ()
    assert choose_offers(ALL, [], "a", 9) == ()


def test_every_other_node_is_asked_once_for_all_that_it_is_to_send() -> None:
    chosen = offer("b", "d", 9, (0, 1)), offer("a", "d", 9, (1, 2)), offer("c", "c", 9, (2, 4))
    assert rows_by_node(chosen, "c") == {"d": RowsOf(*NEW, ("a", "b"))}


SPANS = st.sampled_from([(0, 1), (0, 2), (1, 3), (2, 4), (3, 4), (0, 4)])
OFFERS = st.lists(
    st.builds(
        offer,
        st.sampled_from("pq"),
        st.sampled_from("abc"),
        st.integers(1, 9),
        SPANS,
        st.sampled_from([OLD, NEW]),
    ),
    max_size=6,
)


@given(OFFERS, st.integers(1, 9))
@settings(deadline=None)
def test_no_choice_has_more_rows_and_none_of_it_travels_for_nothing(
    offers: list[RowOffer], most: int
) -> None:
    """With so few rows none is read again for nothing."""
    chosen = choose_offers(ALL, offers, "a", most)
    subsets = chain.from_iterable(combinations(offers, n) for n in range(len(offers) + 1))
    of_one_plan = [those for those in subsets if len({one.plan for one in those}) == 1]
    assert reach(ALL, chosen, most) == max((reach(ALL, those, most) for those in of_one_plan), default=0)
    for one in chosen:
        if one.node != "a":
            others = [other for other in chosen if other is not one]
            assert reach(ALL, others, most) < reach(ALL, chosen, most)
