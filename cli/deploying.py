"""What is done to deployments: an agent is asked, its progress shown, and its result returned. Door: the network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgepart.agent.api.device_choice import check_devices
from edgepart.agent.wire.inference import DeployOptions
from edgepart.cli.options import AgentTarget
from edgepart.cli.output import note, progress
from edgepart.planner.errors import ClusterError, StillGoing

if TYPE_CHECKING:
    from edgepart.cli.client import Client

SENDING = "sending the model"
UNITS = {SENDING: "bytes", "sending weights": "bytes", "storing": "bytes"}


@dataclass(frozen=True)
class DeployPatience:
    """The time to wait until a deployment is served."""

    seconds: float
    text: str
    """The text as the user wrote it."""


def deploy_files(
    target: AgentTarget,
    name: str,
    files: Mapping[str, Path],
    options: DeployOptions,
    patience: DeployPatience | None,
) -> dict[str, Any]:
    """Deploy a model with progress, and return the result that the agent reports at the end. Without `patience`, return
    once the agent has the files. Raises the agent's error, and StillGoing when the time to wait is up."""
    from edgepart.agent.api.protocol import check_name

    check_name(name)

    async def deploying() -> dict[str, Any]:
        from edgepart.cli.client import Client

        async with Client(target) as client:
            await check_devices_here(client, options.devices)
            return await _follow(client.deploy(name, files, options, patience is not None), name, patience)

    return asyncio.run(deploying())


def roll_back(
    target: AgentTarget, name: str, to: int | None, patience: DeployPatience | None
) -> dict[str, Any]:
    """Have an earlier version serve again with progress, and return the result as `deploy_files` does."""
    from edgepart.agent.api.protocol import check_name

    check_name(name)

    async def rolling() -> dict[str, Any]:
        from edgepart.cli.client import Client

        async with Client(target) as client:
            return await _follow(client.rollback(name, to, patience is not None), name, patience)

    return asyncio.run(rolling())


async def _follow(
    documents: AsyncIterator[dict[str, Any]], name: str, patience: DeployPatience | None
) -> dict[str, Any]:
    """Show the progress in an agent's documents, and return the result at their end."""
    result: dict[str, Any] = {}
    stage = ""
    try:
        async with asyncio.timeout(None) as timer:
            with progress(UNITS) as bar:
                async for document in documents:
                    result = document.get("result", result)
                    if "stage" not in document:
                        continue
                    stage = document["stage"]
                    bar(stage, document["done"], document["total"])
                    if patience is not None and timer.when() is None and stage != SENDING:
                        timer.reschedule(asyncio.get_running_loop().time() + patience.seconds)
                        note(f"waiting until it serves, {patience.text} at most (--timeout)")
    except TimeoutError as error:
        raise _still_going(name, patience, stage) from error
    if not result:
        raise ClusterError("the agent ended its answer early; `edgepart models` shows the progress")
    return result


def check_chosen_devices(target: AgentTarget, chosen: Sequence[str]) -> None:
    """Raise what `check_devices_here` raises."""

    async def checking() -> None:
        from edgepart.cli.client import Client

        async with Client(target) as client:
            await check_devices_here(client, chosen)

    asyncio.run(checking())


async def check_devices_here(client: Client, chosen: Sequence[str]) -> None:
    """Raises UsageError if a chosen device is unknown, and Unavailable if none of them is here. This is checked before any
    byte of the model is sent."""
    if chosen:
        status = await client.get("/api/status")
        here, away = ([str(row["name"]) for row in status.get(key, ())] for key in ("members", "lost"))
        check_devices(chosen, here, away)


def _still_going(name: str, patience: DeployPatience | None, stage: str) -> StillGoing:
    waited = patience.text if patience else "a while"
    return StillGoing(
        f"{name} does not serve after {waited} ({stage}); it goes on. `edgepart models` shows the progress, "
        f"`edgepart undeploy {name}` stops it, and deploying again replaces it"
    )


def undeploy_it(target: AgentTarget, name: str) -> Mapping[str, Any]:
    """The agent's answer."""

    async def asking() -> Mapping[str, Any]:
        from edgepart.cli.client import Client

        async with Client(target) as client:
            return await client.undeploy(name)

    return asyncio.run(asking())


def check_shapes(model: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises UsageError if the shapes do not fit the model's inputs. This is checked before any byte is sent."""
    if shapes:
        from edgepart.planner.model.load import check_shapes as fit

        fit(model, shapes)
