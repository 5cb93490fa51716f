"""Drawings of plans as SVG: a timeline with messages, and who computes which part of every layer. Pure: text comes out.

Pages of two kinds show them: the file of `edgepart plan --html`, and the page of every agent. A drawing has no script and
no style of its own. Its colours for text, lines and ground are the variables --ink, --soft, --line and --card, and the
class "soft" marks texts that matter less; the page around it says what these are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from edgepart.planner.devices.cluster import Cluster
from edgepart.planner.figures import format_bytes, format_figure, format_seconds
from edgepart.planner.layers.coarsen import layers
from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.model.graph import Graph
from edgepart.planner.plans.plan import GATEWAY, ComputedTensor, Plan
from edgepart.planner.plans.timeline import TimelineBar
from edgepart.planner.region import Region
from edgepart.planner.report.document import part_text
from edgepart.planner.simulation.latency import Simulation, simulate

COLOURS = ("#3b82f6", "#f59e0b", "#10b981", "#ec4899", "#8b5cf6", "#14b8a6", "#ef4444", "#84cc16")
WIDTH = 1280
LEFT = 110
LANE = 58
MOST_ARROWS = 400
"""The most arrows that are drawn: more would only make the page black. The largest messages are drawn."""
MOST_BARS = 4000
"""The most bars that are drawn of one device, the longest ones: a browser shows no more in the width of a screen."""


@dataclass(frozen=True, slots=True)
class DrawnMessage:
    """A message between two devices, in seconds from the begin of the request."""

    source: str
    target: str
    start_s: float
    stop_s: float
    nbytes: int


def colour_devices(names: Iterable[str]) -> dict[str, str]:
    """A colour for each device, in the order of the plan."""
    return {name: COLOURS[n % len(COLOURS)] for n, name in enumerate(names)}


def draw_plan(plan: Plan, cluster: Cluster, gateway: str) -> dict[str, Any]:
    """The pictures of a plan that serves on this cluster, for requests that enter at `gateway`: {"devices": {name: colour},
    "timeline", "layers"}. There is no timeline if a device of the plan is not in the cluster, and no layers if the plan
    does not tell of them."""
    colours = colour_devices(plan.programs)
    there = {device.name for device in cluster.devices}
    timeline = None
    if plan.programs and there.issuperset(plan.programs):
        at = gateway if gateway in there else next(iter(plan.programs))
        timeline = predicted_timeline(plan, simulate(plan, cluster, at), at)
    layers = draw_layers(plan.layers, colours) if plan.layers else None
    return {"devices": colours, "timeline": timeline, "layers": layers}


# The timeline


def predicted_timeline(plan: Plan, simulation: Simulation, gateway: str) -> str:
    """The predicted course of one request; with replicas, of one on each of them."""
    total_s = max([one.latency_s for one in simulation.replicas] or [simulation.latency_s])
    messages = [
        DrawnMessage(
            t.source,
            t.target,
            simulation.departures_s[t.number],
            simulation.arrivals_s[t.number],
            t.nbytes,
        )
        for t in plan.transfers
        if GATEWAY not in (t.source, t.target)
    ]
    bars = {name: simulation.timeline[name] for name in plan.programs}
    return draw_timeline(bars, messages, total_s, gateway)


def draw_timeline(
    bars: Mapping[str, Sequence[TimelineBar]],
    messages: Sequence[DrawnMessage],
    total_s: float,
    gateway: str,
) -> str:
    """A lane for each device with its bars, and lines for the messages between them."""
    colours = colour_devices(bars)
    lanes = {name: 34 + LANE * n for n, name in enumerate(bars)}
    total, height = total_s or 1.0, 40 + LANE * len(lanes)

    def x(seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - 10) * min(max(seconds, 0.0), total) / total

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}">',
        *_ruler(total, height),
    ]
    for name, y in lanes.items():
        parts.append(
            f'<text x="4" y="{y + 17}">{escape(_short(name))}{" ⌂" if name == gateway else ""}</text>'
        )
        shown = sorted(bars[name], key=lambda bar: bar.start_s - bar.stop_s)[:MOST_BARS]
        for bar in sorted(shown, key=lambda bar: bar.start_s):
            top, tall, fill = {
                "compute": (y, 24, colours[name]),
                "send": (y + 27, 6, colours[name]),
                "wait": (y + 9, 6, "#9ca3af88"),
            }[bar.kind]
            wide = max(x(bar.stop_s) - x(bar.start_s), 0.6)
            parts.append(
                f'<rect x="{x(bar.start_s):.2f}" y="{top}" width="{wide:.2f}" height="{tall}" fill="{fill}" rx="1.5">'
                f"<title>{escape(name)}: {bar.kind} {escape(bar.what)}, {format_seconds(bar.stop_s - bar.start_s)}"
                "</title></rect>"
            )
    for one in sorted(messages, key=lambda one: -one.nbytes)[:MOST_ARROWS]:
        down = lanes[one.target] > lanes[one.source]
        parts.append(
            f'<line x1="{x(one.start_s):.2f}" y1="{lanes[one.source] + (33 if down else 0)}" x2="{x(one.stop_s):.2f}" '
            f'y2="{lanes[one.target] + (0 if down else 33)}" stroke="{colours[one.source]}" stroke-width="1" '
            f'opacity=".55"><title>{escape(one.source)} to {escape(one.target)}: {format_bytes(one.nbytes)}</title></line>'
        )
    return "".join([*parts, "</svg>"])


def _short(name: str) -> str:
    """A name that fits beside the lanes; the titles of bars have the whole one."""
    return name if len(name) <= 14 else f"{name[:13]}…"


def _ruler(total_s: float, height: int) -> Iterator[str]:
    for n in range(11):
        at = LEFT + (WIDTH - LEFT - 10) * n / 10
        yield f'<line x1="{at:.1f}" y1="18" x2="{at:.1f}" y2="{height}" stroke="var(--line)" stroke-width=".6"/>'
        anchor = "end" if n == 10 else "middle"
        yield (
            f'<text class="soft" x="{at:.1f}" y="12" text-anchor="{anchor}">{format_figure(total_s * n * 100, 4)} ms</text>'
        )


# Who computes what


def computed_tensors(graph: Graph, strategy: Strategy) -> tuple[ComputedTensor, ...]:
    """Each tensor between layers, or that is an output, with the regions of those who compute it."""
    layer_of, layouts = layers(graph), strategy.all_layouts
    return tuple(
        ComputedTensor(name, graph.region_of(name).shape, dict(layouts[name].regions))
        for op in graph.operators
        for name in op.outputs
        if name
        and name in layouts
        and layouts[name].regions
        and (
            name in graph.outputs or any(layer_of[r.name] != layer_of[op.name] for r in graph.consumers[name])
        )
    )


def draw_layers(tensors: Sequence[ComputedTensor], colours: Mapping[str, str]) -> str:
    """A column for each tensor between layers, with each device's interval along the axis that is split."""
    step, tall = (WIDTH - 10) / max(1, len(tensors)), 200
    wide = max(step - (1 if step > 4 else 0), 0.8)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {tall + 34}">',
        f'<rect x="5" y="0" width="{WIDTH - 10}" height="{tall}" fill="var(--card)"/>',
    ]
    labels = []
    for n, one in enumerate(tensors):
        full, left = Region.full(one.shape), 5 + n * step
        axis = _cut_axis(one.regions, full)
        labels.append(_label(axis, full))
        for device, region in one.regions.items():
            title = f"{one.tensor}: {device} {part_text(region, full)}"
            for start, stop in _bounds(region, full, axis):
                parts.append(
                    f'<rect x="{left:.2f}" y="{start * tall:.2f}" width="{wide:.2f}" '
                    f'height="{max((stop - start) * tall, 0.5):.2f}" fill="{colours.get(device, "#9ca3af")}" '
                    f'opacity="{0.95 if len(one.regions) == 1 else 0.72}"><title>{escape(title)}</title></rect>'
                )
    return "".join([*parts, *_axis_labels(labels, step, tall), "</svg>"])


