"""How operators treat the rows of a past: whether they give the same for rows in another order. Rules.

If the rows of all values with rows of the past that an operator reads come in another order, the rows of what it writes
come in that order too, as long as it is of a kind that is known here. Of other operators nothing is known, and they are
refused, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from edgepart.planner.model.rewrites.row_facts import Alongside, Followed, PastRows, Reading, Shape


def follow(reading: Reading) -> Followed:
    """What the operator makes of its inputs with rows of the past. Raises NotInPlace, which says why, if it may matter to
    it in which order they are."""
    domain = "" if reading.op.domain == "ai.onnx" else reading.op.domain
    rule = _RULES.get((domain, reading.op.op_type))
    if rule is None or reading.op.captured:
        raise reading.refuse("may treat the rows of the past differently")
    return rule(reading)


_KEEPS_ZEROS: Mapping[str, tuple[int, ...]] = {
    "Cast": (0,),
    "Div": (0,),
    "Dropout": (0,),
    "Identity": (0,),
    "Mul": (0, 1),
    "Where": (1, 2),
}
"""Operators that leave those shares zeros that are, by the inputs that have them (a Where replaces those that are no
numbers)."""


def _elementwise(reading: Reading) -> Followed:
    rank = len(reading.output)
    at = {n: _behind(one, rank - len(reading.input_shape(n))) for n, one in reading.past_rows.items()}
    if len({one.form for one in at.values()}) != 1:
        raise reading.refuse("reads rows of the past along several axes")
    one = next(iter(at.values()))
    alongside = tuple(_alongside(reading, rank, one))
    masked = any(other.masked for other in at.values())
    masked |= any(other.number in reading.of_mask for other in alongside)
    shares = any(at[number].shares for number in _KEEPS_ZEROS.get(reading.op.op_type, ()) if number in at)
    return replace(reading.write(replace(one, masked=masked, shares=shares)), alongside=alongside)


def _behind(one: PastRows, axes: int) -> PastRows:
    """The same behind so many more axes."""
    return replace(one, rows=one.rows + axes, batch=one.batch + axes)


def _alongside(reading: Reading, rank: int, one: PastRows) -> Iterator[Alongside]:
    """Yields the inputs that are broadcast against a value with rows of the past and have a column for each of its rows."""
    for number, name in enumerate(reading.op.inputs):
        if not name or number in reading.past_rows:
            continue
        shape = reading.input_shape(number)
        axis = one.rows - (rank - len(shape))
        if axis < 0 or shape[axis] == 1:
            continue
        if one.sinks:
            raise reading.refuse("reads something for each row, and for what is no row")
        yield Alongside(number, rank, replace(one, masked=False, shares=False))


def _softmax(reading: Reading) -> Followed:
    one = reading.only()
    axis = reading.attribute("axis", -1) % len(reading.output)
    if axis != one.rows:
        return reading.write(one)
    if not one.masked:
        raise reading.refuse("gives shares to rows that the mask does not leave out")
    return reading.write(replace(one, shares=True))


def _transpose(reading: Reading) -> Followed:
    one, rank = reading.only(), len(reading.output)
    perm = list(reading.op.attributes.get("perm", range(rank)[::-1]))
    return reading.write(replace(one, rows=perm.index(one.rows), batch=perm.index(one.batch)))


def _view(reading: Reading) -> Followed:
    """Operators that only give the same elements other axes."""
    one, before, after = reading.only(), reading.input_shape(0), reading.output
    rows = _same_axis(before, one.rows, after)
    if one.batch == 0 and after and after[0] % reading.sequences == 0:
        return reading.write(_moved(reading, one, rows, 0, after[0] // reading.sequences))
    return reading.write(_moved(reading, one, rows, _same_axis(before, one.batch, after), one.inner))


def _same_axis(before: Shape, axis: int, after: Shape) -> int | None:
    """The axis of the shape `after` that has the elements of an axis of `before`; None if there is none."""
    for other, extent in enumerate(after):
        if extent == before[axis] and prod(after[:other]) == prod(before[:axis]):
            return other
    return None


def _moved(reading: Reading, one: PastRows, rows: int | None, batch: int | None, inner: int) -> PastRows:
    if rows is None or batch is None or rows == batch:
        raise reading.refuse("puts rows of the past together with others")
    return replace(one, rows=rows, batch=batch, inner=inner)


def _repeated(reading: Reading) -> Followed:
    """Expand and Tile."""
    one, before, after = reading.only(), reading.input_shape(0), reading.output
    behind = _behind(one, len(after) - len(before))
    if any(after[there] != before[here] for here, there in zip(one.place[:2], behind.place[:2], strict=True)):
        raise reading.refuse("repeats rows of the past")
    return reading.write(behind)


def _concat(reading: Reading) -> Followed:
    rank = len(reading.output)
    if len({one.form for one in reading.past_rows.values()}) != 1:
        raise reading.refuse("reads rows of the past along several axes")
    one = next(iter(reading.past_rows.values()))
    axis = reading.attribute("axis", 0) % rank
    if axis == one.rows and reading.past_rows.keys() == {0}:
        more = reading.output[axis] - reading.input_shape(0)[axis]
        return reading.write(replace(one, shares=False, sinks=one.sinks + more))
    if axis in one.place[:2]:
        raise reading.refuse("puts something before the rows of the past")
    return replace(
        reading.write(replace(one, masked=False, shares=False)),
        alongside=tuple(_alongside(reading, rank, one)),
    )


def _split(reading: Reading) -> Followed:
    one = reading.only()
    if reading.attribute("axis", 0) % len(reading.input_shape(0)) in one.place[:2]:
        raise reading.refuse("takes the rows of the past apart")
    return Followed({name: one for name in reading.op.outputs if name})


def _slice(reading: Reading) -> Followed:
    one, before, after = reading.only(), reading.input_shape(0), reading.output
    steps = reading.op.inputs[4] if len(reading.op.inputs) > 4 else ""
    forward = not steps or (
        steps in reading.graph.constants and bool((reading.graph.constants[steps].load() > 0).all())
    )
    rows, batch = one.place[:2]
    if forward and before[batch] == after[batch] and before[rows] == after[rows]:
        return reading.write(one)
    ends = forward and before[batch] == after[batch] and before[rows] - one.sinks == after[rows]
    if not ends or _begin(reading, rows) != 0:
        raise reading.refuse("takes some rows of the past by their numbers")
    return reading.write(replace(one, sinks=0))


def _begin(reading: Reading, axis: int) -> int | None:
    """Where a Slice begins along an axis; None if that is not known, or counted from the end."""
    names = [*reading.op.inputs[1:4], "", ""]
    if any(name and name not in reading.graph.constants for name in names):
        return None
    starts, _, axes = (
        [int(n) for n in reading.graph.constants[name].load().flat] if name else [] for name in names[:3]
    )
    rank = len(reading.output)
    by_axis = dict(zip((one % rank for one in axes or range(rank)), starts, strict=False))
    return by_axis.get(axis, 0)


def _largest(reading: Reading) -> Followed:
    """ReduceMax. Rows that the mask leaves out are less than the others."""
    one, name = reading.only(), reading.op.inputs[1] if len(reading.op.inputs) > 1 else ""
    known = reading.graph.constants.get(name)
    axes = known.load().flat if known is not None else reading.op.attributes.get("axes", ())
    if {int(axis) % len(reading.input_shape(0)) for axis in axes} != {one.rows} or not one.masked:
        raise reading.refuse("puts rows of the past together with others")
    return Followed({})


def _gather(reading: Reading) -> Followed:
    one, rank = reading.only(), len(reading.input_shape(0))
    axis, more = reading.attribute("axis", 0) % rank, len(reading.input_shape(1)) - 1
    if axis in one.place[:2]:
        raise reading.refuse("takes some rows of the past by their numbers")
    rows, batch = (at + more if at > axis else at for at in one.place[:2])
    return reading.write(replace(one, rows=rows, batch=batch))


def _product(reading: Reading) -> Followed:
    """MatMul, and products that are written like it."""
    turned = [bool(reading.attribute(name, 0)) for name in ("transA", "transB")]
    unusual = any(reading.attribute(name, 0) for name in ("transBatchA", "transBatchB"))
    if unusual or max(reading.past_rows) > 1 or any(one.sinks for one in reading.past_rows.values()):
        raise reading.refuse("reads rows of the past in an unusual way")
    rank = len(reading.output)
    found: dict[int, tuple[bool, PastRows]] = {}
    for number, one in reading.past_rows.items():
        own = len(reading.input_shape(number))
        if min(own, len(reading.input_shape(1 - number))) < 2 or one.rows < own - 2 or one.batch >= own - 2:
            raise reading.refuse("reads rows of the past in an unusual way")
        # The last axis of the left factor is summed over, and the one before the last of the right factor.
        summed = ((one.rows == own - 1) != turned[number]) == (number == 0)
        found[number] = summed, replace(_behind(one, rank - own), rows=rank - (2 if number == 0 else 1))
    if not any(summed for summed, _ in found.values()):
        if len(found) > 1:
            raise reading.refuse("reads rows of the past along several axes")
        return reading.write(replace(next(iter(found.values()))[1], masked=False, shares=False))
    pair = [one for summed, one in found.values() if summed]
    if len(pair) < 2 or pair[0].place[1:] != pair[1].place[1:]:
        raise reading.refuse("sums over rows of the past in an unusual way")
    if not any(one.shares for one in pair):
        raise reading.refuse("sums over rows that the mask does not leave out")
    return Followed({})


Rule = Callable[[Reading], Followed]


def _table(rule: Rule, kinds: Sequence[str], domain: str = "") -> dict[tuple[str, str], Rule]:
    return {(domain, kind): rule for kind in kinds}


_RULES: Mapping[tuple[str, str], Rule] = {
    **_table(
        _elementwise,
        [
            *("Abs", "Add", "And", "Cast", "Clip", "Div", "Dropout", "Equal", "Erf", "Exp", "Greater"),
            *("GreaterOrEqual", "Identity", "IsInf", "IsNaN", "Less", "LessOrEqual", "Log", "Max", "Min"),
            *("Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu", "Sigmoid", "Sqrt", "Sub", "Sum"),
            *("Tanh", "Where", "Xor"),
        ],
    ),
    **_table(_softmax, ["Softmax"]),
    **_table(_transpose, ["Transpose"]),
    **_table(_view, ["Flatten", "Reshape", "Squeeze", "Unsqueeze"]),
    **_table(_repeated, ["Expand", "Tile"]),
    **_table(_concat, ["Concat"]),
    **_table(_split, ["Split"]),
    **_table(_slice, ["Slice"]),
    **_table(_gather, ["Gather"]),
    **_table(_largest, ["ReduceMax"]),
    **_table(_product, ["MatMul"]),
    **_table(_product, ["FusedMatMul"], "com.microsoft"),
}
