"""Changes: the calls of a client that change the cluster, or make it record. Door: it is made of the HTTP door.

None of them is sent twice: where an agent is lost after it may have got one, the error says what is known.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import quote

from edgepart.client.failures import describe_loss, error_from
from edgepart.client.http_door import LOST, HttpDoor
from edgepart.planner.errors import EdgepartError, Unavailable, UsageError

if TYPE_CHECKING:
    from edgepart.agent.wire.inference import DeployOptions
    from edgepart.agent.wire.trials import TrialShare
    from edgepart.client.deploying import DeployKeywords, Progress
    from edgepart.client.records import Deployed, TraceHandle, TraceRecording
    from edgepart.planner.region import Array
    from edgepart.planner.tdl.description import OperatorDescription

DEPLOY_S = 600.0
"""Seconds to wait until a deployment serves, if the caller does not say."""
TRACE_S = 120.0
"""Seconds that an agent may take to collect a trace."""


def checked(name: str) -> str:
    """The name of a deployment. Raises UsageError if no deployment can have it."""
    from edgepart.agent.api.deployment_name import check_name

    return check_name(name)


def _ignore(stage: str, done: float, total: float) -> None:
    """Takes progress that nobody wants to see."""


class ClusterChanges:
    """The part of AsyncClient that changes the cluster."""

    def __init__(self, door: HttpDoor) -> None:
        self.door = door

    async def deploy(
        self,
        model: str | Path,
        name: str | None = None,
        *,
        wait: bool = True,
        timeout_s: float = DEPLOY_S,
        progress: Progress | None = None,
        inputs: Mapping[str, Array] | None = None,
        share: int | None = None,
        shadow: bool = False,
        operators: Sequence[OperatorDescription] = (),
        **options: Unpack[DeployKeywords],
    ) -> Deployed:
        """Deploys an .onnx file, or the folder of a language model, under a name (by default the file's). With `wait`, it
        returns when the model is served. `progress` is called with (stage, done, total). With `weights`, a model with
        weights of few bits is made here and sent, and `Deployed.quantised` says how far its answers are off: on `inputs`,
        or else on made-up ones. With `share`, the model becomes the candidate of the deployment that has that name, and
        answers so many percent of its requests; with `shadow`, it gets copies of them, and its answers are compared.
        `operators` describe operators and functions of the model's own, so that they can be divided (`edgepart.tdl`).

        Raises ModelError (also if answers are off by more than `max_error`), UsageError, Infeasible if no plan fits,
        StillGoing if the model does not serve `timeout_s` seconds after the agent has it, and Unavailable if the agent is
        lost: nothing is sent twice, and the error says what is known of the deployment."""
        from edgepart.agent.wire.inference import DeployOptions
        from edgepart.agent.wire.trials import TrialShare
        from edgepart.client.described_files import described_files
        from edgepart.client.model_files import check_shapes, default_name, files_of, find_model
        from edgepart.client.records import Deployed

        called = name or default_name(Path(model))
        try:
            given = DeployOptions(**options)
        except TypeError as error:
            raise UsageError(f"deploy: {error}; the options are those of DeployKeywords") from None
        found = find_model(Path(model))
        files = await asyncio.to_thread(files_of, found)
        check_shapes(found, given.shapes)
        told: dict[str, Any] = {}
        if given.weights is not None:
            from edgepart.client.weights import with_weights

            made = await asyncio.to_thread(with_weights, found, files, given, inputs, progress or _ignore)
            found, files, given, told = made.graph, made.files, made.options, {"quantised": made.note}
        elif inputs is not None:
            raise UsageError(
                "deploy: `inputs` are what answers are compared on with `weights`, which is missing"
            )
        wait_s = timeout_s if wait else None
        trial = None if share is None and not shadow else TrialShare(share or 0, shadow)
        with ExitStack() as held:
            sent = await asyncio.to_thread(described_files, found, files, given.shapes, operators, held)
            return Deployed(
                called, await self.deploy_files(called, sent, given, wait_s, progress, trial) | told
            )

    async def deploy_files(
        self,
        name: str,
        files: Mapping[str, Path],
        options: DeployOptions,
        wait_s: float | None = DEPLOY_S,
        progress: Progress | None = None,
        share: TrialShare | None = None,
    ) -> dict[str, Any]:
        """Deploys files, which are named by their paths beside the model, and returns what the agent reports. `wait_s` is
        how long to wait until it serves; None does not wait. With `share`, they become a candidate of the deployment of
        that name. Raises what `deploy` raises."""
        from edgepart.client.deploying import Deploying

        deploying = Deploying(self.door, checked(name), files, options, share)
        return await deploying.run(wait_s, progress or _ignore)

    async def rollback(
        self,
        name: str,
        to: int | None = None,
        *,
        wait: bool = True,
        timeout_s: float = DEPLOY_S,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Has an earlier version of a deployment serve again: the one numbered `to`, or else the one before. Returns what
        the agent reports, as `deploy_files` does. Raises UsageError if that version is not kept, StillGoing, and
        Unavailable if the agent is lost; the error says what is known."""
        query = {} if to is None else {"to": str(to)}
        return await self._roll(name, "rollback", query, timeout_s if wait else None, progress)

    async def promote(
        self,
        name: str,
        *,
        wait: bool = True,
        timeout_s: float = DEPLOY_S,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Has a deployment's candidate serve in place of the version that does, without a lost request. Returns what the
        agent reports, as `deploy_files` does. Raises UsageError if there is no candidate, StillGoing, and Unavailable if
        the candidate does not serve, or if the agent is lost; the error says what is known."""
        return await self._roll(name, "promote", {}, timeout_s if wait else None, progress)

    async def _roll(
        self, name: str, what: str, query: dict[str, str], wait_s: float | None, progress: Progress | None
    ) -> dict[str, Any]:
        """What the agent reports at the end, once it has done this to the deployment."""
        from edgepart.client.deploying import follow_progress, what_is_known

        path = f"/api/deployments/{checked(name)}/{what}"
        query = {"wait": str(int(wait_s is not None))} | query
        try:
            async with self.door.change("POST", path, params=query) as response:
                return await follow_progress(response, name, wait_s, progress or _ignore)
        except LOST as error:
            said = self._lose(error)
            raise Unavailable(f"{said} {await what_is_known(self.door, name)}") from error

    async def share(self, name: str, percent: int = 0, *, shadow: bool = False) -> dict[str, Any]:
        """Has a deployment's candidate answer so many percent of its requests or, with `shadow`, get copies of them.
        Returns {"name", "candidate"}. Raises UsageError if there is no candidate, and Unavailable if the agent is lost; the
        error says what is known."""
        from edgepart.agent.wire.trials import TrialShare
        from edgepart.client.deploying import share_query

        query = share_query(TrialShare(percent, shadow))
        return await self._ask_once("POST", f"/api/deployments/{checked(name)}/share", name, query)

    async def undeploy(self, name: str, *, candidate: bool = False) -> dict[str, Any]:
        """Undeploys a model, with its candidate if it has one; or only its candidate. Returns {"undeployed": name},
        {"discarded": name, "version"} for a candidate, or {"dismissed": name} if there was only the notice of a failed
        attempt. Raises UnknownDeployment, UsageError if there is no candidate, and Unavailable if the agent is lost; the
        error says what is known."""
        path = f"/api/deployments/{checked(name)}" + ("/candidate" if candidate else "")
        return await self._ask_once("DELETE", path, name, {})

    async def _ask_once(self, method: str, path: str, name: str, query: dict[str, str]) -> dict[str, Any]:
        """The answer to a change of a deployment that is done at once."""
        try:
            async with self.door.change(method, path, params=query) as response:
                return dict(await response.json())
        except LOST as error:
            from edgepart.client.deploying import what_is_known

            said = self._lose(error)
            raise Unavailable(f"{said} {await what_is_known(self.door, name)}") from error

    async def drain(self, name: str, *, remove: bool, wait: bool) -> AsyncIterator[dict[str, Any]]:
        """Yields progress documents and, with `wait`, {"result": ...} at the end. Raises the error that the agent
        reports."""
        path = f"/api/members/{quote(name, safe='')}" + ("" if remove else "/drain")
        query = {"wait": str(int(wait))}
        try:
            async with self.door.change("DELETE" if remove else "POST", path, params=query) as response:
                async for line in response.content:
                    document = json.loads(line)
                    if "error" in document:
                        raise error_from(document, response.status)
                    yield document
        except LOST as error:
            said = self._lose(error)
            raise Unavailable(
                f"{said} The drain goes on, and `edgepart status` shows its progress"
            ) from error

    async def undrain(self, name: str) -> Any:
        """Lets a device serve again. Returns what the agent reports."""
        try:
            async with self.door.change("DELETE", f"/api/members/{quote(name, safe='')}/drain") as response:
                return (await response.json())["result"]
        except LOST as error:
            raise Unavailable(f"{self._lose(error)} `edgepart status` shows whether it is drained") from error

    def _lose(self, error: BaseException) -> str:
        """Goes on to the next member, and returns what to say of this one."""
        url = self.door.members.current
        self.door.members.failed(url, time.monotonic())
        return describe_loss(url, error)

    # Traces

    @asynccontextmanager
    async def trace(self, model: str, seconds: float = 60.0) -> AsyncIterator[TraceRecording]:
        """Within the block, all members record what they do, for at most `seconds` (600 at most). The recording's trace is
        complete after the block. Raises UnknownDeployment, and Unavailable if the agent is lost, with its trace."""
        from edgepart.client.records import TraceRecording
        from edgepart.client.trace_records import read

        recording = TraceRecording(await self.begin_trace(model, seconds))
        try:
            yield recording
        except BaseException:
            with suppress(EdgepartError):
                await self.end_trace(recording.handle)
            raise
        recording.end(read(await self.end_trace(recording.handle)))

    async def begin_trace(self, model: str, seconds: float) -> TraceHandle:
        """Makes all members record what they do, for at most that many seconds."""
        from edgepart.client.records import TraceHandle

        path = f"/api/models/{checked(model)}/trace"
        try:
            async with self.door.change("POST", path, params={"seconds": str(seconds)}) as response:
                document = await response.json()
                url = str(response.url.origin())
        except LOST as error:
            raise Unavailable(self._lose(error)) from error
        return TraceHandle(model, url, tuple(document["devices"]), dict(document["missing"]))

    async def end_trace(self, tracing: TraceHandle) -> Any:
        """Ends the trace and returns it. Only the agent that began the trace has it, so that agent is asked."""
        path = f"/api/models/{tracing.model}/trace"
        try:
            async with self.door.change("DELETE", path, silent_s=TRACE_S, url=tracing.url) as response:
                return await response.json()
        except LOST as error:
            raise Unavailable(describe_loss(tracing.url, error)) from error
