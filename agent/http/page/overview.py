"""Overview: the documents that the page shows, made from what the agent knows. Rules: no door; time is an argument.

They are made again and again while somebody looks, and only those that differ are sent. So they hold no time that passes:
what began or ended is told as a time since 1970, and the reader's clock does the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from edgepart.agent.api.model_card import ModelCard
from edgepart.agent.api.notices import all_notices
from edgepart.agent.chronicle.request_history import SLICE_S, RequestFigures, RequestHistory
from edgepart.planner.figures import format_figure

Between = Mapping[str, Sequence[Mapping[str, Any]]]
"""Maps each deployment that serves to what a request sends between devices: {"source", "target", "bytes"} for each pair."""


def cluster_document(
    status: Mapping[str, Any],
    devices: Mapping[str, Any],
    between: Between,
    rates: Mapping[str, float],
    now_s: float,
) -> dict[str, Any]:
    """The devices and the links between them. `rates` are requests per second through this agent, by deployment; `now_s`
    is in seconds since 1970."""
    measured = {device["name"]: device for device in devices.get("devices", ())}
    loads = link_loads(between, rates)
    names = ("kind", "flops_per_s", "threads", "memory_bytes", "memory_bytes_per_s")
    members = [
        {
            key: member.get(key)
            for key in ("name", "node", "state", "leader", "note", "address", "http", "grpc")
        }
        | {
            "device": {key: measured[member["name"]].get(key) for key in names}
            if member["name"] in measured
            else None
        }
        for member in status["members"]
    ]
    return {
        "name": status["name"],
        "cluster": status["cluster"],
        "version": status["version"],
        "leader": status.get("leader"),
        "term": status.get("term"),
        "started_s": round(now_s - status["uptime_s"]),
        "members": members,
        "lost": [
            {"name": gone["name"], "state": gone["state"], "since_s": round(now_s - gone["seconds_ago"])}
            for gone in status.get("lost", ())
        ],
        "links": [
            {
                "a": link["a"],
                "b": link["b"],
                # Of two directions that differ, the slower one is full first.
                "bytes_per_s": min(link["bytes_per_s"], link.get("up_bytes_per_s", link["bytes_per_s"])),
                "latency_s": link["latency_s"],
                "sent_bytes_per_s": _rounded(loads.get(frozenset((link["a"], link["b"])), 0.0)),
            }
            for link in devices.get("links", ())
        ],
        "notices": [asdict(notice) for notice in all_notices(status)],
        "sequences": status.get("sequences"),
    }


def link_loads(between: Between, rates: Mapping[str, float]) -> dict[frozenset[str], float]:
    """Bytes per second that these requests send over each link, both directions together.

    >>> link_loads({"net": [{"source": "a", "target": "b", "bytes": 100}]}, {"net": 3.0}) == {frozenset("ab"): 300.0}
    True
    """
    found: dict[frozenset[str], float] = {}
    for name, pairs in between.items():
        for pair in pairs:
            link = frozenset((pair["source"], pair["target"]))
            found[link] = found.get(link, 0.0) + pair["bytes"] * rates.get(name, 0.0)
    return found


def deployments_document(
    cards: Sequence[ModelCard],
    talking: Collection[str],
    failures: Mapping[str, str],
    under_way: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """The deployments, those whose last try through this agent failed, and those that are being deployed through it.
    `talking` are the names of those that generate text."""
    return {
        "cards": [asdict(card) | {"talks": card.name in talking} for card in cards],
        "failed": dict(failures),
        "under_way": {name: dict(step) for name, step in under_way.items()},
    }


def traffic_document(history: RequestHistory, now: float, wall_s: float) -> dict[str, Any]:
    """The requests of this agent's clients, by deployment. `now` is a time of the history's clock, `wall_s` the same moment
    in seconds since 1970."""
    return {
        "slice_s": SLICE_S,
        "models": {model: _traffic(history, model, now, wall_s) for model in history.models()},
    }


def _traffic(history: RequestHistory, model: str, now: float, wall_s: float) -> dict[str, Any]:
    series, last = history.series(model, now), history.last(model)
    return {
        "lately": _figures(history.lately(model, now)),
        "per_s": [_rounded(one.per_s) for one in series],
        "p50_s": [_rounded(one.p50_s) for one in series],
        "p99_s": [_rounded(one.p99_s) for one in series],
        "failed": [one.failed for one in series],
        "tokens_per_s": [_rounded(one.tokens_per_s) for one in series],
        "errors": history.errors(model, now),
        "last": None if last is None else asdict(last) | {"at_s": round(wall_s - (now - last.at_s), 1)},
    }


def _figures(one: RequestFigures) -> dict[str, Any]:
    return {name: _rounded(value) for name, value in asdict(one).items()}


def _rounded(value: float | None) -> float | None:
    """A figure with three digits or so, so that a document changes only if somebody can see that it does."""
    return None if value is None else float(format_figure(value))


def entry_document(number: int, life: str, entry: Any) -> dict[str, Any]:
    """An entry of a numbered log, which is a record; `id` is what a reader who comes back names."""
    return {"id": f"{life}.{number}"} | asdict(entry)


def number_of(identity: str, life: str) -> int:
    """The number in the id of an entry; 0 if it is of another log, or no id.

    >>> number_of("ab12.7", "ab12"), number_of("cd34.7", "ab12"), number_of("", "ab12"), number_of("ab12.x", "ab12")
    (7, 0, 0, 0)
    """
    own, _, number = identity.rpartition(".")
    return int(number) if own == life and number.isascii() and number.isdigit() and len(number) < 16 else 0
