"""Sequence histories: a replica does not go on with what it keeps of a step that was not answered."""

from __future__ import annotations

import pytest

from edgepart.agent.serving.sequence_history import SequenceHistories, StepUnderWay
from edgepart.agent.wire.inference import NO_EPOCH
from edgepart.planner.errors import StateLost

HERE, THERE = (NO_EPOCH, 0), (NO_EPOCH, 1)


def test_a_step_that_another_replica_answers_than_the_one_before_is_made_again_with_all_before_it() -> None:
    histories = SequenceHistories(lambda: "a name")
    history = histories.begin(("net", "7"), 0.0)
    for side in (HERE, HERE):
        StepUnderWay(history, {}).answered(side)
        histories.remember(history, {}, 0.0)
    step = StepUnderWay(history, {})
    with pytest.raises(StateLost, match="another replica"):
        step.answered(THERE)
    step.lost("another replica")
    for number in range(3):
        assert step.next_step()[0].position == number
        step.answered(THERE)
        assert step.is_last == (number == 2)
        step.made()
