"""`edgepart drain`, `undrain` and `remove`: take a device out of the plans, for a while or for good."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from edgepart.cli.options import Agent, AgentTarget, Json, State, parse_duration, target_of
from edgepart.cli.output import print_json, progress, say
from edgepart.planner.errors import ClusterError, StillGoing

Device = Annotated[
    str, typer.Argument(metavar="NAME", help="As `edgepart status` shows it, or a node id (16 hex digits).")
]
Timeout = Annotated[
    str, typer.Option("--timeout", metavar="TIME", help="How long to wait: 90s, 10m. It goes on after that.")
]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Until nothing needs the device.")]


def drain(
    name: Device,
    timeout: Timeout = "10m",
    wait: Wait = True,
    state: State = None,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Make plans without a device, and have others store what it stores. It stays a member. Exits 3 when time is up."""
    result = _wait_for(name, target_of(agent, state), timeout, wait, remove=False)
    if as_json:
        print_json(result)
    elif wait:
        say(f"{name} is drained: nothing needs it. `edgepart undrain {name}` brings it back.")
    else:
        say(f"{name} is being drained: {result['text']}. `edgepart status` shows how far it is.")


def undrain(name: Device, state: State = None, agent: Agent = None, as_json: Json = False) -> None:
    """Let a device serve again that was drained, or is about to be removed."""
    target = target_of(agent, state)

    async def undraining() -> Any:
        from edgepart.cli.client import Client

        async with Client(target) as client:
            return await client.undrain(name)

    result = asyncio.run(undraining())
    if as_json:
        print_json(result)
    else:
        say(f"{name} may serve again.")


def remove(
    name: Device,
    timeout: Timeout = "10m",
    wait: Wait = True,
    state: State = None,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Drain a device, then have it leave for good: its agent stops, and the others forget it. At once where it is gone
    already. Exits 3 when time is up."""
    result = _wait_for(name, target_of(agent, state), timeout, wait, remove=True)
    if as_json:
        print_json(result)
    elif wait:
        say(
            f"{name} is removed. To have it in again, delete its state's identity/ and join with a new token."
        )
    else:
        say(f"{name} is being removed: {result['text']}. `edgepart status` shows how far it is.")


def _wait_for(name: str, target: AgentTarget, timeout: str, wait: bool, *, remove: bool) -> dict[str, Any]:
    timeout_s = parse_duration(timeout, "--timeout")
    last: dict[str, Any] = {}

    from edgepart.cli.client import Client  # Before the time runs: it takes a while.

    async def waiting() -> None:
        async with Client(target) as client:
            with progress({}) as bar:
                async for document in client.drain(name, remove=remove, wait=wait):
                    last.update(document)
                    if "stage" in document:
                        bar(document["stage"], 0, 0)

    async def bounded() -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await waiting()
        except TimeoutError as error:
            stage = f" ({last['stage']})" if "stage" in last else ""
            text = f"{name} is not {'removed' if remove else 'drained'} after {timeout}{stage}; it goes on"
            raise StillGoing(f"{text}. `edgepart undrain {name}` takes it back") from error

    asyncio.run(bounded())
    if "result" in last:
        found: dict[str, Any] = last["result"]
        return found
    if wait or "stage" not in last:
        raise ClusterError(
            f"the agent at {target.url} ended its answer early; `edgepart status` shows how far it is"
        )
    return {"name": name, "state": "removing" if remove else "drained", "text": last["stage"]}
