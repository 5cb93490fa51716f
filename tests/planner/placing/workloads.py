"""Workloads for tests: chains, branches, and any."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from edgepart.planner.placing.problem.workload import Machine, SharedMedium, Task, TaskTensor, Workload

INF = float("inf")


def workload(
    compute_s: list[tuple[float, ...]],
    tensors: list[tuple[int, tuple[int, ...], float]],
    *,
    bytes_per_s: float = 100.0,
    latency_s: float = 0.0,
    memory_bytes: tuple[float, ...] = (),
    task_bytes: tuple[float, ...] = (),
    colocate: tuple[str, ...] = (),
) -> Workload:
    """Tasks t0, t1 ... by what they take on each machine; machines m0, m1 ... with equal links."""
    count = len(compute_s[0])
    kept = task_bytes or (0.0,) * len(compute_s)
    together = colocate or ("",) * len(compute_s)
    return Workload(
        "test",
        tuple(Machine(f"m{n}", f"k{n}", (memory_bytes or (INF,) * count)[n]) for n in range(count)),
        tuple(Task(f"t{n}", "Op", row, kept[n], together[n]) for n, row in enumerate(compute_s)),
        tuple(TaskTensor(source, readers, nbytes) for source, readers, nbytes in tensors),
        tuple(tuple(INF if a == b else bytes_per_s for b in range(count)) for a in range(count)),
        tuple(tuple(0.0 if a == b else latency_s for b in range(count)) for a in range(count)),
    )


def roomy(tight: Workload) -> Workload:
    """The same with memory for everything on each machine."""
    return replace(tight, machines=tuple(replace(machine, memory_bytes=INF) for machine in tight.machines))


@st.composite
def workloads(
    draw: DrawFn,
    most_tasks: int = 8,
    most_machines: int = 4,
    *,
    memory: bool = False,
    partial: bool = False,
    groups: bool = False,
    media: bool = False,
) -> Workload:
    """Any small one. `memory`: machines may have too little for all; `partial`: tasks may not run everywhere; `groups`:
    some must be together; `media`: links may share some."""
    tasks = draw(st.integers(1, most_tasks))
    count = draw(st.integers(1, most_machines))
    seconds = st.integers(0, 20).map(float)
    rows = [[draw(seconds) for _ in range(count)] for _ in range(tasks)]
    if partial:
        for row in rows:
            for machine in draw(st.sets(st.integers(0, count - 1), max_size=count - 1)):
                row[machine] = INF
    tensors = []
    for source in range(tasks - 1):
        readers = draw(st.sets(st.integers(source + 1, tasks - 1), max_size=3))
        if readers:
            tensors.append((source, tuple(sorted(readers)), float(draw(st.integers(0, 500)))))
    kept = tuple(float(draw(st.integers(0, 10))) for _ in range(tasks)) if memory else ()
    room = tuple(float(draw(st.integers(0, 10 * tasks))) for _ in range(count)) if memory else ()
    made = workload(
        [tuple(row) for row in rows],
        tensors,
        latency_s=float(draw(st.integers(0, 3))),
        memory_bytes=room,
        task_bytes=kept,
        colocate=tuple(draw(st.sampled_from(["", "", "g", "h"])) for _ in range(tasks)) if groups else (),
    )
    links = [(a, b) for a in range(count) for b in range(a)]
    if not media or not links:
        return made
    shared = draw(st.lists(st.sets(st.sampled_from(links), min_size=1), max_size=2))
    return replace(
        made,
        media=tuple(
            SharedMedium(f"w{n}", frozenset(way for a, b in some for way in ((a, b), (b, a))))
            for n, some in enumerate(shared)
        ),
    )
