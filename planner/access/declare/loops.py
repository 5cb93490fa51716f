"""Loops: the building block for operators whose work runs over loops that each tensor follows in its own way. Rules only.

Attention is of this kind: heads are an axis of their own in one tensor, blocks of the hidden axis in another,
and three blocks side by side in packed weights; several query heads may share one head of keys. A declaration
says which loop each axis of each input and output follows. From this follow the parts of the loops that a
wanted region needs, and the regions that these parts read. Outputs that need different parts of the loops are
made by separate nodes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from edgepart.planner.access.declare.aligned import Along
from edgepart.planner.access.declare.bound import BoundOperator
from edgepart.planner.access.declare.cut_nodes import cut
from edgepart.planner.access.declare.derived import Derived, Reads, WholeOperator
from edgepart.planner.access.declare.protocol import Axis, Local, LocalNode, Outputs
from edgepart.planner.region import Array, Region, Span, span


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop of an operator's work."""

    name: str
    """The name of the Axis that divides the loop among devices."""
    extent: int
    shared: bool = True
    """Whether devices can each run a part of the loop."""


@dataclass(frozen=True, slots=True)
class LoopPiece:
    """An input axis that is a piece of a loop, from index `start` on, such as the new keys, which follow the
    past keys."""

    axis: int
    start: int = 0

    def read(self, space: Region, extent: int) -> Span:
        bounds = ((i.start - self.start, i.stop - self.start) for i in space.spans[self.axis])
        return span(*((max(start, 0), min(stop, extent)) for start, stop in bounds))


@dataclass(frozen=True, slots=True)
class Packed:
    """An input axis with several blocks side by side, such as the columns of queries, keys and values in one weight:
    index `i` of the loop reads `times` indices of each block, from `i * times` on."""

    axis: int
    blocks: tuple[tuple[int, int], ...]
    """(start, `times`) of each block."""

    def read(self, space: Region, extent: int) -> Span:
        return span(
            *(
                (start + i.start * times, start + i.stop * times)
                for start, times in self.blocks
                for i in space.spans[self.axis]
            )
        )


Followed = Sequence[Along | LoopPiece | Packed | None]
"""How each axis of an input follows the loops; None for an axis that is read whole."""


@dataclass(frozen=True, slots=True)
class LoopOutput:
    """How an output follows the loops."""

    axes: Sequence[Along | None]
    """How each axis follows a loop; None for an axis that is always made whole."""
    whole: tuple[int, ...] = ()
    """Loops that must run in full to make any part of the output. Loops that are neither here nor in `axes`
    do not affect the output: if it is made alone, they run once."""


MISFIT = "the shapes of its inputs do not fit each other"

Spans = list[Span | None]


@dataclass(frozen=True, slots=True)
class Job:
    """A part of the loops, and the outputs that it makes."""

    space: Region
    """The indices of each loop that run."""
    outputs: tuple[int, ...]


