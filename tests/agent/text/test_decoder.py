"""How decoders of both styles are fed, and which models are none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.text.decoder import common_start, read_decoder
from edgepart.planner.errors import RequestError, RunError
from edgepart.planner.plans.plan import Plan, ValueInfo
from tests.agent.text.fake_devices import CONTEXT, VOCABULARY, decoder_plan


@pytest.mark.parametrize(
    ("in_place", "position", "mask"),
    [
        (True, 0, [1, 0, 0, 0, 0, 0]),
        (True, 2, [1, 1, 1, 0, 0, 0]),
        (True, 5, [1, 1, 1, 1, 1, 1]),
        (False, 0, [0, 0, 0, 0, 0, 1]),
        (False, 2, [0, 0, 0, 1, 1, 1]),
        (False, 5, [1, 1, 1, 1, 1, 1]),
    ],
)
def test_the_mask_has_a_one_for_each_token_where_the_style_has_them(
    in_place: bool, position: int, mask: list[int]
) -> None:
    decoder = read_decoder("chat", decoder_plan(in_place=in_place, context=6))
    fed = decoder.feed([77], position)
    assert {name: np.asarray(value).tolist() for name, value in fed.items()} == {
        "input_ids": [[77]],
        "attention_mask": [mask],
        **({} if in_place else {"position_ids": [[position]]}),
    }
    assert all(np.asarray(value).dtype == np.int64 for value in fed.values())


def test_a_block_has_its_tokens_first_and_a_mask_for_all_its_rows() -> None:
    decoder = read_decoder("chat", decoder_plan(context=6, block=3))
    fed = decoder.feed([77, 78], 2)
    assert np.asarray(fed["input_ids"]).tolist() == [[77, 78, 0]]
    assert np.asarray(fed["attention_mask"]).tolist() == [[1, 1, 1, 1, 1, 0]]
    assert np.asarray(decoder.feed([77], 2)["input_ids"]).tolist() == [[77]]


def test_where_the_past_comes_first_a_block_reads_the_end_of_it_and_its_own_tokens() -> None:
    decoder = read_decoder("chat", decoder_plan(in_place=False, context=6, block=3))
    fed = {name: np.asarray(value).tolist() for name, value in decoder.feed([77, 78], 2).items()}
    assert fed == {
        "input_ids": [[77, 78, 0]],
        "attention_mask": [[0, 0, 0, 1, 1, 1, 1, 0]],
        "position_ids": [[2, 3, 4]],
    }


def test_a_block_that_is_not_full_may_reach_beyond_the_context_where_its_last_rows_are_not_kept() -> None:
    in_place, before = (
        read_decoder("chat", decoder_plan(in_place=one, context=6, block=4)) for one in (True, False)
    )
    assert (in_place.count_next(3, 2), in_place.count_next(3, 3)) == (3, 1)
    assert before.count_next(2, 3) == 2
    assert np.asarray(before.feed([77, 78], 3)["position_ids"]).tolist() == [[3, 4, 5, 5]]


def test_a_block_of_one_token_is_a_step_of_one() -> None:
    assert read_decoder("chat", decoder_plan(block=4)).count_next(1, 0) == 1


def test_an_input_has_the_type_that_the_model_wants() -> None:
    plan = decoder_plan()
    narrow = replace(plan, inputs=tuple(replace(info, dtype="int32") for info in plan.inputs))
    assert {np.asarray(value).dtype for value in read_decoder("chat", narrow).feed([1], 0).values()} == {
        np.dtype(np.int32)
    }


@pytest.mark.parametrize("in_place", [True, False])
def test_context_and_vocabulary_are_those_of_the_plan(in_place: bool) -> None:
    decoder = read_decoder("chat", decoder_plan(in_place=in_place, model="abc"))
    assert (decoder.context, decoder.vocabulary, decoder.in_place) == (CONTEXT, VOCABULARY, in_place)
    assert (decoder.model, decoder.logits) == ("abc", "logits")


def changed(**fields: object) -> Plan:
    return replace(decoder_plan(), **fields)  # type: ignore[arg-type]


IDS, MASK = decoder_plan().inputs


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (changed(states=()), "keeps no caches of keys and values.*--context"),
        (changed(inputs=(MASK,)), r"takes \['attention_mask'\]"),
        (changed(inputs=(IDS, MASK, ValueInfo("pixels", "float", (1, 3)))), "takes .*'pixels'"),
        (changed(inputs=(replace(IDS, shape=(1, 8)), MASK)), r"read \(1, 8\) tokens"),
        (changed(outputs=(ValueInfo("pooled", "float", (1, 8)),)), r"none of its outputs \['pooled'\]"),
        (changed(outputs=decoder_plan().outputs * 2), "none of its outputs"),
    ],
)
def test_models_that_are_no_decoders_are_refused_with_the_reason(plan: Plan, why: str) -> None:
    with pytest.raises(RequestError, match=why):
        read_decoder("chat", plan)


def test_the_logits_are_the_last_row() -> None:
    decoder = read_decoder("chat", decoder_plan())
    rows = np.arange(2 * VOCABULARY, dtype=np.float32).reshape(1, 2, VOCABULARY)
    row = decoder.read({"logits": rows})
    assert isinstance(row, np.ndarray) and row.tolist() == rows[0, 1].tolist()


@pytest.mark.parametrize("outputs", [{}, {"logits": np.zeros((1, 1, 7))}, {"logits": ["no", "array"]}])
def test_an_answer_without_logits_is_an_error(outputs: dict[str, object]) -> None:
    with pytest.raises(RunError, match="300 numbers"):
        read_decoder("chat", decoder_plan()).read(outputs)


short_lists = st.lists(st.integers(0, 2), max_size=6)


@given(short_lists, short_lists)
def test_the_common_start_is_the_longest_one_with_which_both_begin(one: list[int], other: list[int]) -> None:
    count = common_start(one, other)
    assert one[:count] == other[:count]
    assert one[: count + 1] != other[: count + 1] or count == len(one) == len(other)
