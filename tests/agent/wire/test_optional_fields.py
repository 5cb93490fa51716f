"""Optional fields: a record says nothing of a field that has its default, so that an earlier release can read it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import msgpack
import pytest
from hypothesis import given

from edgepart.agent.wire.codec import (
    OPTIONAL,
    frame_to_message,
    json_record,
    kinds,
    message_to_frame,
    read_json_record,
    read_record,
)
from edgepart.agent.wire.frames import Frame
from edgepart.agent.wire.inference import (
    DeployOptions,
    Epoch,
    Failed,
    QuantisedWeights,
    SequenceStep,
    Tensors,
)
from edgepart.planner.errors import FrameError
from tests.agent.wire.schema import records

KINDS = kinds(Tensors, Failed)
E = Epoch(3, 1)
STEP = SequenceStep("gate/0/1", 4, 5)


@dataclass(frozen=True)
class Record:
    name: str
    size: int = 0
    later: int = field(default=7, metadata=OPTIONAL)
    last: tuple[str, ...] | None = field(default=None, metadata=OPTIONAL)


def carried(message: Any) -> Any:
    frame = message_to_frame(message)
    header = msgpack.unpackb(msgpack.packb(frame.header), use_list=False)
    return frame_to_message(Frame(frame.kind, header, ()), KINDS)


@given(records(Record))
def test_only_what_differs_from_the_default_is_written(record: Record) -> None:
    written = json_record(record)
    differing = {one.name for one in fields(Record) if getattr(record, one.name) != one.default}
    assert set(written) == {"name", "size"} | differing
    assert read_record(Record, written) == record


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ({"name": "a"}, r"fields missing: \['size'\], unknown: \[\]"),
        ({"size": 1, "later": 1}, r"fields missing: \['name'\], unknown: \[\]"),
        ({"name": "a", "size": 1, "latest": 1}, r"fields missing: \[\], unknown: \['latest'\]"),
        ({"name": "a", "size": 1, "later": "x"}, "later: expected int"),
        ({"name": "a", "size": 1, "last": (1,)}, "last: "),
        ((), "expected fields, got tuple"),
    ],
)
def test_what_is_missing_or_unknown_otherwise_is_refused(document: Any, fault: str) -> None:
    with pytest.raises(FrameError, match=fault):
        read_record(Record, document)


EARLIER: tuple[tuple[Any, dict[str, Any]], ...] = (
    (
        Tensors("m", E, "gate/0/1", 3, ()),
        {
            "deployment": "m",
            "epoch": {"term": 3, "number": 1},
            "request": "gate/0/1",
            "transfer": 3,
            "arrays": (),
            "exact": False,
        },
    ),
    (
        Failed("m", E, "gate/0/1", True, "why"),
        {
            "deployment": "m",
            "epoch": {"term": 3, "number": 1},
            "request": "gate/0/1",
            "stale": True,
            "error": "why",
            "crashed": False,
        },
    ),
)
"""Messages, and how the release before sequences wrote them."""


@pytest.mark.parametrize(("message", "earlier"), EARLIER, ids=["Tensors", "Failed"])
def test_messages_about_requests_without_sequences_are_those_of_the_release_before(
    message: Any, earlier: dict[str, Any]
) -> None:
    frame = message_to_frame(message)
    assert frame.header == earlier
    assert frame_to_message(Frame(frame.kind, earlier, ()), KINDS) == message


@pytest.mark.parametrize(
    "message",
    [
        Tensors("m", E, "gate/0/1", 3, (), step=STEP),
        Tensors("m", E, "gate/0/1", 3, (), steps=(STEP, SequenceStep("", 0, 0))),
        Failed("m", E, "gate/0/1", True, "why", lost_state=True),
        Failed("m", E, "gate/0/1", True, "why", no_room=True),
    ],
)
def test_steps_and_lost_states_travel(message: Any) -> None:
    assert carried(message) == message


def test_options_that_nobody_gave_are_not_written() -> None:
    new = {"states", "context", "sequences", "prefill", "batch", "text", "mirrors", "keep"}
    new |= {"batch_rows", "batch_delay_s", "batch_tolerance", "weights", "max_error", "quantised"}
    assert not new & json_record(DeployOptions()).keys()
    given_by_user = DeployOptions(
        states=(("hn", "h"),),
        context=512,
        sequences=9,
        prefill={"x": (1, 64)},
        batch={"x": (4, 1)},
        text=True,
        mirrors=True,
        keep=3,
        batch_rows=8,
        batch_delay_s=0.0,
        batch_tolerance=0.1,
        weights="int4",
        max_error=0.2,
        quantised=QuantisedWeights("9f86", "ONNX Runtime 1.32.0", 0.1, "64 tokens of a text", 0.9),
    )
    assert new <= json_record(given_by_user).keys()
    assert read_json_record(DeployOptions, json_record(given_by_user)) == given_by_user
    none = json_record(DeployOptions(states=()))
    assert none["states"] == (), "No states at all is something else than those that the names say."
    earlier = {f.name for f in fields(DeployOptions)} - new
    assert json_record(DeployOptions()).keys() == earlier
