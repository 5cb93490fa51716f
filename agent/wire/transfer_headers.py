"""Headers of transfers: packs and reads the headers of `Tensors`, most of which repeat. Rules: no door.

A header is the MessagePack that the codec makes of a message, and every header is read that the codec would read. But the
fields that are the same for a transfer in all requests stand first, and then those that are the same for all transfers of a
request. Either part is packed once, and a part that was read once is known by its bytes: a request of a language model
exchanges some sixty messages of 2 kB for each token, and to pack and check their headers took as long as to encrypt them.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

import msgpack

from edgepart.agent.wire.codec import frame_to_message, json_record, kinds
from edgepart.agent.wire.frames import Buffer, Frame, read_header
from edgepart.agent.wire.inference import Epoch, SequenceStep, Tensors
from edgepart.agent.wire.tensors import ArrayLayout, Meta, layout_of

PER_TRANSFER = ("deployment", "epoch", "transfer", "arrays", "exact", "prefill")
PER_REQUEST = ("request", "step", "steps", "likely")
KNOWN = 2048
"""The most parts of either sort that are known. With more, more plans and requests at the same time are read quickly; with
fewer, less memory is taken."""
MOST_PART_BYTES = 4096
"""Longer parts are read anew each time, so that peers cannot fill the memory with them."""
MOST_LENGTHS = 16
"""The most lengths of first parts that are tried. There is one for each number of digits and of axes."""

_KINDS = kinds(Tensors)
_BEGIN = b"\x92" + msgpack.packb(Tensors.__name__)
"""The bytes before the map of fields: a sequence of two, and the kind."""
_FIELDS = 0x80
"""The byte of a map of no more than 15 fields, to which their number is added."""
_BEGINS = tuple(
    _BEGIN + bytes((_FIELDS + count,)) for count in range(len(PER_TRANSFER) + len(PER_REQUEST) + 1)
)
"""The bytes before the fields, by their number."""
_KNOWABLE = ("array", "likely")
"""The kinds of metas without values in them, which can be equal and yet have other bytes, as 0.0 and -0.0."""
_Record = TypeVar("_Record", Epoch, SequenceStep)
_Part = tuple[int, bytes]
"""The number of fields of a part of a header, and their names and values as they stand in a map."""


def pack_header(message: Tensors, metas: tuple[Meta, ...] | None = None) -> bytes:
    """The header of the message, with `metas` as its `arrays` if they are given: as pack_arrays made them."""
    if metas is None:
        return _join(*_parts_of(message, message.arrays, _can_be_known(message.arrays)))
    knowable = True
    for one in metas:
        knowable = knowable and one is not None and one[0] in _KNOWABLE
    return _join(*_parts_of(message, metas, knowable))


def _join(transfer: _Part, request: _Part) -> bytes:
    return b"".join((_BEGINS[transfer[0] + request[0]], transfer[1], request[1]))


def _parts_of(message: Tensors, metas: tuple[Meta, ...], knowable: bool) -> tuple[_Part, _Part]:
    """What is the same for the transfer in all requests, and what is the same for all transfers of the request. `knowable`
    says whether equal metas have equal bytes."""
    pack = _pack_transfer if knowable else _pack_transfer.__wrapped__
    epoch = message.epoch
    transfer = pack(
        message.deployment,
        (epoch.term, epoch.number),
        message.transfer,
        metas,
        message.exact,
        message.prefill,
    )
    return transfer, _packed_requests.part_of(message)


def _can_be_known(metas: tuple[Any, ...]) -> bool:
    """Whether equal metas have equal bytes. A peer may have sent anything in their place; and values that travel inside a
    meta, such as 0.0 and -0.0, can be equal and yet have other bytes."""
    for meta in metas:
        match meta:
            case ("array", str(), tuple() as shape) if all(type(size) is int for size in shape):
                continue
            case ("likely", str(), tuple() as shape, count) if all(type(n) is int for n in (*shape, count)):
                continue
        return False
    return True


@lru_cache(KNOWN)
def _pack_transfer(
    deployment: str,
    epoch: tuple[int, int],
    transfer: int,
    arrays: tuple[Any, ...],
    exact: bool,
    prefill: bool,
) -> _Part:
    return _pack(Tensors(deployment, Epoch(*epoch), "", transfer, arrays, exact, None, prefill), PER_TRANSFER)


class _PackedRequests:
    """The second parts of the headers of the last requests. Any thread may use it."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[SequenceStep | None, tuple[SequenceStep, ...], int, _Part]] = {}

    def part_of(self, message: Tensors) -> _Part:
        known = self._known.get(message.request)
        if known is not None:
            step, steps, likely, part = known
            # The messages of a request share these. To compare or to hash what they say would take as long as to pack it.
            if step is message.step and steps is message.steps and likely == message.likely:
                return part
        part = _pack(message, PER_REQUEST)
        if len(self._known) >= KNOWN:
            self._known = {}
        self._known[message.request] = message.step, message.steps, message.likely, part
        return part


