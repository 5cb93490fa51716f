"""Which drifts a deployment is planned with: taken over when they settled, ever more seldom, and let go in time."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.cluster.leader.drift_policy import DriftPolicy, DriftPolicyTiming, Drifts
from edgepart.agent.cluster.state.drift import DriftBook, round_to_step
from edgepart.agent.wire.control import Drift, Version

TIMING = DriftPolicyTiming()
FIRST, SECOND = Version(1, "a"), Version(2, "a")


@dataclass
class Story:
    nodes: tuple[str, ...] = ("a", "b")
    serving: tuple[str, ...] | None = ("a", "b")
    version: Version = FIRST
    now: float = 0.0
    book: DriftBook = field(default_factory=DriftBook)
    refining: DriftPolicy = field(default_factory=DriftPolicy)

    def tell(self, node: str, factor: float) -> None:
        self.book.learn(node, Drift("net", factor), self.now)

    def look(self, wait_s: float = 0.0) -> Drifts:
        self.now += wait_s
        self.refining.look(self.book, "net", self.version, self.nodes, self.serving, self.now)
        return self.refining.drifts(self.nodes)

    def next(self) -> float:
        """Seconds until it wants to be woken; waits for that."""
        before, self.now = self.now, self.refining.wake_at(self.now)
        return self.now - before


def test_news_count_when_they_have_settled() -> None:
    story = Story()
    assert story.look() == ()
    story.tell("a", 2.0)
    assert story.look() == ()
    story.tell("b", 4.0)
    assert story.look(TIMING.settle_s / 2) == ()
    assert story.next() == TIMING.settle_s / 2
    assert story.look() == (("a", 2.0), ("b", 4.0))
    story.tell("a", 1.0)
    story.look()
    story.next()
    assert story.look() == (("b", 4.0),)


def test_what_passes_before_it_settled_is_nothing() -> None:
    story = Story()
    story.look()
    story.tell("a", 2.0)
    story.look()
    story.tell("a", 1.0)
    story.look()
    assert story.refining.wake_at(story.now) == inf
    assert story.look(1000.0) == ()


def test_a_plan_on_its_way_is_not_disturbed_and_a_first_one_knows_everything() -> None:
    story = Story(serving=None)
    story.tell("a", 2.0)
    assert story.look() == (("a", 2.0),)
    story.tell("a", 4.0)
    assert story.look(1000.0) == (("a", 2.0),)
    story.version = SECOND
    assert story.look() == (("a", 4.0),)


def test_a_device_that_comes_new_counts_as_it_drifts_and_the_rest_stays() -> None:
    story = Story(nodes=("a",), serving=None)
    story.look()
    story.tell("a", 2.0)
    story.tell("b", 4.0)
    story.nodes = ("a", "b")
    assert story.look() == (("b", 4.0),)
    story.nodes = ("a",)
    assert story.look() == ()


def test_one_that_flaps_is_followed_ever_more_seldom_and_calm_forgives() -> None:
    story = Story()
    story.look()
    waits, factor = [], 1.0
    for _ in range(6):
        factor = 3.0 - factor
        story.tell("a", round_to_step(factor))
        story.look()
        waits.append(story.next())
        story.look()
    assert waits[0] == TIMING.settle_s
    assert waits[1:4] == [TIMING.wait_s * 2**n for n in range(3)]
    assert waits[4:] == [TIMING.most_wait_s] * 2
    story.now += 2 * TIMING.calm * TIMING.most_wait_s
    story.tell("a", 4.0)
    story.look()
    assert story.next() == TIMING.settle_s
    story.look()
    story.tell("a", 1.0)
    story.look()
    assert story.next() == TIMING.wait_s


def left_out() -> Story:
    """b drifted, and the plan does without it."""
    story = Story()
    story.look()
    story.tell("b", 8.0)
    story.look()
    story.next()
    assert story.look() == (("b", 8.0),)
    story.serving = ("a",)
    story.look()
    return story


def given_another_chance(story: Story) -> float:
    """Seconds until b's drift is let go."""
    began = story.now
    while story.look():
        assert story.next() < inf
    return story.now - began


def test_a_device_that_is_left_out_gets_another_chance_and_tells_how_it_is() -> None:
    story = left_out()
    assert given_another_chance(story) >= TIMING.patience_s
    story.serving = ("a", "b")
    story.tell("b", 1.0)
    assert story.look(100.0) == ()
    assert story.refining.wake_at(story.now) == inf


def test_one_that_is_as_slow_as_before_gets_the_next_chance_later() -> None:
    story = left_out()
    first = given_another_chance(story)
    story.now += 1.0
    story.tell("b", 8.0)  # as it was timed for a plan that it then got no part in
    story.look()
    story.next()
    assert story.look() == (("b", 8.0),)
    assert given_another_chance(story) >= 1.5 * first


def test_without_anything_told_since_a_chance_stays() -> None:
    story = left_out()
    given_another_chance(story)
    assert story.look(10_000.0) == ()


told = st.lists(
    st.tuples(st.floats(0.1, 200.0), st.sampled_from("ab"), st.sampled_from([0.5, 1.0, 2.0, 4.0])),
    max_size=30,
)


@given(told)
def test_whatever_is_told_searches_are_few_and_the_last_word_counts_in_the_end(
    news: list[tuple[float, str, float]],
) -> None:
    story = Story()
    before, taken = story.look(), []

    def look() -> None:
        nonlocal before
        now = story.look()
        taken.extend([story.now] if now != before else [])
        before = now

    for wait_s, node, factor in news:
        end = story.now + wait_s
        while (wake := story.refining.wake_at(story.now)) <= end:
            story.now = wake
            look()
        story.now = end
        story.tell(node, factor)
        look()
    gaps = [b - a for a, b in pairwise(taken)]
    assert all(gap > TIMING.wait_s - 1e-6 for gap in gaps)  # times are sums of floats
    story.look(TIMING.most_wait_s)
    last = {node: factor for _, node, factor in news}
    assert story.look() == tuple(sorted((node, factor) for node, factor in last.items() if factor != 1.0))
