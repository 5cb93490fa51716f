"""Sample text: made-up tokens with which a plan is tried before texts of users are read by it. Rules."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgepart.agent.text.decoder import read_decoder
from edgepart.agent.verify.tried_steps import TriedSequence, TriedStep
from edgepart.planner.errors import RequestError
from edgepart.planner.plans.plan import Plan

SEED = 1


def sample_blocks(plan: Plan) -> Sequence[TriedSequence]:
    """A text whose tokens are read in a block, with one more token behind it, whose logits depend on all rows that the
    block left. Empty if the plan reads no blocks, or is of no language model."""
    try:
        decoder = read_decoder("", plan)
    except RequestError:
        return ()
    rows = decoder.block
    if not rows or rows >= decoder.context:
        return ()
    drawn = np.random.default_rng(SEED).integers(0, decoder.vocabulary, rows + 1)
    tokens = [int(token) for token in drawn]
    block = TriedStep(decoder.feed(tokens[:rows], 0), rows)
    return (TriedSequence("a block of tokens", (block, TriedStep(decoder.feed(tokens[rows:], rows)))),)
