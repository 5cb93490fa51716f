"""Fuzz target for workload files."""

from __future__ import annotations

import json
from typing import Any

from edgepart.planner.errors import ModelError
from edgepart.planner.placing.engine.dispatch import dispatch
from edgepart.planner.placing.problem.checker import violations
from edgepart.planner.placing.problem.read import looks_like_workload, read_workload
from edgepart.planner.placing.problem.schedule import PlacementFound
from edgepart.planner.placing.problem.write import answer_document
from tests.fuzz.forms import Json
from tests.fuzz.target import Target, expect, plainly
from tests.planner.placing.workload_files import workload_document

WORKLOAD: dict[str, Any] = {
    "schema": "edgepart-workload/1",
    "name": "w",
    "devices": [
        {"name": "a", "kind": "acc", "memory_bytes": 3e6, "count": 2},
        {"name": "host", "kind": "cpu"},
    ],
    "default_link": {"bytes_per_s": 1e8, "latency_s": 1e-4},
    "links": [{"a": "a0", "b": "host", "bytes_per_s": 1e9, "latency_s": 0.0, "up_bytes_per_s": 5e8}],
    "nodes": [
        {
            "id": "n0",
            "op": "Conv",
            "compute_s": {"acc": 2e-3, "cpu": 2e-2},
            "memory_bytes": 5e5,
            "colocate": "g",
        },
        {"id": "n1", "compute_s": {"a1": 6e-3}},
        {"id": "n2"},
    ],
    "edges": [
        {"source": "n0", "target": "n1", "bytes": 2e5, "tensor": "s", "transfer_s": {"a0->a1": 4e-3}},
        {"source": "n0", "target": "n2", "bytes": 2e5, "tensor": "s", "transfer_s": {"a0->a1": 4e-3}},
        {"source": "n1", "target": "n2", "bytes": 1e5},
    ],
    "overlap": False,
}


def _workload(data: bytes) -> None:
    """Read a workload, write it, read it again and place it: all numbers in the results have to be finite."""
    looks_like_workload(data)
    found = read_workload(data)
    again = read_workload(json.dumps(workload_document(found), allow_nan=False))
    expect(
        again.tasks == found.tasks and again.machines == found.machines,
        "a workload is another when read again",
    )
    placement = tuple(min(range(len(again.machines)), key=task.compute_s.__getitem__) for task in found.tasks)
    schedule = dispatch(found, placement)
    answer = PlacementFound(placement, schedule.makespan_s, schedule)
    broken = {violation.rule for violation in violations(found, answer)} - {"memory", "colocation"}
    expect(not broken, f"a schedule breaks {broken}")
    json.dumps(answer_document(found, answer, "s", "latency", 0.0), allow_nan=False)


TARGETS = (
    Target(
        "workload files",
        lambda: [json.dumps(WORKLOAD).encode()],
        plainly(_workload),
        (ModelError,),
        Json(),
        0.3,
    ),
)
