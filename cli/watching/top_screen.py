"""The screen of `edgepart top`: the documents of an agent's live feed as tables. Rules: documents in, renderables out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edgepart.cli.candidate_text import candidate_text
from edgepart.cli.output import table
from edgepart.cli.watching.events_command import event_text
from edgepart.planner.figures import format_bytes, format_figure, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

BLOCKS = " ▁▂▃▄▅▆▇█"
SPARK = 12
"""The letters of a small chart; each is a slice of time."""
MOST_EVENTS = 12
MOST_LINKS = 6
GAP = 3
"""The letters between two columns of a table."""


@dataclass
class LiveView:
    """What the feed has told so far."""

    cluster: Mapping[str, Any] | None = None
    deployments: Mapping[str, Any] = field(
        default_factory=lambda: {"cards": [], "under_way": {}, "failed": {}}
    )
    traffic: Mapping[str, Any] = field(default_factory=lambda: {"slice_s": 5.0, "models": {}})
    events: list[Mapping[str, Any]] = field(default_factory=list)
    fault: str = ""
    """Why the view is not what it is now; "" if it is."""

    @property
    def is_whole(self) -> bool:
        """Whether everything was told at least once."""
        return self.cluster is not None

    def take(self, kind: str, document: Any) -> None:
        """Take an event of the feed; kinds that this version does not know are left out."""
        if kind == "cluster":
            self.cluster = document
        elif kind == "deployments":
            self.deployments = document
        elif kind == "traffic":
            self.traffic = document
        elif kind == "event":
            # Another agent, or another life of this one, tells the past anew.
            own = [event for event in self.events if _log(event) == _log(document)]
            self.events = [*own, document][-MOST_EVENTS:]
        elif kind == "fault":
            self.fault = f"the agent cannot tell how things are: {document}" if document else ""

    def urls(self) -> list[str]:
        """The URLs of the members that the agent told last."""
        return [str(one["http"]) for one in (self.cluster or {}).get("members", ()) if one.get("http")]


def _log(event: Mapping[str, Any]) -> str:
    """Which log an event is of; "" if it has no id."""
    return str(event.get("id", "")).rpartition(".")[0]


def screen(view: LiveView, now_s: float, width: int) -> RenderableType:
    """The whole screen, `width` letters wide. `now_s` is in seconds since 1970."""
    from rich.console import Group
    from rich.text import Text

    if view.cluster is None:
        return Text(view.fault or "asking…", style="dim")
    parts: list[RenderableType] = [_head(view.cluster, now_s)]
    if view.fault:
        parts.append(Text(view.fault, style="red"))
    parts += [Text(), _devices(view.cluster, now_s, width)]
    if links := _links(view.cluster):
        parts += [Text(), table(("link", "speed", "used"), links, right=("speed", "used"))]
    parts += [Text(), _deployments(view, width)]
    notices = view.cluster["notices"]
    parts += [Text(f"! {one['text']}", style="red" if one["trouble"] else "yellow") for one in notices]
    if view.events:
        parts += [Text(), *(_one_line(event_text(event)) for event in reversed(view.events))]
    return Group(*parts)


def _one_line(text: Text) -> Text:
    """The text in one line, whose end is left out if there is no room."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def fitting(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    spare: Sequence[str],
    right: Sequence[str],
) -> Table:
    """A table without as many of the `spare` columns, the first ones first, as it takes to fit into so many letters."""
    kept = list(range(len(columns)))
    for name in (*spare, ""):
        lengths = [max(len(cell) for cell in (columns[n], *(row[n] for row in rows))) for n in kept]
        if sum(lengths) + GAP * (len(kept) - 1) <= width or not name:
            break
        kept = [n for n in kept if columns[n] != name]
    return table(
        [columns[n] for n in kept],
        [[row[n] for n in kept] for row in rows],
        [name for name in right if name in columns],
    )


def _head(cluster: Mapping[str, Any], now_s: float) -> RenderableType:
    from rich.text import Text

    count = len(cluster["members"])
    return Text.assemble(
        ("edgepart top", "bold"),
        f"   cluster {str(cluster['cluster'])[:16]}   leader {cluster['leader'] or 'none yet'}   "
        f"{count} {'device' if count == 1 else 'devices'}   asked {cluster['name']}, "
        f"up {format_seconds(max(now_s - cluster['started_s'], 0.0))}",
    )


