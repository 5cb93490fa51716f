"""Batches: whether requests of a model can be run as one of many rows. Rules: no door."""

from __future__ import annotations

from edgepart.agent.wire.inference import DeployOptions
from edgepart.planner.errors import UsageError
from edgepart.planner.model.graph import Graph


def check_batches(graph: Graph, options: DeployOptions) -> None:
    """Raises UsageError if the options want batches, and the model's rows are not independent requests by its own account:
    the first dimension of all inputs and outputs has to be free, and the same."""
    rows = options.batch_rows
    if rows < 2:
        return
    if graph.states:
        raise UsageError(
            f"--batch {rows}: the model keeps states between requests, which belong to one client"
        )
    if not options.bindings:
        raise UsageError(f"--batch {rows} needs a plan for {rows} rows: give --bindings 1 or more")
    firsts = {
        name: (graph.free.get(name) or (None,))[0] for name in (*graph.request_inputs, *graph.answer_outputs)
    }
    if fixed := [name for name, first in firsts.items() if first is None]:
        raise UsageError(
            f"--batch {rows}: the first dimension of {', '.join(map(repr, fixed))} is fixed; batches need one that is free "
            "in all inputs and outputs (export the model with a dynamic batch dimension)"
        )
    # A dimension without a name may be the same as any other; the first batch shows it.
    named = {name: first for name, first in firsts.items() if first}
    if len(set(named.values())) > 1:
        told = ", ".join(f"{first!r} in {name!r}" for name, first in named.items())
        raise UsageError(
            f"--batch {rows}: the first dimensions differ, and have to be one for batches: {told}"
        )
