"""`edgepart doctor`: says for each device that was ever seen whether it is a member, and if not, why, and what to do. It
changes nothing.

The command asks the agent of this machine, or the one that --agent names. If none runs, it searches the network itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from edgepart.cli.options import Agent, Json, State, state_of
from edgepart.cli.output import console, note, print_json
from edgepart.client.target import AgentTarget, target_of
from edgepart.planner.errors import Unavailable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

MARKS = {"good": ("ok", "green"), "note": ("note", "yellow"), "bad": ("BAD", "red")}
COLOURS = {"member": "green", "other cluster": "dim", "left": "dim", "gone": "dim", "new": "yellow"}
"""Colours of states; other states are red."""
SKEW_S = 60.0
"""Seconds by which two clocks may differ: a larger difference may make certificates look not yet valid, or expired."""
CLOCK_S = 1.5
"""The time limit in seconds for asking a member's HTTP server for its clock."""


def doctor(
    state: State = None,
    agent: Agent = None,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Show node ids as well, and what happened at each address."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Say why a device is not a member: what is wrong with each device that was seen and with this one, and what to do."""
    document = asyncio.run(_document(state_target(agent, state), state_of(state)))
    if as_json:
        print_json(document)
        return
    out = console()
    for part in render(document, verbose):
        out.print(part, soft_wrap=False)


def state_target(agent: str | None, state: Any) -> AgentTarget | None:
    """The agent to ask; None if none runs here and none is named."""
    try:
        return target_of(agent, state).alone
    except Unavailable:
        return None


async def _document(target: AgentTarget | None, folder: Any) -> dict[str, Any]:
    from edgepart.client.async_client import AsyncClient

    document: dict[str, Any]
    if target is not None:
        try:
            async with AsyncClient(target) as client:
                document = await client.get("/api/doctor", timeout_s=20.0)
                members = (await client.get("/api/status"))["members"]
        except Unavailable as error:
            if not target.is_local:
                raise
            note(f"{error}; searching the network without it")
        else:
            document["checks"] += [*_check_here(target, document), *await _clocks(members)]
            return document
    from edgepart.agent.doctor.survey import LISTEN_S, survey

    note(f"no agent runs here: listening for {LISTEN_S:.0f} s")
    return await survey(folder)


def _check_here(target: AgentTarget, document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The check of the firewall, made by this process because a person may be allowed to read the firewall when the agent
    is not. This check replaces the agent's."""
    from edgepart.agent.doctor.checkup import check_firewall

    if target.is_local and (port := document["agent"].get("port")):
        checks = document["checks"]
        checks[:] = [check for check in checks if check["name"] != "firewall"]
        yield asdict(check_firewall(port))


async def _clocks(members: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Checks of the clocks of those members whose HTTP servers are open to this machine, against this machine's clock."""
    import aiohttp

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=CLOCK_S)) as session:

        async def ask(member: Mapping[str, Any]) -> dict[str, Any] | None:
            try:
                async with session.get(f"{member['http']}/v2/health/live") as answer:
                    told = parsedate_to_datetime(answer.headers["Date"]).timestamp()
            except (aiohttp.ClientError, TimeoutError, KeyError, ValueError):
                return None  # its HTTP is closed to other machines, which is the default
            return clock_check(str(member["name"]), told - time.time())

        # Every loopback address is this machine.
        asked = [ask(member) for member in members if _is_open(member.get("http"))]
        return [check for check in await asyncio.gather(*asked) if check is not None]


def _is_open(http: Any) -> bool:
    return bool(http) and urlsplit(str(http)).hostname not in ("127.0.0.1", "::1", "localhost")


def clock_check(name: str, ahead_s: float) -> dict[str, Any] | None:
    """The check of a member's clock; None if the clock is right. (HTTP gives whole seconds.)"""
    if abs(ahead_s) < SKEW_S:
        return None
    way = "ahead of" if ahead_s > 0 else "behind"
    text = f"{name}'s clock is {abs(ahead_s):.0f} s {way} this machine's"
    do = "`timedatectl set-ntp true` on both: certificates may look not yet valid, or expired"
    return {"name": "clocks", "level": "bad", "text": text, "do": do}


def render(document: Mapping[str, Any], verbose: bool) -> Iterator[RenderableType]:
    """The parts that are printed."""
    from rich.text import Text

    agent = document["agent"]
    cluster = agent["cluster"] or "none"
    running = "its agent runs" if agent["running"] else "no agent runs"
    name = agent["name"] or agent["node"] or "this box"
    yield Text.assemble(
        (str(name), "bold"), f"   cluster {cluster}   edgepart {agent['version']}   {running}\n"
    )
    if document["boxes"]:
        yield _boxes(document["boxes"], verbose)
    else:
        yield Text("no other box was ever heard of", style="dim")
    yield from (Text(f"\n{text}", style="yellow") for text in document["notes"])
    if document["knocks"]:
        yield Text("\nnot let in:")
        for knock in document["knocks"][: None if verbose else 5]:
            yield Text(f"  {knock['address']} {_ago(knock)}: {knock['why']}", style="yellow")
    yield Text()
    yield _checks(document["checks"])


def _boxes(boxes: list[Mapping[str, Any]], verbose: bool) -> Table:
    from rich.text import Text

    table = _grid("box", "state", "")
    alike: dict[Any, list[Mapping[str, Any]]] = {}
    for number, box in enumerate(boxes):
        # Without --verbose, all devices of another cluster share a row.
        one = box["state"] == "other cluster" and not verbose
        alike.setdefault(box["cluster"] if one else number, []).append(box)
    for box, *more in alike.values():
        name = ", ".join(one["name"] or (one["addresses"] or ["?"])[0] for one in (box, *more))
        said = Text(box["why"] or "all is well")
        if box["do"]:
            said.append(f"\n-> {box['do']}", style="cyan")
        for entry in box["deployments"]:
            said.append(f"\nno work of {entry['deployment']}: {entry['why']}", style="yellow")
        if verbose:
            said.append(_details(box), style="dim")
        table.add_row(Text(name), Text(box["state"], style=COLOURS.get(box["state"], "red")), said)
    return table


def _details(box: Mapping[str, Any]) -> str:
    lines = [
        f"id {box['node'] or 'unknown'}, cluster {box['cluster'] or 'not said'}, version {box['version'] or '?'}"
    ]
    lines += [f"heard by {one['way']} {_ago(one)}" for one in box["heard"]]
    lines += [f"tried {one['address']} {_ago(one)}: {one['text'] or 'linked'}" for one in box["tries"]]
    return "".join(f"\n{line}" for line in lines)


def _checks(checks: list[Mapping[str, Any]]) -> Table:
    from rich.text import Text

    table = _grid("", "this box", "")
    for check in checks:
        mark, colour = MARKS.get(check["level"], ("?", "red"))
        said = Text(check["text"])
        if check["do"]:
            said.append(f"\n-> {check['do']}", style="cyan")
        table.add_row(Text(mark, style=colour), Text(check["name"]), said)
    return table


def _grid(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns[:-1]:
        table.add_column(column, overflow="fold", min_width=len(column))
    table.add_column(columns[-1], overflow="fold", ratio=1)
    return table


def _ago(entry: Mapping[str, Any]) -> str:
    from edgepart.agent.doctor.diagnosis import describe_age

    return describe_age(float(entry["seconds_ago"]))
