"""What is done to deployments: an agent is asked, its progress shown, and its result returned. Door: the network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgepart.agent.api.device_choice import check_devices
from edgepart.agent.api.stages import WEIGHTS_ON
from edgepart.agent.wire.inference import DeployOptions
from edgepart.agent.wire.trials import TrialShare
from edgepart.cli.output import note, progress
from edgepart.cli.query import fetch, note_detour
from edgepart.client.target import AgentTarget

if TYPE_CHECKING:
    from edgepart.client.async_client import AsyncClient
    from edgepart.client.deploying import Progress

UNITS = {"sending the model": "bytes"}


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
    share: TrialShare | None = None,
) -> tuple[dict[str, Any], str]:
    """Deploy a model with progress, and return the result that the agent reports at the end, and the agent's URL. With
    `share`, it becomes a candidate of the deployment. Without `patience`, return once the agent has the files. Raises the
    agent's error, and StillGoing when the time to wait is up."""
    wait_s = None if patience is None else patience.seconds
    return _work(
        target, lambda client, show: client.deploy_files(name, files, options, wait_s, show, share), patience
    )


def roll_back(
    target: AgentTarget, name: str, to: int | None, patience: DeployPatience | None
) -> tuple[dict[str, Any], str]:
    """Have an earlier version serve again with progress, and return what `deploy_files` returns."""

    def rolling(client: AsyncClient, show: Progress) -> Awaitable[dict[str, Any]]:
        if patience is None:
            return client.rollback(name, to, wait=False, progress=show)
        return client.rollback(name, to, timeout_s=patience.seconds, progress=show)

    return _work(target, rolling, patience)


def promote_it(target: AgentTarget, name: str, patience: DeployPatience | None) -> tuple[dict[str, Any], str]:
    """Have a deployment's candidate serve with progress, and return what `deploy_files` returns."""

    def promoting(client: AsyncClient, show: Progress) -> Awaitable[dict[str, Any]]:
        if patience is None:
            return client.promote(name, wait=False, progress=show)
        return client.promote(name, timeout_s=patience.seconds, progress=show)

    return _work(target, promoting, patience)


def share_it(target: AgentTarget, name: str, share: TrialShare) -> Mapping[str, Any]:
    """Give a deployment's candidate another share. Returns the agent's answer."""
    return _ask(target, lambda client: client.share(name, share.percent, shadow=share.shadow))


def _ask(
    target: AgentTarget, ask: Callable[[AsyncClient], Awaitable[Mapping[str, Any]]]
) -> Mapping[str, Any]:
    """The agent's answer to one question."""

    async def asking() -> Mapping[str, Any]:
        from edgepart.client.async_client import AsyncClient

        async with AsyncClient(target) as client:
            return await ask(client)

    return asyncio.run(asking())


def _work(
    target: AgentTarget,
    work: Callable[[AsyncClient, Progress], Awaitable[dict[str, Any]]],
    patience: DeployPatience | None,
) -> tuple[dict[str, Any], str]:
    """Do the work with a progress bar. Returns what the agent reports at the end, and its URL."""

    async def working() -> tuple[dict[str, Any], str]:
        from edgepart.client.async_client import AsyncClient
        from edgepart.client.deploying import SENDING

        waiting = False
        with progress(UNITS, beside=WEIGHTS_ON) as bar:

            def show(stage: str, done: float, total: float) -> None:
                nonlocal waiting
                bar(stage, done, total)
                if patience is not None and not waiting and stage != SENDING:
                    waiting = True
                    note(f"waiting up to {patience.text} until it serves (--timeout)")

            async with AsyncClient(target) as client:
                return await work(client, show), client.url

    result, url = asyncio.run(working())
    note_detour(target, url)
    return result, url


def check_chosen_devices(target: AgentTarget, chosen: Sequence[str]) -> None:
    """Raises UsageError if a chosen device is unknown, and Unavailable if none of them is here. This is checked before any
    byte of a model is sent."""
    if chosen:
        status = fetch(target, "/api/status")
        here, away = ([str(row["name"]) for row in status.get(key, ())] for key in ("members", "lost"))
        check_devices(chosen, here, away)


def undeploy_it(target: AgentTarget, name: str, *, candidate: bool = False) -> Mapping[str, Any]:
    """Undeploy a deployment, or only its candidate. Returns the agent's answer."""
    return _ask(target, lambda client: client.undeploy(name, candidate=candidate))
