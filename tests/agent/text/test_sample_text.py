"""The texts with which plans are tried: they fit the plan's blocks, and there are none where no block is read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgepart.agent.text.decoder import MASK, TOKENS
from edgepart.agent.text.sample_text import sample_blocks
from edgepart.planner.plans.plan import Plan
from tests.agent import handmade
from tests.agent.text.fake_devices import CONTEXT, VOCABULARY, decoder_plan


@pytest.mark.parametrize("in_place", [True, False])
def test_a_block_is_followed_by_the_token_behind_it(in_place: bool) -> None:
    plan = decoder_plan(block=8, in_place=in_place)
    (sequence,) = sample_blocks(plan)
    block, last = sequence.steps
    assert (block.rows, last.rows) == (8, 1) and plan.prefill is not None
    for step, inputs in ((block, plan.prefill.inputs), (last, plan.inputs)):
        assert {name: value.shape for name, value in step.inputs.items()} == {
            info.name: info.shape for info in inputs
        }
        assert np.min(step.inputs[TOKENS]) >= 0 and np.max(step.inputs[TOKENS]) < VOCABULARY
    assert len(set(block.inputs[TOKENS][0])) > 4, "All tokens alike would hide rows in the wrong places."
    assert (block.inputs[MASK].sum(), last.inputs[MASK].sum()) == (8, 9)
    assert (sample_blocks(plan)[0].steps[0].inputs[TOKENS] == block.inputs[TOKENS]).all()


def test_there_is_nothing_to_try_where_no_block_is_read() -> None:
    full = decoder_plan(block=CONTEXT)
    strange = replace(decoder_plan(block=8), outputs=())
    plans: tuple[Plan, ...] = (decoder_plan(), full, strange, handmade.split_plan())
    assert [sample_blocks(plan) for plan in plans] == [()] * 4
