"""A plan as a self-contained HTML page: its figures, the predicted timeline with its messages, and which device computes
which part of every layer. The page uses inline SVG and CSS, runs no script and fetches nothing. Pure: text in, text out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from edgepart.planner.figures import format_bytes, format_figure, format_seconds
from edgepart.planner.layers.coarsen import layers
from edgepart.planner.layout.strategy import Problem, Strategy
from edgepart.planner.plans.plan import GATEWAY, Plan
from edgepart.planner.region import Region
from edgepart.planner.report.document import part_text
from edgepart.planner.simulation.latency import Simulation

COLOURS = ("#3b82f6", "#f59e0b", "#10b981", "#ec4899", "#8b5cf6", "#14b8a6", "#ef4444", "#84cc16")
WIDTH = 1280
LEFT = 110
MOST_ARROWS = 400
"""The most arrows that are drawn: more would only make the page black. The largest messages are drawn, and the others are
counted."""

STYLE = """ :root{color-scheme:light
dark;--ink:#1f2937;--soft:#6b7280;--line:#d1d5db;--paper:#fff;--card:#f3f4f6} @media(prefers-color-
scheme:dark){:root{--ink:#e5e7eb;--soft:#9ca3af;--line:#374151;--paper:#111827;--card:#1f2937}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:24px auto;max-
width:1320px; padding:0 20px}h1{font-size:22px;margin:0}h2{font-size:16px;margin:28px 0 4px}p{margin:4px
0}.soft{color:var(--soft)} .cards{display:flex;gap:12px;flex-wrap:wrap;margin:16px
0}.card{background:var(--card);border-radius:8px; padding:10px 16px}.card b{display:block;font-
size:20px}table{border-collapse:collapse;margin:8px 0}td,th{padding:3px 14px 3px 0;text-align:right;font-
variant-numeric:tabular-nums}td:first-child,th:first-child{text-align:left} th{color:var(--soft);font-
weight:500}svg{width:100%;height:auto;display:block}svg text{fill:var(--ink);font:11px system-ui,sans-
serif}svg .soft{fill:var(--soft)}.swatch{display:inline-block;width:11px;height:11px;border-radius:3px;
margin-right:6px} """


def draw(
    document: Mapping[str, Any], plan: Plan, simulation: Simulation, problem: Problem, strategy: Strategy
) -> str:
    """The page as text. `document` is the summary of the same plan by planner/report/document.py."""
    colours = {name: COLOURS[n % len(COLOURS)] for n, name in enumerate(plan.programs)}
    body = [
        f"<h1>{escape(str(document['model']))}</h1>",
        f'<p class="soft">strategy {escape(plan.strategy)} · {escape(plan.why)}</p>',
        _cards(document, plan),
        _table(document, colours),
        "<h2>Timeline of one request, predicted</h2>",
        _said_of_replicas(plan),
        '<p class="soft">Solid: computing. Thin bar below: sending. Grey: waiting for data. Lines: messages.</p>',
        _timeline(plan, simulation, colours, problem.gateway),
        "<h2>Who computes which part of every layer</h2>",
        '<p class="soft">Left to right: the layers of the model. Top to bottom: the split axis, 0 at the top. Overlap'
        " (recomputed borders) shows as mixed colour. Hover for names and ranges.</p>",
        _parts(problem, strategy, colours),
    ]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(str(document["model"]))}: plan</title>'
        f"<style>{STYLE}</style><body>{''.join(body)}</body></html>\n"
    )


def _said_of_replicas(plan: Plan) -> str:
    if not plan.replicas:
        return ""
    groups = "; ".join(" with ".join(one.devices) for one in plan.replicas)
    return f'<p class="soft">A request goes to one of the replicas; each is shown with one: {escape(groups)}.</p>'


def _cards(document: Mapping[str, Any], plan: Plan) -> str:
    single = document["baselines"]["single"]
    replicas = [(f"{len(plan.replicas)}", "replicas: a request goes to one")] if plan.replicas else []
    cards = [
        (format_seconds(document["predicted_latency_s"], 4), "latency"),
        (f"{format_figure(document['predicted_throughput_per_s'] or 0)} /s", "throughput, many in flight"),
        (f"{len(plan.programs)}", "devices"),
        *replicas,
        (f"{plan.syncs}", "messages between devices"),
    ]
    if single:
        alone_s, mine = single["predicted_latency_s"], document["predicted_latency_s"]
        cards.insert(1, (format_seconds(alone_s, 4), f"best single device ({single['device']})"))
        if mine:
            cards.insert(2, (f"{alone_s / mine:.2f}x", "speed-up"))
    return (
        '<div class="cards">'
        + "".join(
            f'<div class="card"><b>{escape(big)}</b><span class="soft">{escape(small)}</span></div>'
            for big, small in cards
        )
        + "</div>"
    )


def _table(document: Mapping[str, Any], colours: Mapping[str, str]) -> str:
    rows = []
    for name, row in document["devices"].items():
        cells = [format_seconds(row["compute_s"], 4)]
        cells += [
            format_bytes(row[k])
            for k in ("sent_bytes", "received_bytes", "weight_bytes", "peak_memory_bytes")
        ]
        cells.append(str(row["segments"]))
        rows.append(
            f'<tr><td><span class="swatch" style="background:{colours[name]}"></span>{escape(name)}</td>'
            + "".join(f"<td>{cell}</td>" for cell in cells)
            + "</tr>"
        )
    heads = ("device", "computes", "sends", "receives", "weights", "peak memory", "segments")
    return f"<table><tr>{''.join(f'<th>{h}</th>' for h in heads)}</tr>{''.join(rows)}</table>"


def _timeline(plan: Plan, simulation: Simulation, colours: Mapping[str, str], gateway: str) -> str:
    lanes = {name: 34 + 58 * n for n, name in enumerate(plan.programs)}
    total = max([one.latency_s for one in simulation.replicas] or [simulation.latency_s]) or 1.0
    height = 40 + 58 * len(lanes)

    def x(seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - 10) * seconds / total

    parts = list(_ruler(total, x, height))
    for name, y in lanes.items():
        parts.append(f'<text x="4" y="{y + 17}">{escape(name)}{" ⌂" if name == gateway else ""}</text>')
        for bar in simulation.timeline[name]:
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
    inner = [t for t in plan.transfers if GATEWAY not in (t.source, t.target)]
    shown = sorted(inner, key=lambda t: -t.nbytes)[:MOST_ARROWS]
    for t in shown:
        start, stop = simulation.departures_s[t.number], simulation.arrivals_s[t.number]
        down = lanes[t.target] > lanes[t.source]
        parts.append(
            f'<line x1="{x(start):.2f}" y1="{lanes[t.source] + (33 if down else 0)}" x2="{x(stop):.2f}" '
            f'y2="{lanes[t.target] + (0 if down else 33)}" stroke="{colours[t.source]}" stroke-width="1" '
            f'opacity=".55"><title>{escape(t.source)} to {escape(t.target)}: {format_bytes(t.nbytes)}</title></line>'
        )
    note = (
        f'<p class="soft">{len(inner) - len(shown)} smaller messages are not drawn.</p>'
        if inner != shown and len(inner) > len(shown)
        else ""
    )
    return f'<svg viewBox="0 0 {WIDTH} {height}">{"".join(parts)}</svg>{note}'


def _ruler(total: float, x: Any, height: int) -> Iterator[str]:
    for n in range(11):
        at = x(total * n / 10)
        yield f'<line x1="{at:.1f}" y1="18" x2="{at:.1f}" y2="{height}" stroke="var(--line)" stroke-width=".6"/>'
        anchor = "end" if n == 10 else "middle"
        yield f'<text class="soft" x="{at:.1f}" y="12" text-anchor="{anchor}">{format_figure(total * n * 100, 4)} ms</text>'


def _parts(problem: Problem, strategy: Strategy, colours: Mapping[str, str]) -> str:
    """A column for each tensor between layers, with each device's interval along the axis that is split."""
    graph, layer_of, layouts = problem.graph, layers(problem.graph), strategy.all_layouts
    names = [
        name
        for op in graph.operators
        for name in op.outputs
        if name
        and name in layouts
        and layouts[name].regions
        and (
            name in graph.outputs or any(layer_of[r.name] != layer_of[op.name] for r in graph.consumers[name])
        )
    ]
    step, tall = (WIDTH - 10) / max(1, len(names)), 200
    wide = max(step - (1 if step > 4 else 0), 0.8)
    parts = [f'<rect x="5" y="0" width="{WIDTH - 10}" height="{tall}" fill="var(--card)"/>']
    kinds = []
    for n, name in enumerate(names):
        full, left = graph.region_of(name), 5 + n * step
        regions = layouts[name].regions
        axis = _cut_axis(regions, full)
        kinds.append(axis)
        alone = len(regions) == 1
        for device, region in regions.items():
            for start, stop in _bounds(region, full, axis):
                title = f"{name}: {device} {part_text(region, full)}"
                parts.append(
                    f'<rect x="{left:.2f}" y="{start * tall:.2f}" width="{wide:.2f}" '
                    f'height="{max((stop - start) * tall, 0.5):.2f}" fill="{colours.get(device, "#9ca3af")}" '
                    f'opacity="{0.95 if alone else 0.72}"><title>{escape(title)}</title></rect>'
                )
    parts += list(_axis_labels(kinds, step, tall, problem, names))
    return f'<svg viewBox="0 0 {WIDTH} {tall + 34}">{"".join(parts)}</svg>' + _legend(colours)


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


def _axis_labels(
    kinds: list[int | None], step: float, tall: int, problem: Problem, names: list[str]
) -> Iterator[str]:
    """A label below each run of layers that are split along the same axis."""
    start = 0
    for n in range(1, len(kinds) + 1):
        if n < len(kinds) and _label(kinds[n], problem, names[n]) == _label(
            kinds[start], problem, names[start]
        ):
            continue
        text = _label(kinds[start], problem, names[start])
        left, right = 5 + start * step, 5 + n * step
        yield f'<line x1="{left + 1:.1f}" y1="{tall + 6}" x2="{right - 1:.1f}" y2="{tall + 6}" stroke="var(--soft)"/>'
        if right - left > 6 * len(text):
            middle = (left + right) / 2
            yield f'<text class="soft" x="{middle:.1f}" y="{tall + 21}" text-anchor="middle">{text}</text>'
        start = n


def _label(axis: int | None, problem: Problem, name: str) -> str:
    if axis is None:
        return "whole"
    full = problem.graph.region_of(name)
    empty = full.replace(axis, ())
    return part_text(empty, full).split(" ")[0]


def _legend(colours: Mapping[str, str]) -> str:
    return (
        "<p>"
        + " &nbsp; ".join(
            f'<span class="swatch" style="background:{colour}"></span>{escape(name)}'
            for name, colour in colours.items()
        )
        + "</p>"
    )
