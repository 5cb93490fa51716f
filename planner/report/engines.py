"""What a plan makes of the engines of its devices, and what each of them would give. Rules only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from edgepart.planner.devices.engine import CPU, EXACT, Engine
from edgepart.planner.figures import format_count, format_figure
from edgepart.planner.plans.plan import Plan, Program
from edgepart.planner.search.memo import Memo


@dataclass(frozen=True)
class EngineFigures:
    """What an engine of a device would give for a model, without starts and copies."""

    device: str
    engine: str
    operators: int
    """The number of operators that the engine can run and that take time."""
    cpu_s: float
    """Seconds that these operators take on the device's CPU."""
    engine_s: float
    """Seconds that they take on the engine."""
    precision: str = EXACT

    @property
    def times(self) -> float:
        """How many times as long as the CPU the engine takes."""
        return self.engine_s / self.cpu_s if self.cpu_s else 1.0


def engine_figures(memo: Memo) -> Iterator[EngineFigures]:
    """The figures of each engine of the cluster, those that round only if the problem allows it."""
    graph = memo.graph
    for device in memo.cluster.devices:
        for engine in device.engines:
            seconds = []
            for op in graph.operators:
                full = {n: graph.region_of(name) for n, name in enumerate(op.outputs) if name}
                access = memo.coarse.declared[op.name]
                both = (memo.cost.compute_s(op, access, full, device.name, one) for one in (CPU, engine.name))
                seconds.append(tuple(both))
            can = [pair for pair in seconds if pair[1] < float("inf") and pair[0]]
            yield EngineFigures(
                device.name,
                engine.name,
                len(can),
                sum(cpu_s for cpu_s, _ in can),
                sum(engine_s for _, engine_s in can),
                engine.precision,
            )


def engine_documents(memo: Memo) -> list[dict[str, Any]]:
    """The figures as JSON documents."""
    return [asdict(figures) | {"times_as_long": figures.times} for figures in engine_figures(memo)]


def describe_engines(memo: Memo, plan: Plan) -> list[str]:
    """Phrases that say what each engine of the plan's devices computes, or why it computes nothing."""
    return [
        _describe(figures, program, memo.cluster.device(figures.device).engine(figures.engine))
        for figures in engine_figures(memo)
        if (program := plan.programs.get(figures.device)) is not None
    ]


def _describe(figures: EngineFigures, program: Program, engine: object) -> str:
    name, device = figures.engine, figures.device
    mine = [segment for segment in program.segments if segment.engine == name]
    if mine:
        part = sum(one.compute_s for one in mine) / sum(one.compute_s for one in program.segments)
        segments = f"{len(mine)} of {format_count(len(program.segments), 'segment')}"
        return f"engine {name} of {device} computes {segments} ({part:.0%} of the device's time)"
    unused = f"engine {name} of {device} is not used"
    if not figures.operators:
        return f"{unused}: it can run none of the model's operators"
    if isinstance(engine, Engine) and engine.refused & {one.digest for one in program.segments}:
        return f"{unused}: it was refused for segments of this plan (`edgepart doctor` says why)"
    if figures.times >= 1:
        return f"{unused}: it would take {format_figure(figures.times)} times as long as the CPU"
    return f"{unused}: its starts and copies would take more time than it saves"
