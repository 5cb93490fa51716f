"""`edgepart check`: splits a model in every way that it can be split, and tries each way on devices in this process. Door:
it reads the model, makes sessions, and prints."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgepart.cli.options import Context, Json, Operators, StatePairs, TransferDtype, read_pairs
from edgepart.cli.output import note, print_json, progress, say, shape, table
from edgepart.cli.sources.operators import read_operators
from edgepart.client.model_files import check_there
from edgepart.planner.errors import EdgepartError
from edgepart.planner.figures import format_count
from edgepart.planner.plans.reduced_precision import EXACT, check_kind

if TYPE_CHECKING:
    from edgepart.agent.verify.reference import Reference
    from edgepart.agent.verify.rehearsal import DividedModel, Rehearsal
    from edgepart.agent.verify.same_answer import Values

FIRST = "first of each"
"""The name of the way that divides every operator along its first axis."""

PICTURES = (0, 2)
"""Seeds of the further inputs that are tried if values are rounded. They are even, for which `sample_value` makes numbers
from 0 to 1, as in pictures."""

STATES_SHOWN = 3
"""The most states that are named."""

WHOLE = "whole"
"""The name of the only way for a model that cannot be split."""

Steps = Annotated[
    int, typer.Option(min=1, max=1000, help="The number of steps that a model with states is tried for.")
]


@dataclass(frozen=True)
class AxisSplit:
    """The model split along one axis."""

    name: str
    axis: str | None
    split: Mapping[str, str] = field(default_factory=dict)
    """The axis of each operator of which more than one device computed a part."""
    devices_used: int = 0
    difference: float = math.nan
    """The largest difference from one session, relative to each output's largest magnitude; nan if there is no answer."""
    faults: tuple[str, ...] = ()
    """The differences of the answer, or the reason why there is none."""
    rounded_difference: float = math.nan
    """The same as `difference`, with the values that devices send rounded as --transfer-dtype says."""
    rounded: int = 0
    as_they_are: int = 0
    """The number of pieces that were rounded, and of those that were not, as more than their last digits would be lost."""


def check(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An .onnx file.")],
    devices: Annotated[
        int,
        typer.Option(min=1, max=16, help="The number of devices; their shares differ."),
    ] = 3,
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            metavar="NAME=D0,D1,...",
            help="The shape of an input with free dimensions. Repeatable.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the random inputs.")] = 0,
    state_pair: StatePairs = None,
    steps: Steps = 3,
    context: Context = None,
    transfer_dtype: TransferDtype = EXACT,
    operators: Operators = None,
    as_json: Json = False,
) -> None:
    """Try every way to split MODEL, and compare the answers with those of one session.

    Nothing is deployed: the devices run in this process and compile segments as agents do. The inputs are random. Exits
    with 1 if an answer differs."""
    from edgepart.agent.execution.compile.compiler import throwaway
    from edgepart.agent.options import parse_shapes
    from edgepart.agent.verify.reference import make_references
    from edgepart.agent.verify.rehearsal import Rehearsal
    from edgepart.agent.verify.sample_inputs import random_inputs
    from edgepart.planner.access import check_described
    from edgepart.planner.model.stateful import load_with_states

    check_there(model)
    pairs = read_pairs(state_pair, no_states=False)
    described = read_operators(operators)
    graph, _ = load_with_states(model, parse_shapes(given or []), pairs, context, described)
    check_described(graph, described)
    rounding = check_kind(transfer_dtype, "--transfer-dtype")
    for text in graph.notes:
        note(f"note: {text}")
    sequence = [random_inputs(graph, seed + step) for step in range(steps if graph.states else 1)]
    with throwaway() as compiler, progress({}) as bar:
        rehearsal = Rehearsal(graph, shares(devices), transfer_dtype=rounding, compiler=compiler)
        bar("one session", 0, 0)
        references = make_references(model, graph, sequence)
        found: list[AxisSplit] = []
        names = ways_of(rehearsal)
        for done, (name, axis) in enumerate(names.items()):
            bar(f"split: {name}", done, len(names))
            found.append(try_split(rehearsal, references, name, axis, sequence))
    document = document_of(model, rehearsal, references, found)
    if as_json:
        print_json(document)
    else:
        _show(document)
    if not document["equal"]:
        raise typer.Exit(1)


def shares(devices: int) -> tuple[float, ...]:
    """The shares of unequal devices, in proportion to n, n - 1 ... 1.

    >>> shares(3)
    (3.0, 2.0, 1.0)
    """
    return tuple(float(devices - n) for n in range(devices))


def ways_of(rehearsal: Rehearsal) -> dict[str, str | None]:
    """The names of all ways to split the model, with the axis that each forces."""
    if not rehearsal.axes:
        return {WHOLE: None}
    return {FIRST: None, **{axis: axis for axis in rehearsal.axes}}


