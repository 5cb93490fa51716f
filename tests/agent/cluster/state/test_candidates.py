"""Candidates: the law of shares, what an entry becomes when a user tries, promotes or gives up, and how maps merge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.agent.cluster.state.candidates import (
    draw_of_sequence,
    find_misfits,
    goes_to_candidate,
    over,
    share_of,
)
from edgepart.agent.cluster.state.deployments import DeploymentMap, from_json, to_json
from edgepart.agent.cluster.state.model_versions import number_of
from edgepart.agent.wire.control import Deployment, Standing, Version
from edgepart.agent.wire.inference import NO_EPOCH, DeployOptions
from edgepart.agent.wire.trials import TrialShare
from edgepart.planner.errors import UsageError
from edgepart.planner.plans.plan import ValueInfo

NONE = DeployOptions()
TEN, SHADOW = TrialShare(10), TrialShare(shadow=True)


def tried(share: TrialShare = TEN, keep: int = 1) -> DeploymentMap:
    """net serves m1, and m2 is its candidate."""
    here = DeploymentMap()
    here.put("a", "net", "m1", 10, DeployOptions(keep=keep))
    here.propose("a", "net", "m2", 20, DeployOptions(keep=keep), None, share)
    return here


def standing(entry: Deployment, *, acknowledged: bool = True) -> dict[str, Standing]:
    told = Standing(1, entry.name, entry.version, "serving", "", acknowledged, NO_EPOCH, ())
    return {entry.name: told}


# The law of shares


@given(st.integers(0, 100), st.integers(1, 40))
def test_any_evenly_spread_draws_give_the_candidate_its_share(percent: int, each: int) -> None:
    draws = [(n + 0.5) / (100 * each) for n in range(100 * each)]
    assert sum(goes_to_candidate(percent, draw) for draw in draws) == percent * each


def test_all_steps_of_a_sequence_go_one_way_and_a_larger_share_moves_none_back() -> None:
    ids = [f"client-{n}" for n in range(4000)]
    draws = {one: draw_of_sequence("net", one) for one in ids}
    assert all(0 <= draw < 1 for draw in draws.values())
    assert draws == {one: draw_of_sequence("net", one) for one in reversed(ids)}
    sets = [{one for one in ids if goes_to_candidate(share, draws[one])} for share in (0, 10, 25, 60, 100)]
    assert all(less <= more for less, more in pairwise(sets))
    assert sets[0] == set() and sets[-1] == set(ids)
    assert 850 < len(sets[2]) < 1150, "a quarter of 4,000, within five deviations"
    assert draw_of_sequence("other", ids[0]) != draws[ids[0]], (
        "deployments do not have the same clients in it"
    )


@pytest.mark.parametrize(("percent", "shadow"), [(-1, False), (101, False), (1, True)])
def test_no_share_that_cannot_be_meant(percent: int, shadow: bool) -> None:
    with pytest.raises(UsageError, match="Nothing was changed"):
        TrialShare(percent, shadow)


# Entries


def test_a_candidate_leaves_its_parent_as_it_is_and_takes_the_next_number() -> None:
    here = DeploymentMap()
    parent = here.put("a", "net", "m1", 10, NONE)
    entry = here.propose("b", "net", "m2", 20, DeployOptions(text=True), NONE, TEN)
    assert (entry.name, entry.model, entry.number, entry.kept, entry.asked) == (
        "net.candidate",
        "m2",
        2,
        (),
        NONE,
    )
    assert share_of(entry) == TEN and share_of(parent) is None
    assert here.get("net") == parent and here.candidate("net") == entry
    assert from_json(to_json(here)) == tuple(here)


def test_another_share_is_no_new_version_and_wins_everywhere() -> None:
    here = tried()
    there = DeploymentMap(here)
    before = here.candidate("net")
    after = here.set_share("b", "net", SHADOW)
    assert before is not None and after.version == before.version, "a new version would get a new plan"
    assert there.merge([after]) == (after,) and there.merge([before]) == ()
    assert share_of(after) == SHADOW
    same = here.propose("a", "net", "m2", 20, NONE, None, TrialShare(40))
    assert (same.version, share_of(same)) == (before.version, TrialShare(40)), "deploying the same again"
    other = here.propose("a", "net", "m2", 20, DeployOptions(axis="height"), None, TEN)
    assert other.version > before.version and other.number == 3, "other options are another candidate"


def test_a_promoted_candidate_hands_its_number_over_and_is_then_over() -> None:
    here = tried(keep=2)
    trial = here.candidate("net")
    assert trial is not None
    promoted = here.promote("b", "net")
    assert (promoted.model, promoted.model_bytes, promoted.number, promoted.newest) == ("m2", 20, 2, 2)
    assert [(one.number, one.model) for one in promoted.kept] == [(1, "m1")]
    assert here.promote("b", "net") == promoted, "asked again, it is no further version"
    assert over(here, standing(promoted, acknowledged=False)) == [] == over(here, {})
    assert over(here, standing(replace(promoted, version=Version(9, "x")))) == []
    assert over(here, standing(promoted)) == [trial]
    here.delete("c", trial.name)
    assert over(here, standing(promoted)) == []
    assert here.roll_back("a", "net").model == "m1"
    assert here.put("a", "net", "m3", 1, NONE).number == 3


def test_a_promotion_that_fails_can_be_tried_again() -> None:
    here = tried()
    before = here.get("net")
    assert before is not None
    here.promote("a", "net")
    again = here.restore("a", before)
    assert (again.model, number_of(again)) == ("m1", 1)
    assert over(here, standing(again)) == [], "the candidate stays"
    assert here.promote("a", "net").number == 2, "it is the same model, so it keeps its number"


def test_a_number_that_others_gave_meanwhile_is_not_given_twice() -> None:
    """On the other side of a split."""
    here = tried()
    there = DeploymentMap([entry for entry in here if entry.name == "net"])
    there.put("c", "net", "m9", 1, NONE)
    here.merge(there)
    assert here.promote("a", "net").number == 3
    trial = here.candidate("net")
    assert trial is not None and over(here, standing(here.list_live()[0])) == [trial]


def test_with_the_parent_goes_the_candidate_and_never_comes_another_way() -> None:
    here = tried()
    behind = DeploymentMap(here)
    tombstones = here.undeploy("b", "net")
    assert [(one.name, one.deleted) for one in tombstones] == [("net", True), ("net.candidate", True)]
    assert here.list_live() == []
    assert behind.merge(tombstones) == tombstones and behind == here
    assert here.put("a", "net", "m3", 1, NONE).number == 3, "2 was the candidate's"
    assert here.candidate("net") is None


def test_a_candidate_whose_parent_went_where_nobody_knew_it_is_over() -> None:
    here = tried()
    trial = here.candidate("net")
    here.delete("c", "net")  # as a member of an earlier release does it
    assert over(here, {}) == [trial]
    assert over([one for one in here if one.name != "net"], {}) == [], "its parent may be told later"


def test_a_discarded_candidates_number_is_not_given_again() -> None:
    here = tried()
    here.delete("a", "net.candidate")
    assert here.propose("a", "net", "m3", 1, NONE, None, TEN).number == 3
    here.delete("a", "net.candidate")
    assert here.put("a", "net", "m4", 1, NONE).number == 4


actions = st.tuples(
    st.sampled_from(["put", "propose", "share", "promote", "end", "discard", "undeploy", "back", "fail"]),
    st.sampled_from("uvw"),
    st.integers(0, 2),
)


@given(st.lists(actions, max_size=14))
@settings(max_examples=300)
def test_no_number_stands_for_two_models_whatever_users_do(steps: list[tuple[str, str, int]]) -> None:
    here, given_to = DeploymentMap(), dict[int, tuple[str, DeployOptions]]()
    for what, model, keep in steps:
        before, trial = here.get("net"), here.candidate("net")
        options = DeployOptions(keep=keep)
        try:
            if what == "put":
                here.put("a", "net", model, 1, options)
            elif what == "propose":
                here.propose("a", "net", model, 1, options, None, TEN)
            elif what == "share":
                here.set_share("a", "net", TrialShare(keep))
            elif what == "promote":
                here.promote("a", "net")
            elif what == "end" and before is not None:
                for entry in over(here, standing(before)):
                    here.delete("a", entry.name)
            elif what == "discard":
                here.delete("a", "net.candidate")
            elif what == "undeploy":
                here.undeploy("a", "net")
            elif what == "back":
                here.roll_back("a", "net")
            elif what == "fail" and before is not None:
                here.restore("a", before)
        except UsageError:
            assert (here.get("net"), here.candidate("net")) == (before, trial)
        if what in ("propose", "share", "discard"):
            assert here.get("net") == before, "the parent is not touched"
        for entry in here.list_live():
            known = given_to.setdefault(number_of(entry), (entry.model, entry.options))
            assert known == (entry.model, entry.options)
        assert from_json(to_json(here)) == tuple(here)


# Refusals


def test_what_cannot_be_tried_changes_nothing() -> None:
    here = tried()
    before = list(here)
    attempts: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: here.put("a", "net", "m3", 1, NONE), "has a candidate, version 2"),
        (lambda: here.put("a", "net.candidate", "m3", 1, NONE), "are those of candidates"),
        (lambda: here.put("a", "x.candidate", "m3", 1, NONE), "are those of candidates"),
        (lambda: here.propose("a", "net.candidate", "m3", 1, NONE, None, TEN), "is a candidate itself"),
        (lambda: here.propose("a", "none", "m3", 1, NONE, None, TEN), "no deployment 'none'"),
        (lambda: here.promote("a", "none"), "no deployment 'none'"),
        (lambda: here.set_share("a", "net.candidate", TEN), "'net.candidate' has no candidate"),
    )
    for refused, why in attempts:
        with pytest.raises(UsageError, match=why):
            refused()
        assert list(here) == before
    here.put("a", "n" * 119, "m", 1, NONE)
    with pytest.raises(UsageError, match="118 at most"):
        here.propose("a", "n" * 119, "m3", 1, NONE, None, TEN)
    here.set_aside("a", "net.candidate", "m2", "ends its process")
    with pytest.raises(UsageError, match="set aside: its model ends its process"):
        here.promote("a", "net")


def test_a_deployment_that_has_the_candidates_name_already_is_left_alone() -> None:
    here = tried()
    (stranger,) = (replace(entry, candidacy=None) for entry in here if entry.name == "net.candidate")
    there = DeploymentMap([here.list_live()[0], stranger])
    with pytest.raises(UsageError, match="which is no candidate"):
        there.propose("a", "net", "m3", 1, NONE, None, TEN)
    assert there.candidate("net") is None and there.put("a", "net.candidate", "m3", 1, NONE).number == 3


@given(st.permutations(range(4)))
def test_merging_gives_the_same_candidate_in_any_order(order: list[int]) -> None:
    here = tried()
    entries = [here.candidate("net"), here.set_share("b", "net", SHADOW), here.set_share("a", "net", TEN)]
    entries.append(replace(entries[-1], candidacy=None))  # type: ignore[type-var]
    there = DeploymentMap()
    for number in order:
        there.merge([entries[number]])  # type: ignore[list-item]
    assert there.candidate("net") == here.candidate("net")


# What fits


@pytest.mark.parametrize(
    ("there", "found"),
    [
        ([ValueInfo("x", "float", (9, 4))], []),
        ([ValueInfo("x", "float", None)], []),
        ([ValueInfo("x", "double", (1, 4))], ["input 'x' is double and not float"]),
        ([ValueInfo("x", "float", (4,))], ["input 'x' has 1 axes and not 2"]),
        ([ValueInfo("z", "float", (1, 4))], ["input 'x' is missing", "input 'z' is new"]),
    ],
)
def test_requests_for_the_parent_have_to_fit(there: list[ValueInfo], found: list[str]) -> None:
    assert find_misfits([ValueInfo("x", "float", (1, 4))], there, "input") == found
