"""`edgepart drain`, `undrain` and `remove`: take a device out of service, for a while or for good."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from edgepart.cli.options import Agent, Json, State, parse_duration
from edgepart.cli.output import print_json, progress, say
from edgepart.client.target import AgentTarget, target_of
from edgepart.planner.errors import ClusterError, StillGoing

Device = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="The device's name in `edgepart status`, or its node id (16 hex digits).",
    ),
]
Timeout = Annotated[
    str,
    typer.Option(
        "--timeout", metavar="TIME", help="How long to wait: 90s, 10m. The drain goes on after that."
    ),
]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until nothing needs the device.")]


def drain(
    name: Device,
    timeout: Timeout = "10m",
    wait: Wait = True,
    state: State = None,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Plan without a device, and let others store its data. The device stays a member. Exits with 3 when the time to wait
    is up."""
    result = _wait_for(name, target_of(agent, state), timeout, wait, remove=False)
    if as_json:
        print_json(result)
    elif wait:
        say(f"{name} is drained: nothing needs it. `edgepart undrain {name}` brings it back.")
    else:
        say(f"{name} is being drained: {result['text']}. `edgepart status` shows the progress.")


def undrain(name: Device, state: State = None, agent: Agent = None, as_json: Json = False) -> None:
    """Let a device serve again after a drain, or stop its removal."""
    target = target_of(agent, state)

    async def undrain_it() -> Any:
        from edgepart.client.async_client import AsyncClient

        async with AsyncClient(target) as client:
            return await client.undrain(name)

    result = asyncio.run(undrain_it())
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
    """Drain a device and remove it for good: its agent stops, and the others forget it. A device that is gone already is
    removed at once. Exits with 3 when the time to wait is up."""
    result = _wait_for(name, target_of(agent, state), timeout, wait, remove=True)
    if as_json:
        print_json(result)
    elif wait:
        say(
            f"{name} is removed. To let it join again, delete identity/ in its state directory and join with a new token."
        )
    else:
        say(f"{name} is being removed: {result['text']}. `edgepart status` shows the progress.")


def _wait_for(name: str, target: AgentTarget, timeout: str, wait: bool, *, remove: bool) -> dict[str, Any]:
    timeout_s = parse_duration(timeout, "--timeout")
    last: dict[str, Any] = {}

    # The import takes a while, so it comes before the time to wait begins.
    from edgepart.client.async_client import AsyncClient

    async def waiting() -> None:
        async with AsyncClient(target) as client:
            with progress({}) as bar:
                async for document in client.drain(name, remove=remove, wait=wait):
                    last.update(document)
                    if "stage" in document:
                        bar(document["stage"], 0, 0)

    async def with_timeout() -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await waiting()
        except TimeoutError as error:
            stage = f" ({last['stage']})" if "stage" in last else ""
            text = f"{name} is not {'removed' if remove else 'drained'} after {timeout}{stage}; it goes on"
            raise StillGoing(f"{text}. `edgepart undrain {name}` stops it") from error

    asyncio.run(with_timeout())
    if "result" in last:
        found: dict[str, Any] = last["result"]
        return found
    if wait or "stage" not in last:
        raise ClusterError(
            f"the agent at {target.url} ended its answer early; `edgepart status` shows the progress"
        )
    return {"name": name, "state": "removing" if remove else "drained", "text": last["stage"]}
