"""Headers of transfers: packs and reads the headers of `Tensors`, most of which repeat. Rules: no door.

A header is the MessagePack that the codec makes of a message, and every header is read that the codec would read. But the
fields that are the same for a transfer in all requests stand first, and then those that are the same for all transfers of a
request. Either part is packed once, and a part that was read once is known by its bytes: a request of a language model
exchanges some sixty messages of 2 kB for each token, and to pack and check their headers took as long as to encrypt them.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache
from typing import Any

import msgpack

from edgepart.agent.wire.codec import frame_to_message, json_record, kinds
from edgepart.agent.wire.frames import read_header
from edgepart.agent.wire.inference import Epoch, SequenceStep, Tensors

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
_Part = tuple[int, bytes]
"""The number of fields of a part of a header, and their names and values as they stand in a map."""


def pack_header(message: Tensors) -> bytes:
    """The header of the message."""
    return _join(*_parts_of(message))


def _join(transfer: _Part, request: _Part) -> bytes:
    return b"".join((_BEGIN, bytes((_FIELDS + transfer[0] + request[0],)), transfer[1], request[1]))


def _parts_of(message: Tensors) -> tuple[_Part, _Part]:
    """What is the same for the transfer in all requests, and what is the same for all transfers of the request."""
    pack = _pack_transfer if _can_be_known(message.arrays) else _pack_transfer.__wrapped__
    epoch = message.epoch
    transfer = pack(
        message.deployment,
        (epoch.term, epoch.number),
        message.transfer,
        message.arrays,
        message.exact,
        message.prefill,
    )
    return transfer, _pack_request(message.request, message.step, message.steps, message.likely)


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


@lru_cache(KNOWN)
def _pack_request(
    request: str, step: SequenceStep | None, steps: tuple[SequenceStep, ...], likely: int
) -> _Part:
    return _pack(Tensors("", Epoch(0, 0), request, 0, (), False, step, False, steps, likely), PER_REQUEST)


def _pack(message: Tensors, names: tuple[str, ...]) -> _Part:
    written = {name: value for name, value in json_record(message).items() if name in names}
    parts = [msgpack.packb(one, unicode_errors="surrogatepass") for pair in written.items() for one in pair]
    return len(written), b"".join(parts)


class TransferHeaders:
    """Reads the headers of `Tensors` that come on one connection. One thread at a time uses it."""

    def __init__(self) -> None:
        self._transfers, self._requests = _KnownParts(), _KnownParts()
        self._lengths: list[int] = []

    def read(self, header: bytes) -> Tensors | None:
        """The message with this header; None if it is of another kind. Raises FrameError if it does not fit `Tensors`."""
        if not header.startswith(_BEGIN):
            return None
        found = self._find(header)
        if found is None:
            found = frame_to_message(read_header(header), _KINDS)
            self._learn(header, found)
        return found

    def _find(self, header: bytes) -> Tensors | None:
        begin = len(_BEGIN) + 1
        for length in self._lengths:
            transfer = self._transfers.get(header[begin : begin + length])
            if transfer is None:
                continue
            request = self._requests.get(header[begin + length :])
            if request is None or header[begin - 1] != _FIELDS + transfer[0] + request[0]:
                return None
            one, other = transfer[1], request[1]
            return Tensors(
                one.deployment,
                one.epoch,
                other.request,
                one.transfer,
                one.arrays,
                one.exact,
                other.step,
                one.prefill,
                other.steps,
                other.likely,
            )
        return None

    def _learn(self, header: bytes, message: Tensors) -> None:
        if not _can_be_known(message.arrays):
            return
        transfer, request = _parts_of(message)
        if header != _join(transfer, request):
            return  # Another release may write the fields in another order.
        self._transfers.keep(transfer, message)
        self._requests.keep(request, message)
        length = len(transfer[1])
        if length not in self._lengths:
            self._lengths = [length, *self._lengths[: MOST_LENGTHS - 1]]


class _KnownParts:
    """The parts that were read, by their bytes; each with its number of fields and a message that has it."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, tuple[int, Tensors]] = OrderedDict()

    def get(self, part: bytes) -> tuple[int, Tensors] | None:
        return self._known.get(part)

    def keep(self, part: _Part, message: Tensors) -> None:
        """Know the part from now on, and forget the first one if there are too many."""
        count, written = part
        if len(written) <= MOST_PART_BYTES:
            self._known[written] = count, message
            if len(self._known) > KNOWN:
                self._known.popitem(last=False)
