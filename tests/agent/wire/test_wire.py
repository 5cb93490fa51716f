"""The wire codec: frames, messages and values there and back, and whatever bytes a stranger sends."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum
from typing import Any

import ml_dtypes
import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgepart.agent.wire import inference
from edgepart.agent.wire.codec import frame_to_message, kinds, message_to_frame
from edgepart.agent.wire.frames import MAGIC, PREFIX, Frame, FrameLimits, encode, parse_frame, parse_prefix
from edgepart.agent.wire.tensors import ALIGNMENT, layout_of, pack_arrays, unpack_arrays
from edgepart.planner.errors import FrameError, InternalError
from tests.agent.wire.decoder import Decoder

SMALL = FrameLimits(header_bytes=1000, payload_bytes=1000)

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
    | st.text(max_size=9) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3).map(tuple)
    | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=9,
)  # fmt: skip
frames = st.builds(
    Frame,
    kind=st.text(max_size=9),
    header=st.dictionaries(st.text(max_size=5), plain, max_size=4),
    payload=st.lists(st.binary(max_size=40), max_size=3).map(tuple),
)


def joined(frame: Frame) -> bytes:
    return b"".join(encode(frame))


@settings(max_examples=100)
@given(st.lists(frames, max_size=3), st.integers(1, 50))
def test_frames_come_out_as_they_went_in_whatever_the_pieces(sent: list[Frame], piece: int) -> None:
    stream = b"".join(map(joined, sent))
    decoder = Decoder()
    got = [f for at in range(0, len(stream), piece) for f in decoder.feed(stream[at : at + piece])]
    assert [(f.kind, f.header, bytes(f.body)) for f in got] == [
        (f.kind, f.header, bytes(f.body)) for f in sent
    ]


@settings(max_examples=300)
@given(st.binary(max_size=200), st.sampled_from([b"", MAGIC, PREFIX.pack(MAGIC, 1, 0, 20, 5)]))
def test_random_bytes_raise_frame_errors_and_nothing_else(noise: bytes, start: bytes) -> None:
    decoder = Decoder(SMALL)
    try:
        decoder.feed(start + noise)
    except FrameError:
        with pytest.raises(FrameError):
            decoder.feed(b"")


@settings(max_examples=200)
@given(frames, st.data())
def test_a_flipped_byte_raises_frame_errors_and_nothing_else(frame: Frame, data: st.DataObject) -> None:
    stream = bytearray(joined(frame))
    stream[data.draw(st.integers(0, len(stream) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        Decoder(SMALL).feed(stream)
    except FrameError as error:
        assert str(error)


def test_payload_buffers_are_not_copied() -> None:
    array = np.arange(12, dtype=np.float32)
    _, buffers = pack_arrays([array])
    payload = encode(Frame("X", {}, tuple(buffers)))[1]
    array[0] = 7
    assert np.frombuffer(payload, np.float32)[0] == 7


@pytest.mark.parametrize("sizes", [(1001, 0), (0, 1001), (2**32 - 1, 0), (0, 2**64 - 1)])
def test_a_prefix_over_the_limits_is_refused_before_its_bytes_come(sizes: tuple[int, int]) -> None:
    with pytest.raises(FrameError, match="limits"):
        Decoder(SMALL).feed(PREFIX.pack(MAGIC, 1, 0, *sizes))


def test_another_version_and_flags_are_refused() -> None:
    for version, flags in ((2, 0), (1, 1)):
        with pytest.raises(FrameError, match="update the older"):
            parse_prefix(PREFIX.pack(MAGIC, version, flags, 0, 0), SMALL)


@pytest.mark.parametrize(
    "document",
    [None, [], ["kind"], ["kind", []], [1, {}], ["kind", {1: 2}], ["kind", {}, 0], {"kind": {}}],
)
def test_a_header_that_is_not_kind_and_fields_is_refused(document: Any) -> None:
    header = msgpack.packb(document)
    with pytest.raises(FrameError):
        parse_frame(header, None)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(FrameError):
        parse_frame(b"\x91" * 100_000, None)


def test_a_field_that_cannot_travel_is_our_own_fault() -> None:
    with pytest.raises(InternalError):
        encode(Frame("X", {"a": object()}))
    with pytest.raises(InternalError):
        encode(Frame("X", {"a": 2**64}))
    with pytest.raises(InternalError, match="contiguous"):
        encode(Frame("X", {}, (memoryview(b"abcd")[::2],)))


# ---- messages ----


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Leaf:
    name: str
    size: int = 0


@dataclass(frozen=True)
class Other:
    flag: bool


@dataclass(frozen=True)
class Tree:
    ratio: float
    colour: Colour
    leaves: tuple[Leaf, ...]
    pair: tuple[str, int]
    table: dict[str, tuple[int, ...]]
    either: Leaf | Other | None
    left: Tree | None = None
    anything: Any = None
    raw: bytes = b""

    def __post_init__(self) -> None:
        if self.ratio < 0:
            raise ValueError("ratio under 0")


KINDS = kinds(Tree, Leaf, inference.Tensors, inference.Failed, inference.Cancel)
TREE = Tree(0.5, Colour.RED, (Leaf("a", 1), Leaf("b")), ("x", 2), {"k": (1, 2)}, Other(True))


def travelled(message: Any) -> Any:
    [frame] = Decoder().feed(joined(message_to_frame(message)))
    return frame_to_message(frame, KINDS)


@pytest.mark.parametrize(
    "message",
    [
        Leaf("å"),
        TREE,
        Tree(1.0, Colour.RED, (), ("", 0), {}, None, left=TREE, anything=(1, {"a": None}), raw=b"\0"),
        inference.Tensors("d", inference.Epoch(1, 2), "r", 3, (("array", "float", (1, 2)), None)),
        inference.Failed("d", inference.NO_EPOCH, "r", True, "why"),
    ],
)
def test_messages_come_out_equal(message: Any) -> None:
    assert travelled(message) == message


GOOD = message_to_frame(TREE).header


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ratio": "x"}, "expected float"),
        ({"ratio": True}, "expected float"),
        ({"ratio": -1.0}, "refuses"),
        ({"colour": "blue"}, "no Colour"),
        ({"colour": ("red",)}, "no Colour"),
        ({"leaves": ({"name": "a"},)}, "missing"),
        ({"leaves": ({"name": "a", "size": True},)}, "expected int"),
        ({"leaves": ({"name": "a", "size": 1, "more": 1},)}, "unknown"),
        ({"leaves": "ab"}, "expected a sequence"),
        ({"pair": ("x", 2, 3)}, "sequence of 2"),
        ({"table": {"k": 1}}, "expected a sequence"),
        ({"table": ()}, "expected a map"),
        ({"either": 4}, "expected"),
        ({"left": {}}, "missing"),
        ({"new": 1}, "unknown"),
    ],
)
def test_fields_that_do_not_fit_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(FrameError, match=says):
        frame_to_message(Frame("Tree", {**GOOD, **changes}), KINDS)


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(FrameError, match="unknown kind"):
        frame_to_message(Frame("Epoch", {"term": 1, "number": 1}), KINDS)


@settings(max_examples=200)
@given(st.sampled_from(sorted(KINDS)), st.dictionaries(st.sampled_from([*GOOD, "name", "size"]), plain))
def test_random_fields_raise_frame_errors_and_nothing_else(kind: str, header: dict[str, Any]) -> None:
    try:
        frame_to_message(Frame(kind, {**GOOD, **header}), KINDS)
    except FrameError as error:
        assert str(error)


def test_classes_that_cannot_travel_are_refused_when_registered() -> None:
    @dataclass(frozen=True)
    class Twin:
        name: str
        size: int

    Odd = type("Odd", (), {"__annotations__": {"a": Leaf | Twin}})
    with pytest.raises(InternalError, match="told apart"):
        kinds(dataclass(frozen=True)(Odd))
    with pytest.raises(InternalError, match="share a name"):
        kinds(Leaf, dataclass(frozen=True)(type("Leaf", (), {})))
    with pytest.raises(InternalError, match="no dataclass"):
        kinds(str)


# ---- arrays ----

DTYPES = [
    np.float32, np.float64, np.float16, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64,
    np.uint64, np.bool_, np.complex64, np.complex128, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz,
    ml_dtypes.int4, ml_dtypes.uint4,
]  # fmt: skip


def carried(values: list[Any]) -> list[Any]:
    """There and back, the metas through a frame's header as well. Values that have a layout are read by it, too."""
    metas, buffers = pack_arrays(values)
    message = inference.Tensors("d", inference.Epoch(1, 1), "r", 0, metas)
    [frame] = Decoder().feed(joined(message_to_frame(message, buffers)))
    read, layout = frame_to_message(frame, KINDS).arrays, layout_of(metas)
    found = unpack_arrays(read, frame.body)
    plain = all(isinstance(one, np.ndarray) and one.dtype != object and one.size for one in found)
    assert (layout is not None) == plain
    if layout is not None:
        assert same(layout.read(frame.body), found)
        with pytest.raises(FrameError, match="of a payload of"):
            layout.read(bytes(layout.nbytes + 1))
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 5)])
def test_every_element_type_and_shape_travels(dtype: Any, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    (got,) = carried([array])
    assert got.dtype == array.dtype and got.shape == array.shape and got.tobytes() == array.tobytes()


def test_strided_arrays_and_scalars_travel_by_value() -> None:
    array = np.arange(24, dtype=np.int64).reshape(2, 3, 4)
    turned, every_second, scalar = carried([array.T, array[:, ::2], np.float32(2.5)])
    np.testing.assert_array_equal(turned, array.T)
    np.testing.assert_array_equal(every_second, array[:, ::2])
    assert scalar.shape == () and scalar == np.float32(2.5)


values = st.recursive(
    st.none()
    | hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    | st.lists(st.text(max_size=4) | st.binary(max_size=4), max_size=4).map(
        lambda x: np.array([*x, None], object)[:-1]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.integers(-(2**63), 2**63 - 1), inner, max_size=2)
        | st.dictionaries(
            st.text(max_size=3), inner | st.floats(allow_nan=False) | st.text(max_size=2), max_size=2
        )
    ),
    max_leaves=5,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and (
            list(a.flat) == list(b.flat) if a.dtype == object else a.tobytes() == b.tobytes()
        )  # fmt: skip
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(a == b and type(a) is type(b))


@settings(max_examples=150)
@given(st.lists(values, max_size=3))
def test_sequences_and_maps_travel(sent: list[Any]) -> None:
    assert same(carried(sent), sent)


def test_unpacked_arrays_are_views_and_aligned() -> None:
    metas, buffers = pack_arrays([np.ones(3, np.uint8), np.arange(5.0)])
    payload = bytearray(b"".join(buffers))
    _, second = unpack_arrays(metas, memoryview(payload))
    payload[ALIGNMENT : ALIGNMENT + 8] = struct.pack("<d", 9.0)
    assert second[0] == 9.0


@pytest.mark.parametrize(
    "meta",
    [
        ("array", "float", (3,)), ("array", "float", (2**62, 2**62)), ("array", "float", (-1,)),
        ("array", "float", (1.0,)), ("array", "float", (True,)), ("array", "nothing", (2,)),
        ("array", "string", (2,)),
        ("array", "undefined", (2,)), ("array", "float", (1,)), ("array", "float", (1,) * 100),
        ("array", "float", (0, 2**70)), ("array", "double"), ("strings", (1,), 8), ("strings", (2**40,), 8),
        ("strings", (1,), -8), ("plain", 1), ("list", ("array",)), ("map", (1, 2), (None,)),
        ("map", (1.5,), (None,)),        ("map", (True,), (None,)), (), 5, "array", None,
    ],
)  # fmt: skip
def test_lying_metas_are_refused(meta: Any) -> None:
    payload = memoryview(bytes(8))
    with pytest.raises(FrameError):
        unpack_arrays([meta], payload)
    if (layout := layout_of([meta])) is not None:
        with pytest.raises(FrameError):
            layout.read(payload)


def test_values_nested_too_deep_are_refused_on_both_sides() -> None:
    deep: Any = None
    meta: Any = None
    for _ in range(50):
        deep, meta = [deep], ("list", (meta,))
    with pytest.raises(InternalError, match="nested"):
        pack_arrays([deep])
    with pytest.raises(FrameError, match="nested"):
        unpack_arrays([meta], None)


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(st.sampled_from(["array", "strings", "list", "map", "plain"]), plain, plain) | plain,
        max_size=3,
    ),
    st.binary(max_size=30),
)
def test_random_metas_raise_frame_errors_and_nothing_else(metas: list[Any], payload: bytes) -> None:
    try:
        unpack_arrays(metas, memoryview(payload))
    except FrameError as error:
        assert str(error)


@pytest.mark.parametrize(
    "value", [object(), 3, "text", {1.5: None}, np.array([{}]), np.array(["a", 1], object)]
)
def test_values_that_cannot_travel_are_our_own_fault(value: Any) -> None:
    with pytest.raises(InternalError):
        pack_arrays([value])
