"""Weights as they arrive: sums that never count a weight twice, told not too often, and always when all are here."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.serving.arriving_weights import TELL_S, ArrivingWeights
from edgepart.planner.plans.plan import WeightRef
from edgepart.planner.region import Region


def ref(digest: str, nbytes: int) -> WeightRef:
    return WeightRef(digest, digest, digest, Region.full((nbytes,)), "uint8", (nbytes,), nbytes)


class Told:
    """What is told, by a clock that the test moves."""

    def __init__(self, *refs: WeightRef) -> None:
        self.now = 0.0
        self.sums: list[tuple[int, int]] = []
        self.weights = ArrivingWeights(
            refs, lambda here, needed: self.sums.append((here, needed)), lambda: self.now
        )


def test_it_tells_at_once_now_and_then_and_at_the_end() -> None:
    told = Told(ref("a", 10), ref("b", 30), ref("a", 10))
    assert told.sums == [(0, 40)]
    told.weights.note("b", 5)
    assert told.sums == [(0, 40)]  # too soon
    told.now = TELL_S
    told.weights.note("b", 9)
    assert told.sums[1:] == [(9, 40)]
    told.weights.note("b", 30)
    told.weights.note("a", 10)
    assert told.sums[2:] == [(40, 40)]


def test_a_weight_that_arrives_anew_is_not_counted_twice_and_others_not_at_all() -> None:
    told = Told(ref("a", 10))
    told.now = TELL_S
    for nbytes in (7, 2):  # it was broken, and begins again
        told.weights.note("a", nbytes)
        told.now += TELL_S
    told.weights.note("of-another-plan", 100)
    told.weights.note("a", 10)
    assert told.sums == [(0, 10), (7, 10), (2, 10), (10, 10)]


def test_nothing_is_told_of_a_plan_without_weights() -> None:
    told = Told()
    told.weights.note("a", 3)
    assert told.sums == []


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.data())
def test_the_last_figure_is_the_whole_whatever_the_order(sizes: list[int], data: st.DataObject) -> None:
    refs = [ref(str(number), nbytes) for number, nbytes in enumerate(sizes)]
    told = Told(*refs)
    for one in data.draw(st.permutations(refs)):
        told.weights.note(one.digest, one.nbytes)
    whole = sum(sizes)
    assert told.sums[-1:] == ([(whole, whole)] if whole else [])
    assert all(0 <= here <= needed == whole for here, needed in told.sums)
