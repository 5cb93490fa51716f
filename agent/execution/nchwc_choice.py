"""Keeping: chooses the tensors that a program keeps blocked between its segments (nchwc_array.py). Rules.

A tensor is kept blocked if a segment on this device writes it in blocks and all segments that read it here read it so, and
if few of its elements are converted by hand (those that are sent or arrive), compared with those that ONNX Runtime then
need not reorder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from edgepart.agent.execution.nchwc_array import PLAIN, KeptBlocked
from edgepart.agent.execution.schedule import make_schedule
from edgepart.planner.plans.plan import Port, Program, Run, Segment, Transfer

BY_HAND = 2
"""The cost of converting an element by hand, where reordering one costs ONNX Runtime 1."""

Native = Callable[[Segment], frozenset[str]]
"""Returns the ports at which a segment computes in blocks if all its ports that can be blocked are."""


def keep(program: Program, transfers: Sequence[Transfer], block: int, native: Native) -> KeptBlocked:
    """The tensors that `program` keeps in blocks of `block` channels; none if `block` is 0."""
    tensors = _candidates(program, block) if block else frozenset()
    if tensors:
        tensors = _worth(program, transfers, KeptBlocked(block, tensors))
    for segment in program.segments:
        if ports := ports_of(segment, KeptBlocked(block, tensors)):
            tensors -= set(_tensors(segment, ports - native(segment)))
    return KeptBlocked(block, tensors) if tensors else PLAIN


def ports_of(segment: Segment, kept: KeptBlocked) -> frozenset[str]:
    """Names of a segment's ports that are blocked."""
    return frozenset(port.name for port in _ports(segment) if port.piece.tensor in kept.tensors)


def has_pictures(program: Program) -> bool:
    """Whether a segment reads or writes anything that could be blocked at all: a piece of rank 4."""
    ports = (port for segment in program.segments for port in _ports(segment))
    return any(port.piece.region.rank == 4 for port in ports)


def in_blocks(segment: Segment, block: int) -> frozenset[str]:
    """Names of a segment's ports that have whole blocks of channels."""
    return frozenset(port.name for port in _ports(segment) if block and _has_blocks(port, block))


def _ports(segment: Segment) -> tuple[Port, ...]:
    return (*segment.inputs, *segment.outputs)


def _tensors(segment: Segment, ports: frozenset[str]) -> Iterator[str]:
    return (port.piece.tensor for port in _ports(segment) if port.name in ports)


def _candidates(program: Program, block: int) -> frozenset[str]:
    """Tensors written by a segment and read by one, in whole blocks of channels."""
    segments = [
        program.segments[n] for n in dict.fromkeys(s.segment for s in program.steps if isinstance(s, Run))
    ]
    written = {port.piece.tensor for segment in segments for port in segment.outputs}
    read = {port.piece.tensor for segment in segments for port in segment.inputs}
    odd = {p.piece.tensor for segment in segments for p in _ports(segment) if not _has_blocks(p, block)}
    return frozenset((written & read) - odd)


def _has_blocks(port: Port, block: int) -> bool:
    shape = port.piece.region.shape
    return len(shape) == 4 and shape[1] % block == 0


def _worth(program: Program, transfers: Iterable[Transfer], kept: KeptBlocked) -> frozenset[str]:
    """The kept tensors that take less work blocked than plain."""
    by_hand = dict.fromkeys(kept.tensors, 0)
    for recipes in make_schedule(program, transfers, kept=kept).recipes:
        for one in recipes:
            if one.piece.tensor in by_hand:
                by_hand[one.piece.tensor] += one.converted
    saved = dict.fromkeys(kept.tensors, 0)
    for segment in program.segments:
        for port in _ports(segment):
            if port.piece.tensor in saved:
                saved[port.piece.tensor] += port.piece.region.size
    return frozenset(tensor for tensor in kept.tensors if BY_HAND * by_hand[tensor] < saved[tensor])
