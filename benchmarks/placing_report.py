"""Tables and sentences about the results of benchmarks.placing, and the part of docs/placing.md that is made
of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from statistics import geometric_mean

from rich.table import Table

from benchmarks.machine import as_markdown
from benchmarks.models.sketches import TABLE
from benchmarks.page import replaced
from benchmarks.placing_trial import Cell
from edgepart.cli.output import table

Key = tuple[str, str, str, str]
"""Model, setting, graph and placer."""
Cells = Mapping[Key, Cell]

ROUNDING = 1e-9

PUBLISHED: Mapping[str, Mapping[tuple[str, str], float]] = {
    "m-sct": {
        ("inter-server", "original"): 1.77,
        ("inter-server", "coarsened"): 1.90,
        ("intra-server", "original"): 1.70,
        ("intra-server", "coarsened"): 1.74,
    },
    "getf": {
        ("inter-server", "original"): 1.33,
        ("inter-server", "coarsened"): 1.25,
        ("intra-server", "original"): 1.35,
        ("intra-server", "coarsened"): 1.34,
    },
}
"""Maps a placer, then a setting and a graph, to the largest ratio of its makespan to that of the paper's
placements (Moirai, section IV-B)."""

PUBLISHED_SAVING: Mapping[str, float] = {"inter-server": 0.057, "intra-server": 0.038}
"""Maps a setting to the largest share of a makespan that coarsening saves (section IV-C)."""

BEGIN, END = "<!-- figures: written by `make placing` -->", "<!-- end of figures -->"


def ratios(cells: Cells, placer: str, setting: str, graph: str) -> dict[str, float]:
    """Return the ratio of the placer's makespan to moirai's, by model, for models on which both found a placement."""
    found = {}
    for model in _names(cells, 0):
        theirs, ours = (cells.get((model, setting, graph, name)) for name in (placer, "moirai"))
        if theirs and ours and theirs.makespan_s and ours.makespan_s:
            found[model] = theirs.makespan_s / ours.makespan_s
    return found


def better(cells: Cells) -> list[str]:
    """Return a sentence for each case in which another placer's schedule is shorter than moirai's."""
    return [
        f"{model}, {setting}, {graph}: {placer}'s schedule takes {ratio:.4f} times as long as moirai's"
        for setting, graph in _where(cells)
        for placer in _others(cells)
        for model, ratio in ratios(cells, placer, setting, graph).items()
        if ratio < 1 - ROUNDING
    ]


def saving(cells: Cells, setting: str) -> dict[str, float]:
    """Return, by model, the share of the makespan that moirai saves by placing fused operators as one task."""
    found = {}
    for model in _names(cells, 0):
        fine, coarse = (cells.get((model, setting, graph, "moirai")) for graph in ("original", "coarsened"))
        if fine and coarse and fine.as_run_s and coarse.makespan_s:
            found[model] = 1 - coarse.makespan_s / fine.as_run_s
    return found


def tables(cells: Cells) -> Iterator[Table]:
    """Yield tables of makespans, of the benefit of coarsening, and of the cost of searching."""
    for setting, graph in _where(cells):
        yield _makespans(cells, setting, graph)
    if {"original", "coarsened"} <= set(_names(cells, 2)):
        yield _coarsening(cells)
    yield _search(cells)
    yield _costs(cells)


def _makespans(cells: Cells, setting: str, graph: str) -> Table:
    others = _others(cells)
    rows = []
    for model in _names(cells, 0):
        ours = cells.get((model, setting, graph, "moirai"))
        over = (_ratio(cells.get((model, setting, graph, name)), ours) for name in others)
        rows.append(
            (
                model,
                f"{ours.tasks:,}" if ours else "",
                _ms(ours.makespan_s if ours else None),
                _gap(ours),
                *over,
            )
        )
    columns = ("model", "tasks", "moirai ms", "at most too long", *others)
    made = table(columns, rows, right=columns[1:])
    made.title = f"{setting}, {graph}: makespan of moirai, and of others over it"
    return made


def _ratio(theirs: Cell | None, ours: Cell | None) -> str:
    """Return the ratio of two makespans; the first one in ms if moirai has none."""
    if theirs is None or theirs.makespan_s is None:
        return "none" if theirs else ""
    return (
        f"{theirs.makespan_s / ours.makespan_s:.3f}" if ours and ours.makespan_s else _ms(theirs.makespan_s)
    )


def _ms(value: float | None) -> str:
    return "none" if value is None else f"{value * 1e3:.2f}" if value < 1 else f"{value * 1e3:.0f}"


def _gap(cell: Cell | None) -> str:
    if cell is None or cell.bound_s is None or not cell.makespan_s:
        return ""
    return f"{max(0.0, 1 - cell.bound_s / cell.makespan_s):.1%}"


def _coarsening(cells: Cells) -> Table:
    rows = []
    for setting in _names(cells, 1):
        saved = saving(cells, setting)
        for model in _names(cells, 0):
            fine, coarse = (
                cells.get((model, setting, graph, "moirai")) for graph in ("original", "coarsened")
            )
            if fine is None or coarse is None:
                continue
            paper = f"{1 - TABLE[model].coarsened / TABLE[model].operators:.0%}" if model in TABLE else ""
            rows.append(
                (
                    setting,
                    model,
                    f"{fine.tasks:,}",
                    f"{coarse.tasks:,}",
                    f"{1 - coarse.tasks / fine.tasks:.0%}",
                    paper,
                    _ms(fine.makespan_s),
                    _ms(fine.as_run_s),
                    _ms(coarse.makespan_s),
                    f"{saved[model]:.1%}" if model in saved else "",
                )
            )
    columns = (
        "setting",
        "model",
        "operators",
        "tasks",
        "fewer",
        "paper",
        "operators ms",
        "fused as run",
        "tasks ms",
        "saved",
    )
    made = table(columns, rows, right=columns[2:])
    made.title = "coarsening: moirai on operators, the same when devices fuse what they have, and moirai on what is fused"
    return made


def _search(cells: Cells) -> Table:
    placers = _names(cells, 3)
    rows = [
        (model, graph, *(_longest(cells, model, graph, name) for name in placers))
        for model in _names(cells, 0)
        for graph in _names(cells, 2)
    ]
    made = table(("model", "graph", *placers), rows, right=placers)
    made.title = "seconds of search, the longer of both settings"
    return made


def _longest(cells: Cells, model: str, graph: str, placer: str) -> str:
    took = [
        c.search_s
        for (m, _, g, p), c in cells.items()
        if (m, g, p) == (model, graph, placer) and c.makespan_s
    ]
    return f"{max(took):.1f}" if took else "none"


def _costs(cells: Cells) -> Table:
    rows = []
    for placer in _names(cells, 3):
        several = [cell for cell in cells.values() if cell.placer == placer]
        answered = [cell for cell in several if cell.makespan_s is not None]
        if not answered:
            continue
        rows.append(
            (
                placer,
                f"{len(answered)} of {len(several)}",
                f"{max(c.budget_s for c in answered):.0f}",
                f"{max(c.search_s for c in answered):.1f}",
                f"{max(c.search_cpu_s for c in answered):.1f}",
                f"{max(c.peak_bytes for c in answered) / 2**20:.0f}",
                str(sum(bool(cell.violations) for cell in answered)),
            )
        )
    columns = ("placer", "answers", "told s", "at most s", "at most CPU s", "at most MiB", "break a rule")
    made = table(columns, rows, right=columns[1:])
    made.title = "what searching costs"
    return made


def sentences(cells: Cells) -> Iterator[str]:
    """Yield sentences that compare the results with the paper's."""
    for placer, published in PUBLISHED.items():
        for setting, graph in _where(cells):
            if found := ratios(cells, placer, setting, graph):
                most = max(found, key=lambda model: found[model])
                paper = published.get((setting, graph))
                yield (
                    f"{setting}, {graph}: {placer} takes up to {found[most]:.2f} times as long as moirai ({most}), "
                    f"{geometric_mean(found.values()):.2f} times on average"
                    + (f"; the paper says up to {paper:.2f}." if paper else ".")
                )
    for setting in _names(cells, 1):
        if saved := saving(cells, setting):
            most = max(saved, key=lambda model: saved[model])
            paper = PUBLISHED_SAVING.get(setting)
            yield (
                f"{setting}: coarsening saves moirai up to {saved[most]:.1%} ({most}), at least {min(saved.values()):.1%}"
                + (f"; the paper says up to {paper:.1%}." if paper else ".")
            )
    for setting, graph in _where(cells):
        beaten = [s for s in better(cells) if s.split(": ")[0].endswith(f"{setting}, {graph}")]
        nearest = {
            model: min(
                (ratios(cells, name, setting, graph).get(model, float("inf")), name)
                for name in _others(cells)
            )
            for model in ratios(cells, "m-etf", setting, graph)
        }
        if nearest:
            mean = geometric_mean(ratio for ratio, _ in nearest.values())
            yield (
                f"{setting}, {graph}: the best of the others takes {mean:.3f} times as long as moirai on average "
                f"({_counted([name for _, name in nearest.values()])}); it is better than moirai in {len(beaten)} cells."
            )


def _counted(names: Sequence[str]) -> str:
    return ", ".join(f"{name} {len(list(same))}" for name, same in groupby(sorted(names)))


def page(cells: Cells, machine: str) -> str:
    """Return the part of the document between `BEGIN` and `END`."""
    lines = [f"Measured on {machine}.", ""]
    lines += [f"- {one}" for one in sentences(cells)]
    for one in tables(cells):
        lines += ["", *as_markdown(one)]
    return "\n".join(lines)


def rewritten(document: str, figures: str) -> str:
    """Return the document with new figures in place of the old ones."""
    return replaced(document, BEGIN, END, f"\n{figures}\n")


def _where(cells: Cells) -> list[tuple[str, str]]:
    return [(setting, graph) for setting in _names(cells, 1) for graph in _names(cells, 2)]


def _others(cells: Cells) -> list[str]:
    return [name for name in _names(cells, 3) if name != "moirai"]


def _names(cells: Cells, part: int) -> list[str]:
    """Return the models, settings, graphs or placers, in the order of the cells."""
    return list(dict.fromkeys(key[part] for key in cells))
