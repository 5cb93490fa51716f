"""BBGraP (Mateu Cuadrat, Park, Egger: A Black-Box Graph Partitioner for Generalized Deep Neural Network
Parallelization): every layer's output is divided along one direction, back to front, all devices get
everything after every layer, and the graph optimiser removes what is not needed.

Our additions: unequal devices get proportional parts, the direction is chosen by simulation unless it is
forced, a layer that lacks the direction is divided along its channels, and a layer that cannot be divided at
all is whole on the fastest device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from edgepart.planner.errors import UsageError
from edgepart.planner.layout.choices import Choice, Whole
from edgepart.planner.layout.strategy import Strategy, Sync
from edgepart.planner.region import Region
from edgepart.planner.search.candidates import CandidateFactory
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.registry import register
from edgepart.planner.strategies.single import run_alone

KNOWN_AXES = ("height", "width", "channel", "batch", "sequence", "feature", "head", "depth")
"""The axes that may be forced on any model. If the model does not have the forced axis, the reason says so,
and the model is not split."""

PICTURE = 4
"""The number of axes of a picture; the last two are rows and columns."""


@register("bbgrap")
def candidates(study: Study) -> Iterator[Strategy]:
    """Yield a candidate for each direction that the model can be split along, or for the forced one only."""
    forced = study.memo.problem.axis
    if forced is not None and forced not in (*KNOWN_AXES, *study.memo.axis_names):
        raise UsageError(
            f"axis {forced!r}: this model has {', '.join(study.memo.axis_names) or 'none to split along'}"
        )
    axes = [forced] if forced is not None else [a for a in study.memo.axis_names if a != "batch"]
    splittable = [axis for axis in axes if axis in study.memo.axis_names]
    made: list[Strategy] = []
    for axis in splittable:
        made.append(divide_along(study, axis, study.memo.by_speed))
        if not any(is_mirrored(study.candidates, made[-1], before) for before in made[:-1]):
            yield made[-1]
    if not splittable or len(study.memo.by_speed) == 1:
        yield from _place_unsplit(study, forced)


def _place_unsplit(study: Study, forced: str | None) -> Iterator[Strategy]:
    if len(study.memo.by_speed) == 1:
        reason = "there is only one device; "
    else:
        reason = f"no layer can be split along {forced or 'any axis'}; "
    for device in study.memo.by_speed:
        yield run_alone(study, device, "bbgrap", reason)


def is_mirrored(candidates: CandidateFactory, one: Strategy, other: Strategy) -> bool:
    """Whether the two strategies divide a square picture in the same way, with rows and columns exchanged."""
    ways = (one, other), (candidates.reads_of(one), candidates.reads_of(other))
    if not all(ways[1]) or one.layouts.keys() != other.layouts.keys():
        return False
    laid = all(_is_turned(one.layouts[n].regions, other.layouts[n].regions) for n in one.layouts)
    return laid and all(_is_turned(read, ways[1][1][n]) for n, read in ways[1][0].items())


def _is_turned(one: Mapping[str, Region], other: Mapping[str, Region]) -> bool:
    """Whether each device's region in `one` is its region in `other`, with the rows and columns of a picture exchanged."""
    if one is other:
        return all(r.rank != PICTURE or r.spans[2] == r.spans[3] for r in one.values())
    return one.keys() == other.keys() and all(
        r.rank == other[d].rank == PICTURE and r.spans == (*other[d].spans[:2], *other[d].spans[:1:-1])
        if r.rank == PICTURE
        else r == other[d]
        for d, r in one.items()
    )


def divide_along(study: Study, axis: str, devices: tuple[str, ...]) -> Strategy:
    """The strategy that divides every layer along `axis` over `devices`, the fastest of them first."""
    shares = study.memo.shares(devices)
    choices: dict[int, Choice] = {}
    main = split = 0
    for layer in study.memo.layers:
        choice = study.candidates.divide(layer, axis, shares)
        if choice is None:
            choices[layer.number] = Whole((devices[0],))
        else:
            choices[layer.number] = choice
            split += 1
            main += choice == study.candidates.divide(layer, axis, shares, second=False)
    rest = len(study.memo.layers) - split
    why = (
        f"{main} of {len(study.memo.layers)} layers are split along {axis} over {len(devices)} devices by their"
        f" speed, {split - main} along another axis, and {rest} run whole on {devices[0]}"
    )
    return study.candidates.make("bbgrap", choices, why, Sync.BROADCAST)