def _devices(cluster: Mapping[str, Any], now_s: float, width: int) -> RenderableType:
    rows = []
    for member in cluster["members"]:
        device = member["device"]
        name = str(member["name"]) + (" *" if member["leader"] else "")
        if device is None:
            rows.append((name, str(member["state"]), "not measured yet", "", "", ""))
            continue
        rows.append(
            (
                name,
                str(member["state"]),
                str(device["kind"]),
                f"{format_figure(device['flops_per_s'] / 1e9)} GFLOP/s",
                str(device["threads"]),
                format_bytes(device["memory_bytes"]),
            )
        )
    for gone in cluster["lost"]:
        ago = format_seconds(max(round(now_s - gone["since_s"]), 0))
        rows.append((str(gone["name"]), f"{gone['state']} {ago} ago", "", "", "", ""))
    columns = ("device", "state", "kind", "compute", "threads", "memory")
    return fitting(columns, rows, width, ("threads", "memory", "kind", "compute"), right=columns[3:])


def _links(cluster: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The links that requests use most."""
    used = sorted(
        (link["sent_bytes_per_s"] / link["bytes_per_s"], f"{link['a']} - {link['b']}", link)
        for link in cluster["links"]
    )
    return [
        (name, f"{format_bytes(link['bytes_per_s'])}/s", f"{format_figure(100 * share, 2)} %")
        for share, name, link in reversed(used[-MOST_LINKS:])
        if share > 0
    ]


def _deployments(view: LiveView, width: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    document: Mapping[str, Any] = view.deployments
    talks = any(card["sequences"] for card in document["cards"])
    columns = [
        "deployment",
        "state",
        "answers/s",
        "lately",
        "p50",
        "p99",
        "errors",
        *(["tokens/s"] if talks else []),
    ]
    rows, notes = [], []
    for card in document["cards"]:
        name, step = str(card["name"]), document["under_way"].get(card["name"])
        state = str(card["state"] if card["epoch"] or not step else _step(step))
        figures = _figures(card, view.traffic["models"].get(name))
        rows.append((name, _first_word(state), *figures)[: len(columns)])
        if card["epoch"]:
            on = ", ".join(card["devices"]) or "the gateways alone"
            notes.append(
                Text(f"{name} on {on}, predicted {format_seconds(card['predicted_latency_s'])}", "dim")
            )
        if text := candidate_text(card):
            notes.append(Text(text, "dim"))
        if why := card["trouble"] or (state if _first_word(state) != state else ""):
            notes.append(Text(f"{name}: {why}", "red" if card["epoch"] else "yellow"))
    known = {card["name"] for card in document["cards"]}
    for name, step in document["under_way"].items():
        if name not in known:
            rows.append((name, "being deployed", *[""] * (len(columns) - 2)))
            notes.append(Text(f"{name}: {_step(step)}", "yellow"))
    for name, why in document["failed"].items():
        if name not in known:
            rows.append((name, "failed", *[""] * (len(columns) - 2)))
            notes.append(Text(f"{name}: {why}", "red"))
    if not rows:
        return Text("nothing deployed", style="dim")
    right = ("answers/s", "p50", "p99", "errors", "tokens/s")
    spare = ("lately", "p99", "errors", "tokens/s", "answers/s", "p50")
    return Group(fitting(columns, rows, width, spare, right), Text(), *notes)


def _first_word(state: str) -> str:
    """A state that fits into its column: its first word, if it is a sentence."""
    return state if len(state) <= 14 else state.partition(" ")[0].rstrip(":")


def _step(step: Mapping[str, Any]) -> str:
    if not step["total"]:
        return str(step["stage"])
    return f"{step['stage']} {100 * step['done'] / step['total']:.0f} %"


def _figures(card: Mapping[str, Any], traffic: Mapping[str, Any] | None) -> tuple[str, ...]:
    if traffic is None:
        return "-", "", "-", "-", "-", "-"
    lately = traffic["lately"]
    speed = (card["sequences"] or {}).get("tokens_per_s")
    return (
        format_figure(lately["per_s"]),
        spark(traffic["per_s"][-SPARK:]),
        format_seconds(lately["p50_s"]),
        format_seconds(lately["p99_s"]),
        str(sum(traffic["errors"].values())),
        "-" if speed is None else format_figure(speed),
    )


def spark(values: Sequence[float | None]) -> str:
    """A small chart of letters.

    >>> spark([0.0, 1.0, None, 4.0])
    ' ▂ █'
    """
    most = max((value or 0.0 for value in values), default=0.0)
    if most <= 0:
        return " " * len(values)
    return "".join(BLOCKS[round((len(BLOCKS) - 1) * (value or 0.0) / most)] for value in values)
