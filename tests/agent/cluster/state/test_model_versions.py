"""The numbers of model versions, and what a rollback brings back: a law against a plain twin, and each refusal by hand."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.agent.cluster.state.deployments import DeploymentMap, from_json, to_json
from edgepart.agent.cluster.state.model_versions import asked_options, number_of
from edgepart.agent.wire.control import Version
from edgepart.agent.wire.inference import DeployOptions
from edgepart.planner.errors import UsageError


@dataclass
class Twin:
    """What a user believes: which models had which numbers, and in which order they served."""

    numbers: dict[int, str] = field(default_factory=dict)
    served: list[int] = field(default_factory=list)
    """Numbers in the order in which they served last; the last one serves."""

    def deploy(self, model: str, keep: int) -> None:
        number = max(self.numbers, default=0) + 1
        self.numbers[number] = model
        self.served = [*self.served, number][-keep - 1 :]

    def roll_back(self, to: int | None, keeps: dict[int, int]) -> bool:
        older = [n for n in self.served[:-1] if n < self.served[-1]] if self.served else []
        number = max(older, default=None) if to is None else to
        if number is None or number not in self.served[:-1]:
            return False
        rest = [n for n in self.served if n != number]
        self.served = [*rest, number][-keeps[number] - 1 :]
        return True


deploys = st.tuples(st.just("deploy"), st.sampled_from("uvw"), st.integers(0, 3))
rollbacks = st.tuples(st.just("rollback"), st.none() | st.integers(1, 6), st.just(0))
undeploys = st.tuples(st.just("undeploy"), st.none(), st.just(0))


@given(st.lists(deploys | rollbacks | undeploys, max_size=12))
@settings(max_examples=200)
def test_numbers_and_kept_versions_are_what_a_user_believes(steps: list[tuple[str, object, int]]) -> None:
    here, twin, keeps = DeploymentMap(), Twin(), {}
    for what, value, keep in steps:
        if what == "deploy":
            assert isinstance(value, str)
            keeps[max(twin.numbers, default=0) + 1] = keep
            twin.deploy(value, keep)
            here.put("a", "net", value, 1, DeployOptions(keep=keep))
        elif what == "undeploy":
            if twin.served:
                here.delete("a", "net")
            twin.served = []
        else:
            assert value is None or isinstance(value, int)
            if twin.served and twin.roll_back(value, keeps):
                here.roll_back("a", "net", value)
            else:
                with pytest.raises(UsageError):
                    here.roll_back("a", "net", value)
        entry = here.get("net")
        assert (entry is not None) == bool(twin.served)
        if entry is not None:
            *before, serving = twin.served
            assert (number_of(entry), entry.model) == (serving, twin.numbers[serving])
            assert [(one.number, one.model) for one in entry.kept] == [
                (n, twin.numbers[n]) for n in reversed(before)
            ]
            assert {model for model, _ in entry.models} == {twin.numbers[n] for n in twin.served}
        assert from_json(to_json(here)) == tuple(here)


def test_a_rollback_brings_back_the_options_too() -> None:
    here = DeploymentMap()
    first, asked = DeployOptions(bindings=2, text=True), DeployOptions(bindings=2)
    here.put("a", "net", "m1", 10, first, asked)
    here.put("a", "net", "m2", 20, DeployOptions(axis="height"))
    entry = here.roll_back("b", "net")
    assert (entry.model, entry.model_bytes, entry.options, asked_options(entry)) == ("m1", 10, first, asked)
    assert entry.version == Version(3, "b"), "the merge counter grows, so that the rollback wins everywhere"
    assert here.put("a", "net", "m4", 1, DeployOptions()).number == 3, "2 stands for m2 for ever"


@pytest.mark.parametrize(
    ("to", "why"),
    [
        (None, "serves version 1, and no version before it is kept; kept: 2"),
        (1, "serves version 1, and that is the version asked for"),
        (7, "version 7 is not kept; kept: 2"),
    ],
)
def test_a_rollback_to_what_is_not_kept_says_what_is(to: int | None, why: str) -> None:
    here = DeploymentMap()
    here.put("a", "net", "m1", 1, DeployOptions())
    here.put("a", "net", "m2", 1, DeployOptions())
    before = here.roll_back("a", "net")
    with pytest.raises(UsageError, match=why):
        here.roll_back("a", "net", to)
    assert here.get("net") == before
    with pytest.raises(UsageError, match="no deployment 'other'"):
        here.roll_back("a", "other")


def test_what_failed_is_taken_back_and_its_number_is_not_given_again() -> None:
    here = DeploymentMap()
    here.put("a", "net", "m1", 1, DeployOptions())
    before = here.put("a", "net", "m2", 1, DeployOptions())
    here.put("a", "net", "bad", 1, DeployOptions())
    again = here.restore("a", before)
    assert replace(again, version=before.version, newest=before.newest) == before
    assert here.put("a", "net", "m4", 1, DeployOptions()).number == 4
    here.set_aside("a", "net", "m4", "ends its process")
    after = here.put("a", "net", "m5", 1, DeployOptions())
    assert [one.number for one in after.kept] == [2], "a version that was set aside is not kept"