class Loops(Derived):
    """See the module's docstring. `job_nodes` returns the operator on a part of its loops."""

    apart = True
    """Whether outputs that need different parts of the loops are made by separate nodes instead of one for all."""

    def __init__(
        self,
        bound: BoundOperator,
        loops: Sequence[Loop],
        inputs: Sequence[Followed | None],
        outputs: Mapping[int, LoopOutput],
        *,
        reduced: tuple[Axis, ...] = (),
        family: str = "gemm",
    ) -> None:
        """`loops`: the operator's loops; everything else refers to them by index. `inputs`: how each input
        follows them. `outputs`: how each output that the model names follows them. `reduced`: additional
        axes, which are reduced."""
        self.bound = bound
        self.family = family
        self.loops = tuple(loops)
        self._inputs = tuple(inputs)
        self._outputs = dict(outputs)
        self._axes = (*self._shared_axes(), *reduced)

    @abstractmethod
    def job_nodes(self, job: Job) -> Local:
        """Returns nodes that make the job's outputs from what `job_reads` returns, both cropped."""

    @abstractmethod
    def job_work(self, job: Job) -> float:
        """Returns the FLOPs of the job."""

    def narrow(self, job: Job) -> Job:
        """Returns the job without indices that do not affect its outputs, such as keys that a causal mask
        hides from all of its rows."""
        return job

    @property
    def fits(self) -> bool:
        """Whether the extents of all inputs and outputs are those of the loops that they follow."""
        follows = [*zip(self.bound.inputs, self._inputs, strict=True)]
        follows += [(self.bound.outputs[index], one.axes) for index, one in self._outputs.items()]
        return all(
            len(shape) == len(axes) and all(map(self._fits, axes, shape))
            for shape, axes in follows
            if shape is not None and axes is not None
        )

    def _fits(self, one: Along | LoopPiece | Packed | None, extent: int) -> bool:
        loop = 0 if one is None else self.loops[one.axis].extent
        match one:
            case Along():
                return extent == loop * one.times
            case LoopPiece():
                return one.start + extent <= loop
            case Packed():
                return all(start + loop * times <= extent for start, times in one.blocks)
        return True

    def axes(self) -> tuple[Axis, ...]:
        return self._axes

    def widen(self, outputs: Outputs) -> Outputs:
        made = {
            index: self.written_region(job, index) for job in self._jobs(outputs) for index in job.outputs
        }
        return {index: made[index] for index in outputs}

    def reads(self, computed: Outputs) -> Reads:
        found: list[Region | None] = [None] * len(self.bound.inputs)
        for job in self._jobs(computed):
            for index, region in enumerate(self.job_reads(job)):
                if region is not None:
                    before = found[index]
                    found[index] = region if before is None else before.union_spans(region)
        return tuple(found)

    def nodes(self, computed: Outputs) -> Local:
        jobs, read = self._jobs(computed), self.reads(computed)
        if len(jobs) == 1:
            return self.job_nodes(jobs[0])
        nodes: list[LocalNode] = []
        for n, job in enumerate(jobs):
            nodes += self._separate_nodes(job, f"job{n}", read)
        return tuple(nodes)

    def work(self, computed: Outputs) -> float:
        return sum(self.job_work(job) for job in self._jobs(computed))

    def job_reads(self, job: Job) -> Reads:
        """Returns the region that the job reads of each input; None where it reads nothing."""
        found: list[Region | None] = []
        for shape, axes in zip(self.bound.inputs, self._inputs, strict=True):
            region = None if shape is None or axes is None else _region(axes, job.space, shape)
            found.append(None if region is None or region.is_empty else region)
        return tuple(found)

    def _shared_axes(self) -> Iterable[Axis]:
        """Yields an axis for each loop that output 0 follows and that can be divided."""
        first = self._outputs[0]
        for n, loop in enumerate(self.loops):
            at = _place(first, n)
            if not loop.shared or at is None or n in first.whole or loop.extent < 2:
                continue
            found = [self._place_of(index, n) for index in range(len(self.bound.outputs))]
            places, each = tuple(place for place, _ in found), tuple(times for _, times in found)
            yield Axis(
                loop.name,
                at[0],
                loop.extent * at[1],
                quantum=at[1],
                places=places if len(places) > 1 else (),
                each=each if len(set(each)) > 1 else (),
            )

    def _place_of(self, index: int, loop: int) -> tuple[int | None, int]:
        """Returns the axis of an output that follows a loop, and its elements for each run; (None, 0) if none does."""
        written = self._outputs.get(index)
        at = None if written is None or loop in written.whole else _place(written, loop)
        return (None, 0) if at is None else at

    def _jobs(self, outputs: Outputs) -> list[Job]:
        """Groups `outputs` into jobs: outputs that need the same part of the loops they have in common are made
        together."""
        groups: list[tuple[Spans, list[int]]] = []
        for index, region in outputs.items():
            wanted = self._spans(index, region)
            for spans, members in groups:
                if not self.apart or all(map(_agree, spans, wanted)):
                    spans[:] = [_join(a, b) for a, b in zip(spans, wanted, strict=True)]
                    members.append(index)
                    break
            else:
                groups.append((wanted, [index]))
        return [
            self.narrow(
                Job(Region(tuple(span((0, 1)) if one is None else one for one in spans)), (*members,))
            )
            for spans, members in groups
        ]

    def _spans(self, index: int, region: Region) -> Spans:
        """Returns the part of each loop that must run to make `region` of an output; None for a loop that
        does not affect it."""
        written = self._outputs[index]
        found: Spans = [None] * len(self.loops)
        for along, one in zip(written.axes, region.spans, strict=True):
            if along is not None:
                bounds = ((i.start // along.times, -(-i.stop // along.times)) for i in one)
                found[along.axis] = span(*bounds)
        for loop in written.whole:
            found[loop] = span((0, self.loops[loop].extent))
        return found

    def written_region(self, job: Job, index: int) -> Region:
        """Returns the region of an output that a job makes."""
        shape = self.bound.outputs[index]
        assert shape is not None
        return _region(self._outputs[index].axes, job.space, shape)

    def _separate_nodes(self, job: Job, name: str, read: Reads) -> Iterable[LocalNode]:
        """Yields the job's nodes for use beside other jobs. Their values have names of their own, and an
        input of which other jobs read more is cut to this job's part."""
        cropped: dict[int, str] = {}
        for index, (mine, everything) in enumerate(zip(self.job_reads(job), read, strict=True)):
            if mine is not None and everything is not None and mine != everything:
                cropped[index] = f"{name}.in{index}"
                yield from cut(
                    index, cropped[index], mine.within(everything), everything.shape, self.bound.opset
                )

        def rename(value: int | str | Array | None) -> int | str | Array | None:
            if isinstance(value, int):
                return cropped.get(value, value)
            return f"{name}.{value}" if isinstance(value, str) else value

        for node in self.job_nodes(job):
            targets = tuple(f"{name}.{o}" if isinstance(o, str) else o for o in node.outputs)
            yield replace(node, inputs=tuple(map(rename, node.inputs)), outputs=targets)


def require_fit(access: Loops) -> Derived:
    """Returns `access`, or a WholeOperator if the shapes of its inputs and outputs do not fit its loops."""
    return access if access.fits else WholeOperator(access.bound, MISFIT)


def of_ranks(bound: BoundOperator, ranks: Mapping[int, tuple[int, ...]]) -> bool:
    """Whether every input that is given has one of the ranks allowed for it. `ranks`: the allowed ranks, by input."""
    return all(len(bound.shape(index)) in found for index, found in ranks.items() if bound.has(index))


def _agree(one: Span | None, two: Span | None) -> bool:
    return one is None or two is None or one == two


def _join(one: Span | None, two: Span | None) -> Span | None:
    if one is None or two is None:
        return two if one is None else one
    return span(*one, *two)


def _place(written: LoopOutput, loop: int) -> tuple[int, int] | None:
    """Returns the axis of an output that follows a loop, and how many of its indices belong to each index of the loop;
    None if no axis follows it."""
    return next(
        (
            (axis, along.times)
            for axis, along in enumerate(written.axes)
            if along is not None and along.axis == loop
        ),
        None,
    )


def _region(axes: Followed, space: Region, shape: Sequence[int]) -> Region:
    return Region(
        tuple(
            span((0, extent)) if one is None else one.read(space, extent)
            for one, extent in zip(axes, shape, strict=True)
        )
    )
