"""Deploying: sends a model's files to an agent, and follows the deployment until it serves. Door: files, and the event
loop's clock.

A deployment is not repeated: if the agent is lost, another member is asked what it knows, and the error says so.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict

import aiohttp

from edgepart.agent.api.device_choice import check_devices
from edgepart.agent.api.stages import WEIGHTS_ON
from edgepart.agent.wire.inference import DeployOptions
from edgepart.agent.wire.trials import TrialShare
from edgepart.client.failures import describe_loss, error_from
from edgepart.client.http_door import LOST, HttpDoor
from edgepart.planner.errors import ClusterError, EdgepartError, RequestError, StillGoing, Unavailable

STORED = "the cluster stores the model: nothing is sent"
"""The stage in place of SENDING where the agent needs only the model's digest."""
SENDING = "sending the model"
"""The stage during which the agent does not have the model yet."""
ASK_S = 5.0
"""How long another member may take to say what it knows."""
CHUNK_BYTES = 1 << 20

Progress = Callable[[str, float, float], None]
"""Called with (stage, done, total): the stage in plain words, `done` and `total` in its own unit (bytes, devices), `total`
0 if it is not known. While devices load, "weights on NAME" tells how many bytes of its weights each one has."""


class DeployKeywords(TypedDict, total=False):
    """The options of a deployment: the fields of DeployOptions, all optional."""

    shapes: dict[str, tuple[int, ...]]
    """The first shape of each input with free dimensions; a likely one is assumed for an input that is not named."""
    objective: str
    """"latency" of one request, or "throughput" of many."""
    strategy: str
    axis: str | None
    devices: tuple[str, ...]
    """The only devices that may compute the model, by name; () for all."""
    memory_limit_bytes: int | None
    bindings: int
    """How many shapes besides the first may have plans at a time."""
    search_budget_s: float | None
    transfer_dtype: str
    """"float32" (exact), "float16" or "int8"."""
    states: tuple[tuple[str, str], ...] | None
    """Pairs of an output and the input that it is in the next step; () for none, None to find them by their names."""
    context: int | None
    """The most tokens of a prompt and its answer, for language models."""
    sequences: int
    mirrors: bool
    keep: int
    """How many earlier versions of the model stay for `rollback`."""
    batch_rows: int
    """The most rows for which requests that wait at the same time are run as one."""
    batch_delay_s: float
    """How long a request waits for others, in seconds."""
    weights: str | None
    """"int8" or "int4": the type to which the weights of matrix products are quantised before the model is sent."""
    max_error: float | None
    """How far answers may be off because of that, relative to each output's largest magnitude; None is 0.1."""