def try_split(
    rehearsal: Rehearsal,
    references: Sequence[Reference],
    name: str,
    axis: str | None,
    sequence: Sequence[Values],
) -> AxisSplit:
    """The outcome of one way, over the steps of a sequence. A failure is recorded in its faults and does not stop the other
    ways."""
    try:
        divided = rehearsal.divide(axis)
        divided.devices.exact = True
        states = divided.devices.begin()
        steps = list(zip(references, sequence, strict=False))  # Steps after a random state have no reference.
        pairs = [(reference, divided.devices.run(inputs, sequence=states)) for reference, inputs in steps]
        rounds = bool(divided.devices.plan.rounded_to)
        off = _rounding_difference(divided, *steps[0]) if rounds else math.nan
    except EdgepartError as error:
        return AxisSplit(name, axis, faults=(str(error),))
    return AxisSplit(
        name,
        axis,
        divided.split,
        divided.devices_used,
        _largest(reference.largest_difference(got) for reference, got in pairs),
        tuple(_faults(pairs)),
        off,
        divided.devices.rounding.rounded,
        divided.devices.rounding.as_they_are,
    )


def _largest(differences: Iterable[float]) -> float:
    """The largest difference; nan if there is none."""
    return max((one for one in differences if not math.isnan(one)), default=math.nan)


def _faults(pairs: Sequence[tuple[Reference, Values]]) -> Iterator[str]:
    """Yields the differences of the first step that has any."""
    for step, (reference, got) in enumerate(pairs, 1):
        if faults := reference.differences(got):
            yield from (f"step {step}: {text}" if len(pairs) > 1 else text for text in faults)
            return


def _rounding_difference(divided: DividedModel, reference: Reference, inputs: Values) -> float:
    """The largest difference of the answers if the values that devices send are rounded, over these inputs and others
    from 0 to 1, as in pictures. (If one class is nearly certain, hardly anything changes the answer.)"""
    from edgepart.agent.verify.same_answer import is_float, largest_difference
    from edgepart.agent.verify.sample_inputs import sample_value
    from edgepart.agent.wire.dtypes import element_name

    def run(values: Values, *, exact: bool) -> Values:
        divided.devices.exact = exact
        return divided.run(values)

    found = [reference.largest_difference(run(inputs, exact=False))]
    for seed in PICTURES:
        other = {
            name: sample_value(element_name(value.dtype), value.shape, name, seed)
            if getattr(value, "shape", None) is not None and is_float(value.dtype)
            else value
            for name, value in inputs.items()
        }
        expected = {n: v for n, v in run(other, exact=True).items() if n in reference.outputs}
        found.append(largest_difference(run(other, exact=False), expected))
    return _largest(found)


def document_of(
    model: Path, rehearsal: Rehearsal, references: Sequence[Reference], ways: list[AxisSplit]
) -> dict[str, Any]:
    """The document that --json prints."""
    reference = references[0]
    nodes = dict(_nodes(rehearsal, ways))
    flops = sum(node["flops"] for node in nodes.values())
    opaque_flops = sum(node["flops"] for node in nodes.values() if node["opaque"] is not None)
    infos = [(name, rehearsal.graph.tensors[name]) for name in rehearsal.graph.request_inputs]
    return {
        "model": model.name,
        "equal": not any(way.faults for way in ways),
        "devices": len(rehearsal.shares),
        "inputs": {
            name: {"dtype": one.dtype, "shape": one.shape, "free": name in rehearsal.graph.free}
            for name, one in infos
        },
        "states": [
            {"output": one.output, "input": one.input, "grows": one.grows} for one in rehearsal.graph.states
        ],
        "steps": len(references),
        "axes": list(rehearsal.axes),
        "tolerance": reference.tolerance,
        "transfer_dtype": rehearsal.study.memo.problem.transfer_dtype,
        "random_outputs": list(reference.random),
        "opaque_flops_share": opaque_flops / flops if flops else 0.0,
        "ways": [
            {
                "name": way.name,
                "axis": way.axis,
                "devices_used": way.devices_used,
                "nodes_split": len(way.split),
                "difference": _finite(way.difference),
                "faults": list(way.faults),
                "rounded_difference": _finite(way.rounded_difference),
                "rounded_pieces": way.rounded,
                "pieces_as_they_are": way.as_they_are,
            }
            for way in ways
        ],
        "operators": _operators(nodes, flops),
        "nodes": nodes,
        "notes": list(rehearsal.graph.notes),
    }