_packed_requests = _PackedRequests()


def _pack(message: Tensors, names: tuple[str, ...]) -> _Part:
    written = {name: value for name, value in json_record(message).items() if name in names}
    parts = [msgpack.packb(one, unicode_errors="surrogatepass") for pair in written.items() for one in pair]
    return len(written), b"".join(parts)


@lru_cache(KNOWN)
def _the_same(record: _Record) -> _Record:
    """The first of the equal records that were given lately. What is the same object is compared faster."""
    return record


def _share(message: Tensors) -> Tensors:
    """The message with records that messages of other connections refer to as well."""
    step = None if message.step is None else _the_same(message.step)
    return replace(message, epoch=_the_same(message.epoch), step=step)


class TransferHeaders:
    """Reads the headers of `Tensors` that come on one connection. One thread at a time uses it."""

    def __init__(self) -> None:
        self._transfers: _KnownParts = OrderedDict()
        self._requests: _KnownParts = OrderedDict()
        self._lengths: list[int] = []

    def read(self, header: bytes, payload: Buffer | None = None) -> Frame | None:
        """The frame with this header, and its message; None if it is of another kind. Raises FrameError if it does not fit
        `Tensors`."""
        if not header.startswith(_BEGIN):
            return None
        message, layout = self._find(header) or self._decode(header)
        return Frame(Tensors.__name__, {}, () if payload is None else (payload,), message, layout)

    def _decode(self, header: bytes) -> tuple[Tensors, ArrayLayout | None]:
        message = _share(frame_to_message(read_header(header), _KINDS))
        return message, self._learn(header, message)

    def _find(self, header: bytes) -> tuple[Tensors, ArrayLayout | None] | None:
        begin = len(_BEGIN) + 1
        for length in self._lengths:
            transfer = self._transfers.get(header[begin : begin + length])
            if transfer is None:
                continue
            request = self._requests.get(header[begin + length :])
            if request is None or header[begin - 1] != _FIELDS + transfer[0] + request[0]:
                return None
            _, (deployment, epoch, number, arrays, exact, prefill), layout = transfer
            _, (name, step, steps, likely), _ = request
            message = Tensors(deployment, epoch, name, number, arrays, exact, step, prefill, steps, likely)
            return message, layout
        return None

    def _learn(self, header: bytes, message: Tensors) -> ArrayLayout | None:
        if not _can_be_known(message.arrays):
            return None
        layout, (transfer, request) = layout_of(message.arrays), _parts_of(message, message.arrays, True)
        if header != _join(transfer, request):
            return layout  # Another release may write the fields in another order.
        _keep(self._transfers, transfer, _values_of(message, PER_TRANSFER), layout)
        _keep(self._requests, request, _values_of(message, PER_REQUEST), None)
        length = len(transfer[1])
        if length not in self._lengths:
            self._lengths = [length, *self._lengths[: MOST_LENGTHS - 1]]
        return layout


_KnownParts = OrderedDict[bytes, tuple[int, tuple[Any, ...], ArrayLayout | None]]
"""The parts that were read, by their bytes; each with its number of fields, the values that a message with that part has,
and the layout of the arrays that the part describes."""


def _values_of(message: Tensors, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(getattr(message, name) for name in names)


def _keep(known: _KnownParts, part: _Part, values: tuple[Any, ...], layout: ArrayLayout | None) -> None:
    """Know the part from now on, and forget the first one if there are too many."""
    count, written = part
    if len(written) <= MOST_PART_BYTES:
        known[written] = count, values, layout
        if len(known) > KNOWN:
            known.popitem(last=False)