class Deploying:
    """One deployment under way."""

    def __init__(
        self,
        door: HttpDoor,
        name: str,
        files: Mapping[str, Path],
        options: DeployOptions,
        share: TrialShare | None = None,
    ) -> None:
        """With `share`, the model becomes a candidate of the deployment `name`."""
        self._share = share
        self._door = door
        self._name = name
        self._files = files
        self._options = options
        self._url = door.members.current
        self._sent_bytes = 0
        self._total_bytes = sum(path.stat().st_size for path in files.values())
        self._stage = SENDING
        self._stored = ""
        """The digest of the model if the cluster stores it."""

    async def run(self, wait_s: float | None, progress: Progress) -> dict[str, Any]:
        """Deploys, and returns what the agent reports at the end. `wait_s` is how long to wait until the model is served,
        from the moment at which the agent has it; None does not wait. Raises StillGoing when that time is up, Unavailable
        if the agent is lost, and the errors that the agent reports."""
        await self._check_devices()
        self._stored = await self._find_stored()
        try:
            return await self._deploy(wait_s, progress)
        except RequestError:
            if not self._stored:
                raise
            self._stored = (
                ""  # The agent is of a release that wants the files, or it says again what is wrong.
            )
            return await self._deploy(wait_s, progress)

    async def _find_stored(self) -> str:
        """The digest of the model if it is deployed under any name, or kept; "" if it has to be sent."""
        try:
            document = await self._door.read("/api/deployments", ASK_S)
        except EdgepartError:
            return ""  # Whatever is wrong, the agent that gets the files says so.
        known = {
            str(one["model"])
            for each in document["deployments"]
            for one in (each["now"], *each["kept"], each.get("candidate"))
            if one is not None
        }
        if not known:
            return ""
        from edgepart.planner.model.digests import model_digest

        digest = await asyncio.to_thread(model_digest, list(self._files.values()))
        return digest if digest in known else ""

    async def _deploy(self, wait_s: float | None, progress: Progress) -> dict[str, Any]:
        self._stage = STORED if self._stored else SENDING
        if self._stored:
            progress(STORED, 0, 0)
        reading = asyncio.create_task(self._send(wait_s, progress))
        try:
            while self._stage == SENDING and not reading.done():
                progress(SENDING, self._sent_bytes, self._total_bytes)
                await asyncio.wait([reading], timeout=0.1)
            result = await reading
        except LOST as error:
            raise await self._explain(error) from error
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        return result

    async def _check_devices(self) -> None:
        """Raises UsageError if a chosen device is unknown, and Unavailable if none of them is here. This is checked before
        any byte of the model is sent."""
        if self._options.devices:
            status = await self._door.read("/api/status", ASK_S)
            here, away = ([str(row["name"]) for row in status.get(key, ())] for key in ("members", "lost"))
            check_devices(self._options.devices, here, away)

    async def _send(self, wait_s: float | None, progress: Progress) -> dict[str, Any]:
        """The agent's result."""

        def reached(stage: str, done: float, total: float) -> None:
            self._stage = stage
            progress(stage, done, total)

        query, path = {"wait": str(int(wait_s is not None))}, f"/api/deployments/{self._name}"
        if self._share is not None:
            query, path = query | share_query(self._share), f"{path}/candidate"
        async with self._door.change("POST", path, params=query, data=self._form, expect100=True) as response:
            self._url = str(response.url.origin())
            return await follow_progress(response, self._name, wait_s, reached)

    def _form(self) -> aiohttp.MultipartWriter:
        # Imported here, as it imports onnx, which clients that deploy nothing need not have.
        from edgepart.agent.wire.codec import json_record

        self._sent_bytes = 0
        with aiohttp.MultipartWriter("form-data") as form:
            form.append_json(json_record(self._options)).set_content_disposition("form-data", name="options")
            if self._stored:
                form.append(self._stored).set_content_disposition("form-data", name="model")
                return form
            for relative, path in self._files.items():
                part = form.append(self._chunks(path), {"Content-Type": "application/octet-stream"})
                part.set_content_disposition("form-data", name="file", filename=relative)
        return form

    async def _chunks(self, path: Path) -> AsyncIterator[bytes]:
        with path.open("rb") as file:
            while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                yield chunk
                self._sent_bytes += len(chunk)

    async def _explain(self, error: BaseException) -> Unavailable:
        """What is known of the deployment after its agent was lost."""
        said = describe_loss(self._url, error)
        self._door.members.failed(self._url, time.monotonic())
        if self._stage == SENDING and self._sent_bytes < self._total_bytes:
            return Unavailable(f"{said} It had not got the whole model: nothing was deployed")
        return Unavailable(
            f"{said} It had got the whole model; {await what_is_known(self._door, self._name)}"
        )


def share_query(share: TrialShare) -> dict[str, str]:
    """The share as the query of a request says it."""
    return {"shadow": "1"} if share.shadow else {"share": str(share.percent)}


async def follow_progress(
    response: aiohttp.ClientResponse, name: str, wait_s: float | None, progress: Progress
) -> dict[str, Any]:
    """The result at the end of an agent's answer, which tells its progress before that. `wait_s` is how long to wait from
    the first progress on; None is for ever. Raises StillGoing when that time is up, ClusterError if there is no result, and
    the errors that the agent reports."""
    result: dict[str, Any] = {}
    stage = ""
    try:
        async with asyncio.timeout(None) as timer:
            async for line in response.content:
                document = json.loads(line)
                if "error" in document:
                    raise error_from(document, response.status)
                result = document.get("result", result)
                if "stage" not in document:
                    continue
                progress(document["stage"], document["done"], document["total"])
                if not document["stage"].startswith(WEIGHTS_ON):
                    stage = document["stage"]
                if wait_s is not None and timer.when() is None:
                    timer.reschedule(asyncio.get_running_loop().time() + wait_s)
    except TimeoutError as error:
        if not timer.expired():
            raise
        raise StillGoing(
            f"{name} does not serve after {wait_s or 0:g} s ({stage}); it goes on. `edgepart models` shows the progress, "
            f"`edgepart undeploy {name}` stops it, and deploying again replaces it"
        ) from error
    if not result:
        url = str(response.url.origin())
        raise ClusterError(f"the agent at {url} ended its answer early; `edgepart models` shows the progress")
    return result


async def what_is_known(door: HttpDoor, name: str) -> str:
    """What another member says of a deployment, as the end of a sentence."""
    look = "`edgepart models` shows how it goes on"
    try:
        cards = (await door.read("/api/models", ASK_S))["models"]
    except EdgepartError:
        return f"no other member can be asked, and {look}"
    state = next((card["state"] for card in cards if card["name"] == name), None)
    if state is None:
        return f"{door.members.current} knows no deployment {name}, and {look}"
    return f"{door.members.current} knows {name} ({state}), and {look}"