def _nodes(rehearsal: Rehearsal, ways: list[AxisSplit]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each node's name and facts: its type, the axes of its splits, and the largest difference of the answers for
    which it was split."""
    graph, accesses = rehearsal.graph, rehearsal.study.memo.coarse.accesses
    for op in graph.operators:
        full = {index: graph.region_of(name) for index, name in enumerate(op.outputs) if name}
        mine = [way for way in ways if op.name in way.split]
        yield (
            op.name,
            {
                "op_type": op.op_type,
                "domain": op.domain,
                "split": list(dict.fromkeys(way.split[op.name] for way in mine)),
                "difference": _worst(way.difference for way in mine),
                "axes": [axis.name for axis in accesses[op.name].axes()],
                "opaque": rehearsal.opaque.get(op.name),
                "flops": accesses[op.name].flops(full),
            },
        )


def _operators(nodes: Mapping[str, Any], flops: float) -> dict[str, dict[str, Any]]:
    """The facts of `_nodes`, summed up by operator type."""
    found: dict[str, dict[str, Any]] = {}
    for node in nodes.values():
        called = f"{node['domain']}::{node['op_type']}" if node["domain"] else node["op_type"]
        one = found.setdefault(
            called, {"nodes": 0, "split": 0, "axes": {}, "difference": None, "flops_share": 0.0, "opaque": {}}
        )
        one.setdefault("whole", "cannot be split")
        one["nodes"] += 1
        one["split"] += bool(node["split"])
        one["difference"] = _worst((one["difference"], node["difference"]))
        if node["axes"]:
            one["whole"] = "the devices that read it need all of it"
        one["flops_share"] += node["flops"] / flops if flops else 0.0
        for axis in node["split"]:
            one["axes"][axis] = one["axes"].get(axis, 0) + 1
        if node["opaque"] is not None:
            one["opaque"][node["opaque"]] = one["opaque"].get(node["opaque"], 0) + 1
    return found


def _worst(values: Any) -> float | None:
    """The largest value; None if there is none, or if it is not finite."""
    known = [value for value in values if value is not None]
    return _finite(max(known)) if known else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _show(document: Mapping[str, Any]) -> None:
    taken = ", ".join(
        f"{name} {one['dtype']} {shape(one['shape'])}" for name, one in document["inputs"].items()
    )
    say(
        f"{document['model']} on {format_count(document['devices'], 'simulated device')}. Random inputs: {taken or 'none'}"
    )
    if states := document["states"]:
        names = ", ".join(f"{one['output']} -> {one['input']}" for one in states[:STATES_SHOWN])
        more = f" and {len(states) - STATES_SHOWN} more" if len(states) > STATES_SHOWN else ""
        say(
            f"{format_count(document['steps'], 'step')} of one sequence. Devices keep {names}{more}.",
            prose=True,
        )
    say("")
    rounds = document["transfer_dtype"]
    off = [] if rounds == EXACT else [f"as {rounds}"]
    _print(
        ["split along", "nodes split", "devices", "largest difference", *off, ""],
        [
            (
                way["name"],
                str(way["nodes_split"]),
                str(way["devices_used"] or "-"),
                _difference(way["difference"]),
                *(_difference(way["rounded_difference"]) for _ in off),
                "DIFFERS" if way["faults"] else "same answer",
            )
            for way in document["ways"]
        ],
        right=["nodes split", "devices", "largest difference", *off],
    )
    say("")
    _print(
        ["operator", "nodes", "split", "along", "FLOPs"],
        [
            (name, str(one["nodes"]), str(one["split"]), _along(one), f"{one['flops_share']:.1%}")
            for name, one in document["operators"].items()
        ],
        right=["nodes", "split", "FLOPs"],
    )
    say("")
    _conclude(document)


def _along(one: Mapping[str, Any]) -> str:
    """The axes along which an operator type was split, each with its number of nodes unless that is all of them, and the
    reasons why other nodes are whole."""
    axes = [
        axis if count == one["nodes"] else f"{axis} ({count})"
        for axis, count in sorted(one["axes"].items(), key=lambda item: (-item[1], item[0]))
    ]
    reasons = [
        f"whole: {reason}" + (f" ({n})" if n < one["nodes"] else "") for reason, n in one["opaque"].items()
    ]
    return "; ".join([*([", ".join(axes)] if axes else []), *reasons]) or f"whole: {one['whole']}"


def _conclude(document: Mapping[str, Any]) -> None:
    for name in document["random_outputs"]:
        say(f"Output {name!r} is random, and was not compared.", prose=True)
    for way in document["ways"]:
        for fault in way["faults"]:
            say(f"split along {way['name']}: {fault}", prose=True)
    wrong = sum(bool(way["faults"]) for way in document["ways"])
    whole = f"{document['opaque_flops_share']:.2%} of the FLOPs cannot be split."
    if wrong:
        say(
            f"{wrong} of {format_count(len(document['ways']), 'way')} to split gave another answer. {whole}",
            prose=True,
        )
    else:
        say(f"Every split gives the same answer{_describe_tried(document)}. {whole}", prose=True)
    rounds, off = document["transfer_dtype"], _worst(way["rounded_difference"] for way in document["ways"])
    if rounds != EXACT and off is None:
        say("Nothing that is sent is large enough to be rounded.", prose=True)
    elif rounds != EXACT:
        say(f"Rounding to {rounds} changes answers by {_difference(off)} at most.", prose=True)


def _describe_tried(document: Mapping[str, Any]) -> str:
    """The shapes that were tried, if the model accepts others too, about which nothing is known."""
    free = [f"{name}={shape(one['shape'])}" for name, one in document["inputs"].items() if one["free"]]
    return f" for {', '.join(free)}" if free else ""


def _difference(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def _print(columns: list[str], rows: list[tuple[str, ...]], right: list[str]) -> None:
    from edgepart.cli.output import console

    console().print(table(columns, rows, right))
