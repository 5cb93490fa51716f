"""`edgepart status`, `devices` and `models`: show what an agent knows. They change nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgepart.agent.api.notices import all_notices
from edgepart.cli.candidate_text import candidate_text
from edgepart.cli.options import Agent, Json, State
from edgepart.cli.output import console, print_json, say, shape, table
from edgepart.cli.query import fetch
from edgepart.client.target import AgentTarget, target_of
from edgepart.planner.errors import EdgepartError, UsageError
from edgepart.planner.figures import format_bytes, format_count, format_figure, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

WATCH_S = 1.0
WARNING, TROUBLE = "yellow", "red"
"""Colours of notices."""

Watch = Annotated[bool, typer.Option("--watch", "-w", help="Refresh every second.")]


def status(
    state: State = None,
    agent: Agent = None,
    watch: Watch = False,
    as_json: Json = False,
) -> None:
    """Show members, leader and deployments."""
    if watch and as_json:
        raise UsageError("--watch and --json exclude each other: a stream is not one JSON document")
    target = target_of(agent, state)
    if watch:
        _watch(target)
        return
    document = fetch(target, "/api/status")
    if as_json:
        print_json(document)
    else:
        console().print(_status(document))


def devices(state: State = None, agent: Agent = None, as_json: Json = False) -> None:
    """Show how fast each device and each link is. --json prints a cluster.json for `edgepart plan --cluster`."""
    document = fetch(target_of(agent, state), "/api/devices")
    if as_json:
        print_json(document)
        return
    out = console()
    out.print(_devices(document["devices"]))
    if links := document.get("links"):
        out.print()
        out.print(_links(links))
    for line in _engines(document):
        out.print(f"\n{line}")
    for medium in document.get("media", ()):
        members = ", ".join(medium["devices"])
        out.print(f"\n{members} send {format_bytes(medium['bytes_per_s'])}/s at most when all send at once")


def _devices(devices: Sequence[Mapping[str, Any]]) -> RenderableType:
    rows = [
        (
            device["name"],
            device["kind"],
            f"{format_figure(device['flops_per_s'] / 1e9)} GFLOP/s",
            f"{format_bytes(device['memory_bytes_per_s'])}/s",
            format_bytes(device["memory_bytes"]),
            str(device["threads"]),
        )
        for device in devices
    ]
    columns = ("device", "kind", "compute", "memory speed", "memory", "threads")
    return table(columns, rows, right=columns[2:])


def _engines(document: Mapping[str, Any]) -> Iterator[str]:
    """What each device computes with besides its CPU, and what it does without."""
    for device in document["devices"]:
        for engine in device.get("engines", ()):
            rate = format_figure(engine["flops_per_s"] / 1e9)
            exact = "" if engine.get("precision", "float32") == "float32" else f" in {engine['precision']}"
            yield f"{device['name']} has {engine['name']}: {rate} GFLOP/s{exact} ({engine['provider']})"
    for name, left_out in document.get("engines_left_out", {}).items():
        yield from (f"{name} does without {engine}: {why}" for engine, why in left_out.items())
    for name, refused in document.get("engines_refused", {}).items():
        for engine in dict.fromkeys(one["engine"] for one in refused):
            mine = [one for one in refused if one["engine"] == engine]
            many = format_count(len(mine), "segment")
            last = mine[-1]
            yield f"{name} computes {many} without {engine}, which {last['outcome']}: {last.get('why', '')}"


def _links(links: Sequence[Mapping[str, Any]]) -> RenderableType:
    rows = [
        (
            f"{link['a']} - {link['b']}",
            _speed(link),
            # A small message takes the latency of the link, and a fixed time at each end.
            format_seconds(link["latency_s"] + 2 * link["message_s"]),
        )
        for link in links
    ]
    return table(("link", "speed", "small message"), rows, right=("speed", "small message"))


def _speed(link: Mapping[str, Any]) -> str:
    """The rate of a link, or of both its directions where they differ, the one from the end that is named first first."""
    rates = [link["bytes_per_s"], *([link["up_bytes_per_s"]] if "up_bytes_per_s" in link else [])]
    return ", back ".join(f"{format_bytes(rate)}/s" for rate in rates)


def models(state: State = None, agent: Agent = None, as_json: Json = False) -> None:
    """Show what is deployed: state, plan, inputs and outputs."""
    document = fetch(target_of(agent, state), "/api/models")
    if as_json:
        print_json(document)
        return
    if not document["models"]:
        say("Nothing is deployed. Deploy a model with `edgepart deploy MODEL`.")
        return
    for card in document["models"]:
        _print_card(card)


def _not_prepared(card: Mapping[str, Any]) -> list[str]:
    """The devices of a plan on several for whose loss no other plan is loaded."""
    devices = card["devices"]
    return [name for name in devices if name not in card.get("covered", ())] if len(devices) > 1 else []


def _print_card(card: Mapping[str, Any]) -> None:
    say(f"{card['name']}: {card['state']}, {_versions(card)}")
    if card.get("weights"):
        say(f"  weights: {_weights(card)}", prose=True)
    if card.get("strategy"):
        if card.get("trouble"):
            say(f"  does not answer: {card['trouble']}", prose=True)
        predicted = format_seconds(card["predicted_latency_s"])
        say(f"  {card['strategy']} on {', '.join(card['devices'])}, predicted {predicted}", prose=True)
        for line in str(card["why"]).splitlines():
            say(f"  {line}", prose=True)
        if card.get("covered"):
            say(f"  prepared for the loss of {', '.join(card['covered'])}", prose=True)
        if missing := _not_prepared(card):
            say(f"  not prepared yet for the loss of {', '.join(missing)}: requests would wait", prose=True)
        if card.get("note"):
            say(f"  note: {card['note']}", prose=True)
    if card.get("quantised"):
        say(f"  {card['quantised']}", prose=True)
    if text := candidate_text(card):
        say(f"  {text}", prose=True)
    if card.get("candidate_of"):
        say(
            f"  the candidate of {card['candidate_of']}: `edgepart promote {card['candidate_of']}` lets it serve"
        )
    for side in ("inputs", "outputs"):
        for value in card[side]:
            say(f"  {side[:-1]:6} {value['name']}  {value['dtype']} {shape(value['shape'])}")
    for number, bound in enumerate(card.get("bindings") or ()):
        say(f"  {_bound(bound)}", prose=True)
        for line in str(bound.get("why", "")).splitlines() if number else ():  # The first one's is above.
            say(f"    {line}", prose=True)


def _versions(card: Mapping[str, Any]) -> str:
    """The versions of the model: the one that serves, the one on its way, and those that a rollback can bring back."""
    coming, kept = card.get("next_version"), card.get("kept_versions") or ()
    texts = [f"version {card.get('version', 1)}"]
    if coming:
        texts.append(f"version {coming} is on its way")
    if back := [number for number in kept if number != card.get("version")]:
        texts.append(f"kept for a rollback: {', '.join(back)}")
    return "; ".join(texts)


def _weights(card: Mapping[str, Any]) -> str:
    """How far the weights of each device have come."""
    return ", ".join(
        f"{one['device']} has {format_bytes(one['here_bytes'])} of {format_bytes(one['needed_bytes'])}"
        for one in card["weights"]
    )


def _bound(bound: Mapping[str, Any]) -> str:
    shapes = " ".join(f"{name}={','.join(map(str, extents))}" for name, extents in bound["shapes"].items())
    if bound["epoch"] is None:
        return f"shapes {shapes}: {bound['state']}"
    where = ", ".join(bound["devices"]) or "the gateways alone"
    return f"shapes {shapes}: {where}, predicted {format_seconds(bound['predicted_latency_s'])}"


def _watch(target: AgentTarget) -> None:
    from rich.live import Live
    from rich.text import Text

    with Live(console=console(), screen=True, auto_refresh=False) as live:
        while True:
            try:
                live.update(_status(fetch(target, "/api/status")), refresh=True)
            except EdgepartError as error:
                live.update(
                    Text(f"{error}\n\ntrying again every second; Ctrl-C ends this", style="red"), refresh=True
                )
            time.sleep(WATCH_S)


def _status(document: Mapping[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [_head(document), _members(document)]
    if deployments := [_deployment(card) for card in document.get("deployments", ())]:
        columns = ("deployment", "state", "epoch", "strategy", "devices", "predicted")
        parts += [Text(), table(columns, deployments, right=("epoch", "predicted"))]
    else:
        parts.append(Text("\nNothing is deployed.", style="dim"))
    if told := [text for card in document.get("deployments", ()) if (text := candidate_text(card))]:
        parts += [Text(), *map(Text, told)]
    if rows := [_sequences(card) for card in document.get("deployments", ()) if card.get("sequences")]:
        columns = ("sequences of", "under way", "for later", "most", "their states", "last answers")
        parts += [Text(), table(columns, rows, right=(*columns[1:4], columns[5]))]
    parts += [
        Text(f"\nweights of {card['name']}: {_weights(card)}")
        for card in document.get("deployments", ())
        if card.get("weights")
    ]
    parts += [
        Text(f"\n{one.text}", style=TROUBLE if one.trouble else WARNING) for one in all_notices(document)
    ]
    return Group(*parts)


def _head(document: Mapping[str, Any]) -> RenderableType:
    from rich.text import Text

    leader = document.get("leader") or "none yet"
    return Text.assemble(
        "cluster ",
        (str(document["cluster"])[:16], "bold"),
        f"   leader {leader} (term {document.get('term')})   asked {document['name']}, edgepart {document['version']}, "
        f"up {format_seconds(document.get('uptime_s'))}\n",
    )


def _members(document: Mapping[str, Any]) -> RenderableType:
    rows = [
        (
            str(member["name"]) + (" *" if member.get("leader") else ""),
            str(member.get("state") or "-"),
            str(member.get("address") or "-"),
            str(member.get("http") or "-"),
            {None: "-", "": "none"}.get(member.get("grpc"), str(member.get("grpc"))),
        )
        for member in document.get("members", ())
    ]
    rows += [
        (str(gone["name"]), f"{gone['state']} {format_seconds(gone['seconds_ago'])} ago", "-", "-", "-")
        for gone in document.get("lost", ())
    ]
    return table(("member", "state", "address", "http", "gRPC"), rows)


def _deployment(card: Mapping[str, Any]) -> tuple[str, ...]:
    epoch = card.get("epoch")
    return (
        str(card["name"]),
        str(card["state"]),
        f"{epoch['term']}.{epoch['number']}" if epoch else "-",
        str(card.get("strategy") or "-"),
        ", ".join(card.get("devices") or ()) or "-",
        format_seconds(card.get("predicted_latency_s")),
    )


def _sequences(card: Mapping[str, Any]) -> tuple[str, ...]:
    found = card["sequences"]
    speed = found["tokens_per_s"]
    return (
        str(card["name"]),
        str(found["under_way"]),
        str(found["idle"]),
        str(found["most"]),
        ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in found["state_bytes"].items()),
        "-" if speed is None else f"{format_figure(speed)} tokens/s",
    )
