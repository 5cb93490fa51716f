"""`edgepart plan WORKLOAD.json`: places the nodes of a graph of costs on devices, without any model. Door: it has a
clock, and prints."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Timer
from typing import TYPE_CHECKING, Any

from edgepart.cli.output import note, say, table
from edgepart.cli.planning.long_search import SILENT_S, interruptible, said_now_and_then
from edgepart.cli.planning.refused import in_short, refused_row
from edgepart.client.offline import SEARCH_S
from edgepart.planner.errors import Infeasible, NotInstalled
from edgepart.planner.figures import format_bytes, format_figure, format_seconds

if TYPE_CHECKING:
    from edgepart.planner.placing.problem.networks import Networks
    from edgepart.planner.placing.problem.workload import Workload

COMPILED = ("climb", "learned", "moirai", "auto")
"""The strategies that judge so many placements that it pays to have that compiled."""

CLIMBING = ("climb", "learned", "moirai")
"""The strategies for a model that spend seconds on judging placements. `auto` climbs for so short a time that loading what
is compiled does not pay."""

MOST_SEARCH_S = 60.0
"""The budget of a search that may end before it, once nothing better has come for long."""

FEW = 40
"""The most nodes that are listed one by one."""


def place(
    workload: Workload,
    strategy: str,
    objective: str,
    budget_s: float | None,
    networks: Networks,
    *,
    compare: bool,
    reasons: bool,
    as_json: bool,
) -> None:
    """Prints the placement that a strategy finds, or a comparison of all strategies. Without a budget, a search goes on as
    long as it finds better placements, and a comparison has ten seconds for each. Raises Infeasible and UsageError."""
    if compare:
        document = compare_strategies(
            workload, objective, SEARCH_S if budget_s is None else budget_s, networks
        )
        print(json.dumps(document)) if as_json else _print_comparison(document, reasons)
        return
    document = place_model(workload, strategy, objective, budget_s, networks)
    print(json.dumps(document)) if as_json else _print_answer(workload, document)


def place_model(
    workload: Workload, strategy: str, objective: str, budget_s: float | None, networks: Networks
) -> dict[str, Any]:
    """The placement that one strategy finds, checked, as a document. While it searches, stderr has the best so far."""
    from edgepart.planner.placing.placers.best import find
    from edgepart.planner.placing.problem.checker import check
    from edgepart.planner.placing.problem.schedule import Asked
    from edgepart.planner.placing.problem.write import answer_document

    if strategy in COMPILED:
        prepare_search()
    start = time.perf_counter()
    most_s = MOST_SEARCH_S if budget_s is None else budget_s
    values: list[float] = []
    with interruptible(), said_now_and_then(_news(strategy, objective, most_s, values)):
        asked = Asked(
            time.perf_counter,
            objective,
            most_s,
            patient=budget_s is not None,
            tell=values.append,
            networks=networks,
        )
        found = find(workload, strategy, asked)
    took_s = time.perf_counter() - start
    return answer_document(workload, check(workload, found, objective), strategy, objective, took_s)


def _news(strategy: str, objective: str, most_s: float, values: Sequence[float]) -> Callable[[float], str]:
    """What to say of a search after so many seconds: that it goes on, and how good the best placement is of those with
    these values."""

    def news(searched_s: float) -> str:
        best = f"; the best so far: {_format_value(objective, min(values))}" if values else ""
        return f"{strategy} has searched for {searched_s:.0f} s, {most_s:.0f} s at most{best}"

    return news


def prepare_search() -> None:
    """Has what judges placements compiled, if numba is installed, before the time of a search begins to count."""
    from edgepart.planner.placing.engine.judge import prepare

    slow = Timer(SILENT_S, lambda: note("compiling what judges placements; this is done once on a machine"))
    slow.daemon = True
    slow.start()
    try:
        prepare()
    finally:
        slow.cancel()


def compare_strategies(
    workload: Workload, objective: str, budget_s: float, networks: Networks
) -> dict[str, Any]:
    """The placements of all strategies. Each one has the whole budget."""
    from edgepart.planner.placing.placers.best import names

    rows: dict[str, Any] = {}
    for name in names():
        try:
            document = place_model(workload, name, objective, budget_s, networks)
        except (Infeasible, NotInstalled) as error:
            rows[name] = refused_row(error)
        else:
            kept = ("value_s", "bound_s", "gap", "search_s", "why")
            rows[name] = {"feasible": True, **{key: document[key] for key in kept}}
            rows[name]["devices"] = sorted(_used_devices(document))
    return {"workload": workload.name, "objective": objective, "strategies": rows}


def _used_devices(document: Mapping[str, Any]) -> set[str]:
    """The devices that have any node."""
    turns = document.get("replicas", {})
    return {*document["placement"].values(), *(name for names in turns.values() for name in names)}


def _format_value(objective: str, value_s: float) -> str:
    """The value of an objective with its unit.

    >>> _format_value("latency", 0.0121), _format_value("throughput", 0.01)
    ('12.1 ms', '100/s')
    """
    if objective == "latency":
        return format_seconds(value_s)
    return f"{format_figure(1 / value_s, 4)}/s" if value_s else "any rate"


def _print_comparison(document: Mapping[str, Any], reasons: bool) -> None:
    objective = document["objective"]
    title = "makespan" if objective == "latency" else "throughput"
    columns = ("strategy", title, "bound", "gap", "devices", "search")
    rows = []
    for name, row in document["strategies"].items():
        if not row["feasible"]:
            rows.append((name, in_short(row), "", "", "", ""))
            continue
        bound, gap = row["bound_s"], row["gap"]
        rows.append(
            (
                name,
                _format_value(objective, row["value_s"]),
                "" if bound is None else _format_value(objective, bound),
                "" if gap is None else f"{gap:.1%}",
                str(len(row["devices"])),
                format_seconds(row["search_s"]),
            )
        )
    say(f"{document['workload']}")
    _show(table(columns, rows, columns[1:]))
    for name, row in document["strategies"].items():
        if reasons or not row["feasible"]:
            say(f"{name}: {row['why']}", prose=True)


def _print_answer(workload: Workload, document: Mapping[str, Any]) -> None:
    objective = document["objective"]
    bound = document["bound_s"]
    proved = (
        ""
        if bound is None
        else f"; nothing can be below {format_seconds(bound)} (a gap of {document['gap']:.1%})"
    )
    value = f"{format_seconds(document['value_s'])} {'for a sample' if objective == 'latency' else 'between two samples'}"
    say(
        f"{workload.name} · {document['strategy']}: {value}{proved}, found in {format_seconds(document['search_s'])}"
    )
    _show(_devices(workload, document))
    if len(workload.tasks) <= FEW:
        _show(_nodes(document))
    say(document["why"], prose=True)


def _show(made: Any) -> None:
    from edgepart.cli.output import console

    console().print(made)


def _devices(workload: Workload, document: Mapping[str, Any]) -> Any:
    rows = []
    turns = document.get("replicas", {})
    where = {name: turns.get(name, [device]) for name, device in document["placement"].items()}
    sent = document.get("transfers", [])
    for number, machine in enumerate(workload.machines):
        here = [task for task in workload.tasks if machine.name in where[task.name]]
        compute_s = sum(task.compute_s[number] / len(where[task.name]) for task in here)
        moved = [
            sum(t["end_s"] - t["start_s"] for t in sent if t[end] == machine.name) for end in ("from", "to")
        ]
        kept = format_bytes(sum(task.memory_bytes for task in here))
        rows.append(
            (machine.name, str(len(here)), format_seconds(compute_s), *map(format_seconds, moved), kept)
        )
    columns = ("device", "nodes", "computes", "sends", "receives", "keeps")
    if not sent and document["objective"] != "latency":
        return table(
            (*columns[:3], columns[5]), [(*row[:3], row[5]) for row in rows], (*columns[1:3], columns[5])
        )
    return table(columns, rows, columns[1:])


def _nodes(document: Mapping[str, Any]) -> Any:
    """A row for each node, in the order in which the nodes begin, if that is known."""
    starts, where = document.get("start_s"), document["placement"]
    turns = document.get("replicas", {})
    if starts is None:
        return table(
            ("node", "on"), [(name, ", ".join(turns.get(name, [device]))) for name, device in where.items()]
        )
    order = sorted(where, key=lambda name: starts[name])
    return table(
        ("node", "on", "from"),
        [(name, where[name], format_seconds(starts[name])) for name in order],
        ("from",),
    )
