"""`edgepart status`, `devices` and `models`: what an agent knows. They ask, and change nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgepart.cli.options import Agent, AgentTarget, Json, State, target_of
from edgepart.cli.output import console, nbytes, print_json, say, seconds, shape, table
from edgepart.planner.errors import EdgepartError, UsageError
from edgepart.planner.figures import figure

if TYPE_CHECKING:
    from rich.console import RenderableType

WATCH_S = 1.0


def status(
    state: State = None,
    agent: Agent = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again every second.")] = False,
    as_json: Json = False,
) -> None:
    """Members, leader and deployments."""
    if watch and as_json:
        raise UsageError("--watch and --json: a stream is no JSON document; give one of them")
    target = target_of(agent, state)
    if watch:
        _watch(target)
        return
    document = ask(target, "/api/status")
    if as_json:
        print_json(document)
    else:
        console().print(_status(document))


def devices(state: State = None, agent: Agent = None, as_json: Json = False) -> None:
    """What each device and each link can do. With --json: a cluster.json for `edgepart plan --cluster`."""
    document = ask(target_of(agent, state), "/api/devices")
    if as_json:
        print_json(document)
        return
    rows = [
        (
            device["name"],
            device["kind"],
            f"{figure(device['flops_per_s'] / 1e9)} GFLOP/s",
            f"{nbytes(device['memory_bytes_per_s'])}/s",
            nbytes(device["memory_bytes"]),
            str(device["threads"]),
        )
        for device in document["devices"]
    ]
    columns = ("device", "kind", "compute", "memory speed", "memory", "threads")
    out = console()
    out.print(table(columns, rows, right=columns[2:]))
    if links := document.get("links"):
        # A small message takes the way, and its fixed cost at each end.
        rows_of_links = [
            (
                f"{link['a']} - {link['b']}",
                f"{nbytes(link['bytes_per_s'])}/s",
                seconds(link["latency_s"] + 2 * link["message_s"]),
            )
            for link in links
        ]
        out.print()
        out.print(table(("link", "speed", "small message"), rows_of_links, right=("speed", "small message")))
    for medium in document.get("media", ()):
        members = ", ".join(medium["devices"])
        out.print(f"\n{members} send {nbytes(medium['bytes_per_s'])}/s at most when all send at once")


def models(state: State = None, agent: Agent = None, as_json: Json = False) -> None:
    """What is deployed: state, plan, inputs and outputs."""
    document = ask(target_of(agent, state), "/api/models")
    if as_json:
        print_json(document)
        return
    if not document["models"]:
        say("Nothing is deployed. Deploy a model with `edgepart deploy MODEL`.")
        return
    for card in document["models"]:
        say(f"{card['name']}: {card['state']}")
        if card.get("trouble") and card.get("strategy"):
            say(f"  does not answer: {card['trouble']}", prose=True)
        if card.get("strategy"):
            predicted = seconds(card["predicted_latency_s"])
            say(
                f"  {card['strategy']} on {', '.join(card['devices'])}, predicted {predicted}: {card['why']}",
                prose=True,
            )
        for side in ("inputs", "outputs"):
            for value in card[side]:
                say(f"  {side[:-1]:6} {value['name']}  {value['dtype']} {shape(value['shape'])}")
        for bound in card.get("bindings") or ():
            say(f"  {_bound(bound)}", prose=True)


def _bound(bound: Mapping[str, Any]) -> str:
    shapes = " ".join(f"{name}={','.join(map(str, extents))}" for name, extents in bound["shapes"].items())
    if bound["epoch"] is None:
        return f"shapes {shapes}: {bound['state']}"
    where = ", ".join(bound["devices"]) or "the gateways alone"
    return f"shapes {shapes}: {where}, predicted {seconds(bound['predicted_latency_s'])}"


def ask(target: AgentTarget, path: str) -> Any:
    """The document that the agent has at `path`."""

    async def asking() -> Any:
        from edgepart.cli.client import Client

        async with Client(target) as client:
            return await client.get(path)

    return asyncio.run(asking())


def _watch(target: AgentTarget) -> None:
    from rich.live import Live
    from rich.text import Text

    with Live(console=console(), screen=True, auto_refresh=False) as live:
        while True:
            try:
                live.update(_status(ask(target, "/api/status")), refresh=True)
            except EdgepartError as error:
                live.update(
                    Text(f"{error}\n\nasked again every second; Ctrl-C ends", style="red"), refresh=True
                )
            time.sleep(WATCH_S)


def _status(document: Mapping[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    leader = document.get("leader") or "none yet"
    head = Text.assemble(
        "cluster ",
        (str(document["cluster"])[:16], "bold"),
        f"   leader {leader} (term {document.get('term')})   asked {document['name']}, edgepart {document['version']}, "
        f"up {seconds(document.get('uptime_s'))}\n",
    )
    members = [
        (
            str(member["name"]) + (" *" if member.get("leader") else ""),
            str(member.get("state") or "-"),
            str(member.get("address") or "-"),
            str(member.get("http") or "-"),
        )
        for member in document.get("members", ())
    ]
    members += [
        (str(gone["name"]), f"{gone['state']} {seconds(gone['seconds_ago'])} ago", "-", "-")
        for gone in document.get("lost", ())
    ]
    parts: list[RenderableType] = [head, table(("member", "state", "address", "http"), members)]
    deployments = [_deployment(card) for card in document.get("deployments", ())]
    if deployments:
        columns = ("deployment", "state", "epoch", "strategy", "devices", "predicted")
        parts += [Text(), table(columns, deployments, right=("epoch", "predicted"))]
    else:
        parts.append(Text("\nnothing deployed", style="dim"))
    for drained in document.get("drains") or ():
        parts.append(Text(f"\n{drained['name']} is {drained['state']}: {drained['text']}", style="yellow"))
    for refused in document.get("refused") or ():
        parts.append(
            Text(f"\n{refused['name'] or refused['node']} is refused: {refused['why']}", style="yellow")
        )
    disk = document.get("disk") or {}
    for text in (disk.get("trouble"), *(disk.get("damaged") or ())):
        if text:
            parts.append(Text(f"\n{text}", style="red"))
    for member in document.get("members", ()):
        if member.get("note"):
            parts.append(Text(f"\n{member['name']}: {member['note']}", style="yellow"))
    for gone in document.get("lost", ()):
        if gone.get("note"):
            parts.append(Text(f"\n{gone['name']} fell silent; last it was {gone['note']}", style="yellow"))
    for card in document.get("deployments", ()):
        if card.get("trouble"):
            parts.append(Text(f"\n{card['name']} does not answer: {card['trouble']}", style="red"))
        if card.get("note"):
            parts.append(Text(f"\n{card['name']}: {card['note']}", style="yellow"))
        if card.get("transfer_dtype", "float32") != "float32":
            rounding = card.get("rounding") or f"rounded to {card['transfer_dtype']} between devices"
            parts.append(Text(f"\n{card['name']}: {rounding}", style="yellow"))
    for line in (document.get("security") or {}).get("warnings", ()):
        parts.append(Text(f"\n{line}", style="red"))
    parts += [Text(f"\n{note}", style="yellow") for note in document.get("notes", ())]
    for name, why in (document.get("failed_deployments") or {}).items():
        parts.append(Text(f"\nthe last try to deploy {name} here failed: {why}", style="yellow"))
    return Group(*parts)


def _deployment(card: Mapping[str, Any]) -> tuple[str, ...]:
    epoch = card.get("epoch")
    return (
        str(card["name"]),
        str(card["state"]),
        f"{epoch['term']}.{epoch['number']}" if epoch else "-",
        str(card.get("strategy") or "-"),
        ", ".join(card.get("devices") or ()) or "-",
        seconds(card.get("predicted_latency_s")),
    )
