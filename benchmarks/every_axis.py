"""Check that a model gives the same answer however it is divided: models x numbers of devices x axes, in this process.

    python -m benchmarks.every_axis [--small] [--models a,b] [--devices 2,3,5] [--json FILE]

Every model is divided as `auto` would, over slow and unequal devices with fast links, and then along each of its axes,
whether that is wise or not. Segments are compiled as agents compile them, and the outputs are compared with those of
one ONNX Runtime session over the whole model. Exits with 1 if an answer differs, or if something that can be split was
not. The tolerance is the product's own (agent/verify/same_answer.py, tolerance_for), and so is the judgement of larger
differences: they are explained if one rounding of the inputs moves the session's own answer as much
(agent/verify/input_rounding.py).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

from benchmarks.comparing import (
    Values,
    differences,
    find_unexplained,
    largest_difference,
    nudge_inputs,
    run_alone,
    tolerance_for,
)
from benchmarks.machine import describe, sentence, show_table
from benchmarks.models import SMALL, ZOO, Model, zoo_model
from edgepart.agent.execution.compile.compiler import Compiler, throwaway
from edgepart.agent.verify.local_run import LocalRun
from edgepart.agent.verify.rehearsal import Rehearsal
from edgepart.cli.output import note, say, table
from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.errors import EdgepartError
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.lowering.evidence import count_devices, divided_operators
from edgepart.planner.lowering.lower import lower, make_plan
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.planner import best_strategy
from edgepart.planner.plans.check import check_plan
from edgepart.planner.search.study import Study

SHARES: Mapping[int, tuple[float, ...]] = {
    2: (0.6, 0.4),
    3: (0.5, 0.3, 0.2),
    4: (0.4, 0.3, 0.2, 0.1),
    5: (0.35, 0.25, 0.2, 0.12, 0.08),
}
"""Maps a number of devices to their unequal shares."""

AUTO = "auto"
SEARCH_S = 10.0
SATURATED: Mapping[str, str] = {
    "light_squeezenet": "its logits are equal and about 1e10, so that Softmax makes 0 or 1 of one rounding"
}
"""Models whose numbers are not worth comparing; only the shapes of their outputs have to be right."""
ANYTHING = 1e9
"""Relative tolerance for saturated models."""
SLOW_FLOPS = 2e9
"""FLOPs per second of all devices together under `auto`: so slow that most models are worth dividing."""


@dataclass(frozen=True)
class Trial:
    """One model divided in one way."""

    model: str
    devices: int
    axis: str
    """An axis, or "auto"."""
    difference: float | None = None
    """Largest over the outputs, relative to each one's largest magnitude; None if there were no outputs."""
    allowed: float | None = None
    """Tolerance of a model that computes in less than float32; None means the tolerance of the outputs' types."""
    used: int = 0
    """Number of devices that compute anything."""
    split: int = 0
    """Number of operators of which more than one device computed a part."""
    wrong: tuple[str, ...] = ()
    """One sentence for each difference or failure."""
    explained: tuple[str, ...] = ()
    """One sentence for each difference that is beyond the tolerance, and that one rounding of the inputs explains."""
    seconds: float = 0.0

    @property
    def cell(self) -> str:
        if self.difference is None:
            return "FAILED"
        return f"{'WRONG ' if self.wrong else ''}{self.difference:.0e} {self.split} on {self.used}"


@dataclass
class _Expected:
    """What one session answers, with which every way is compared."""

    model: Path
    inputs: Values
    outputs: Values
    allowed: float | None
    """The tolerance, as in `Trial.allowed`."""

    @cached_property
    def moved(self) -> Values:
        """The session's answer to inputs that are off by one rounding."""
        return run_alone(self.model, nudge_inputs(self.inputs))


def trials(model: Model, counts: Sequence[int], search_s: float = SEARCH_S) -> Iterator[Trial]:
    """Yield the trials of `auto` and every axis on each number of devices; `search_s` is the search budget of
    `auto`."""
    graph = load_graph(model.path, shapes=model.shapes)
    inputs = model.inputs(0)
    allowed = ANYTHING if model.name in SATURATED else tolerance_for(graph)
    expected = _Expected(model.path, inputs, run_alone(model.path, inputs), allowed)
    with throwaway() as compiler:
        for count in counts:
            rehearsal = Rehearsal(graph, SHARES[count], compiler=compiler)
            for axis in (AUTO, *rehearsal.axes):
                began = time.monotonic()
                made = _trial(model.name, rehearsal, axis, search_s, expected, compiler)
                yield replace(made, seconds=time.monotonic() - began)