def _cut_axis(regions: Mapping[str, Region], full: Region) -> int | None:
    """The first axis of which a device has only a part; None if all devices have everything."""
    for region in regions.values():
        for axis, (mine, whole) in enumerate(zip(region.spans, full.spans, strict=True)):
            if mine != whole:
                return axis
    return None


def _bounds(region: Region, full: Region, axis: int | None) -> list[tuple[float, float]]:
    if axis is None:
        return [(0.0, 1.0)]
    extent = full.shape[axis] or 1
    return [(interval.start / extent, interval.stop / extent) for interval in region.spans[axis]]


def _axis_labels(labels: Sequence[str], step: float, tall: int) -> Iterator[str]:
    """A label below each run of layers that are split along the same axis."""
    start = 0
    for n in range(1, len(labels) + 1):
        if n < len(labels) and labels[n] == labels[start]:
            continue
        left, right = 5 + start * step, 5 + n * step
        yield f'<line x1="{left + 1:.1f}" y1="{tall + 6}" x2="{right - 1:.1f}" y2="{tall + 6}" stroke="var(--soft)"/>'
        if right - left > 6 * len(labels[start]):
            middle = (left + right) / 2
            yield (
                f'<text class="soft" x="{middle:.1f}" y="{tall + 21}" text-anchor="middle">{labels[start]}</text>'
            )
        start = n


def _label(axis: int | None, full: Region) -> str:
    return "whole" if axis is None else part_text(full.replace(axis, ()), full).split(" ")[0]
