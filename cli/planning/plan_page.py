"""A plan as a self-contained HTML page: its figures, the predicted timeline with its messages, and which device computes
which part of every layer. The page uses inline SVG and CSS, runs no script and fetches nothing. Pure: text in, text out."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from edgepart.planner.figures import format_bytes, format_figure, format_seconds
from edgepart.planner.layout.strategy import Problem, Strategy
from edgepart.planner.plans.plan import GATEWAY, Plan
from edgepart.planner.report.drawing import (
    MOST_ARROWS,
    colour_devices,
    computed_tensors,
    draw_layers,
    predicted_timeline,
)
from edgepart.planner.simulation.latency import Simulation

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
    colours = colour_devices(plan.programs)
    inner = sum(GATEWAY not in (t.source, t.target) for t in plan.transfers)
    left_out = f'<p class="soft">{inner - MOST_ARROWS} smaller messages are not drawn.</p>'
    body = [
        f"<h1>{escape(str(document['model']))}</h1>",
        f'<p class="soft">strategy {escape(plan.strategy)} · {escape(plan.why)}</p>',
        _cards(document, plan),
        _table(document, colours),
        "<h2>Timeline of one request, predicted</h2>",
        _said_of_replicas(plan),
        '<p class="soft">Solid: computing. Thin bar below: sending. Grey: waiting for data. Lines: messages.</p>',
        predicted_timeline(plan, simulation, problem.gateway),
        left_out if inner > MOST_ARROWS else "",
        "<h2>Who computes which part of every layer</h2>",
        '<p class="soft">Left to right: the layers of the model. Top to bottom: the split axis, 0 at the top. Overlap'
        " (recomputed borders) shows as mixed colour. Hover for names and ranges.</p>",
        draw_layers(computed_tensors(problem.graph, strategy), colours),
        _legend(colours),
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


def _legend(colours: Mapping[str, str]) -> str:
    return (
        "<p>"
        + " &nbsp; ".join(
            f'<span class="swatch" style="background:{colour}"></span>{escape(name)}'
            for name, colour in colours.items()
        )
        + "</p>"
    )