def _trial(
    name: str,
    rehearsal: Rehearsal,
    axis: str,
    search_s: float,
    expected: _Expected,
    compiler: Compiler,
) -> Trial:
    count, allowed = len(rehearsal.shares), expected.allowed
    try:
        if axis == AUTO:
            devices, split, used = _auto(rehearsal.graph, count, search_s, compiler)
        else:
            made = rehearsal.divide(axis)
            devices, split, used = made.devices, len(made.split), made.devices_used
        got = devices.run(expected.inputs)
        beyond = differences(got, expected.outputs, allowed)
        wrong = find_unexplained(got, expected.outputs, expected.moved, allowed) if beyond else []
    except EdgepartError as error:
        return Trial(name, count, axis, wrong=(f"{type(error).__name__}: {error}",))
    if axis != AUTO and not split:
        wrong.append(f"nothing was split along {axis}, an axis that it has")
    difference = largest_difference(got, expected.outputs)
    explained = () if wrong else tuple(beyond)
    return Trial(name, count, axis, difference, allowed, used, split, tuple(wrong), explained)


def _auto(graph: Graph, count: int, search_s: float, compiler: Compiler) -> tuple[LocalRun, int, int]:
    """Return auto's plan ready to run, the number of operators that it really splits, and the number of
    devices used."""
    shares = SHARES[count]
    devices = (Device(f"device{n}", f"kind{n}", SLOW_FLOPS * s, 1e9 * s, 1e12) for n, s in enumerate(shares))
    cluster = Cluster(tuple(devices), default_link=Link(1e9, 1e-5, 1e-6))
    problem = Problem(graph, cluster, "device0", search_budget_s=search_s)
    study = Study(problem)
    strategy = best_strategy(problem, AUTO, study)
    accesses = study.memo.coarse.accesses
    plan = check_plan(
        make_plan(problem, strategy, model_digest="", cost=study.memo.cost, accesses=accesses), graph
    )
    draft = lower(problem, strategy, accesses)
    return (
        LocalRun(plan, graph, compiler=compiler),
        len(divided_operators(draft, strategy, accesses)),
        count_devices(draft),
    )


def run(names: Sequence[str], counts: Sequence[int]) -> list[Trial]:
    """Run every trial of the models and report each model when it is done."""
    found: list[Trial] = []
    for name in names:
        began = time.monotonic()
        mine = list(trials(zoo_model(name), counts))
        found += mine
        bad = sum(bool(one.wrong) for one in mine)
        worst = max((one.difference for one in mine if one.difference is not None), default=0.0)
        ways = dict.fromkeys(one.axis for one in mine)
        note(
            f"{name}: {len(mine)} ways ({', '.join(ways)}), {bad} wrong, at most {worst:.0e}, "
            f"{time.monotonic() - began:.0f} s"
        )
    return found


def show(found: Sequence[Trial], counts: Sequence[int], seconds: float) -> None:
    cells: dict[tuple[str, str], dict[int, str]] = {}
    for one in found:
        cells.setdefault((one.model, one.axis), {})[one.devices] = one.cell
    columns = [f"{count} devices" for count in counts]
    rows = [(*key, *(row.get(count, "-") for count in counts)) for key, row in cells.items()]
    say(f"largest difference from one session, relative; operators split, devices used; {sentence()}")
    show_table(table(("model", "axis", *columns), rows, right=columns))
    for one in found:
        for text in one.wrong:
            say(f"{one.model} along {one.axis} on {one.devices}: {text}")
        for text in one.explained:
            say(
                f"{one.model} along {one.axis} on {one.devices}: {text}, and one rounding of the inputs moves "
                "one session's own answer as much"
            )
    for name, allowed in {one.model: one.allowed for one in found if one.allowed is not None}.items():
        if name in SATURATED:
            say(f"{name} is not compared: {SATURATED[name]}")
        else:
            say(f"{name} computes in less than float32: {allowed:g} of the largest magnitude is allowed")
    whole = sorted({one.model for one in found} - {one.model for one in found if one.axis != AUTO})
    say(f"without any axis: {', '.join(whole) or 'none'}")
    bad = sum(bool(one.wrong) for one in found)
    say(f"{len(found)} divisions in {seconds:.0f} s, {bad} with a wrong answer or none")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.every_axis", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--json", type=Path, help="write every trial there")
    parser.add_argument("--small", action="store_true", help="only the small models of each kind")
    parser.add_argument("--models", help="only these, separated by commas")
    parser.add_argument("--devices", default="2,3,5", help=f"how many, of {', '.join(map(str, SHARES))}")
    options = parser.parse_args(arguments)
    names = options.models.split(",") if options.models else SMALL if options.small else tuple(ZOO)
    counts = [int(count) for count in options.devices.split(",")]
    began = time.monotonic()
    found = run(names, counts)
    seconds = time.monotonic() - began
    show(found, counts, seconds)
    if options.json:
        document = {"machine": describe(), "seconds": seconds, "trials": [asdict(one) for one in found]}
        options.json.write_text(json.dumps(document, indent=2))
    return int(not found or any(one.wrong for one in found))


if __name__ == "__main__":
    sys.exit(main())
