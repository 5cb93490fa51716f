"""What is said of a deployment: which of its devices get no program, and why."""

from __future__ import annotations

import pytest

from edgepart.agent.cluster.leader.status import explain_unused_devices
from edgepart.agent.wire.control import ALIVE, DEAD, DRAINED, FLAPPING, LEAVING, SUSPECT
from tests.agent.cluster.leader.test_replan_policy import cluster, deployment


def test_nothing_is_missing_where_all_chosen_devices_are_planned_for_or_none_was_chosen() -> None:
    assert not explain_unused_devices(
        deployment("box-a", "box-b"), ["box-a", "box-b"], cluster("a", "b", "c")
    )
    assert not explain_unused_devices(deployment(), ["box-a"], cluster("a", "b"))


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (SUSPECT, "box-b does not answer"),
        (LEAVING, "box-b is about to leave"),
        (FLAPPING, "box-b was lost several times lately"),
        (DRAINED, "box-b is drained"),
        (DEAD, "box-b is dead"),
        (ALIVE, "box-b does not reach the others, or could not load its part"),
    ],
)
def test_a_chosen_device_without_a_program_is_named_with_its_state(status: str, why: str) -> None:
    seen = cluster("a", "b", state_of_b=status)
    text = explain_unused_devices(deployment("box-a", "box-b"), ["box-a"], seen)
    assert text == f"of the devices that it may use, {why}; plans do without until that has changed"


def test_devices_that_are_gone_or_not_measured_are_named_too() -> None:
    text = explain_unused_devices(
        deployment("box-a", "box-b", "box-x"), ["box-a"], cluster("a", "b", unmeasured="b")
    )
    assert "box-b has not measured itself yet, box-x is not here;" in text
