"""Uploads: receives a model's files from a multipart body into a fresh folder, with bounds on their size. Door: files.

The form has an optional part `options` (JSON, see `read_options`), then one part `file` for each file, whose file name is
its path relative to the model's folder, percent-encoded if needed. curl writes such forms:
`curl -F options='{"strategy": "auto"}' -F file=@model.onnx ...`. In place of files, a part `model` has the digest of a
model that the cluster stores.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from aiohttp import BodyPartReader, MultipartReader, web
from aiohttp.http import HttpProcessingError

from edgepart.agent.gateway.limits import BodyLimits, TooLarge
from edgepart.agent.wire.codec import read_json_record
from edgepart.agent.wire.inference import DeployOptions
from edgepart.planner.errors import FrameError, RequestError, UsageError
from edgepart.planner.vocabulary import STRATEGIES, check_word

CHUNK_BYTES = 1 << 20
OPTIONS_BYTES = 1 << 20
SPARE_BYTES = 64 << 20
"""Bytes of disk space that uploads leave free, whatever a client sends."""

BytesReceived = Callable[[int], None]
"""Called with the bytes of files that have arrived so far."""
Admit = Callable[[DeployOptions], None]
"""Called with the options as soon as they are read. Raises UsageError or Unavailable if they cannot be deployed."""


@dataclass(frozen=True)
class Upload:
    """What a form says."""

    options: DeployOptions
    stored: str = ""
    """The digest of the stored model that is meant; "" if the form brought files."""


async def receive_upload(
    request: web.Request, folder: Path, limits: BodyLimits, received: BytesReceived, admit: Admit
) -> Upload:
    """Write the form's files into `folder`, and return what else it says. Raises RequestError, UsageError, Unavailable or
    TooLarge; the caller deletes the folder."""
    if request.content_type != "multipart/form-data":
        raise RequestError("send the model as multipart/form-data: parts `options` (JSON) and `file`")
    options, stored = DeployOptions(), ""
    files = 0
    total = 0
    try:
        reader = await request.multipart()
        while (part := await _limit_time(reader.next(), limits)) is not None:
            if isinstance(part, MultipartReader):
                raise RequestError("the form holds a multipart part; send files and options only")
            if part.name == "options":
                options = read_options(await _text(part, limits))
                admit(options)
            elif part.name == "model":
                stored = _digest(await _text(part, limits))
            elif part.name == "file":
                files += 1
                if files > limits.upload_files:
                    raise TooLarge(f"the form holds over {limits.upload_files} files")
                total = await _store(part, _place(folder, part.filename), total, limits, received)
            else:
                raise RequestError(
                    f"the form holds a part {part.name!r}; parts are `options`, `model` and `file`"
                )
    except (ValueError, HttpProcessingError) as error:  # A damaged head of a part raises HttpProcessingError.
        raise RequestError(f"the form is damaged: {' '.join(str(error).split())}") from error
    if bool(files) == bool(stored):
        wrong = "both files and the digest of a `model`" if files else "no `file`"
        raise RequestError(
            f"the form holds {wrong}; send the model's .onnx file, or the digest of a stored model"
        )
    return Upload(options, stored)


def _digest(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise RequestError(
            f"model {text[:80]!r}: give the 64 hex digits of a digest, as /api/deployments has them"
        )
    return text


def read_options(text: str) -> DeployOptions:
    """Return the options in a JSON object with the fields of DeployOptions, each of which is optional. Raises UsageError,
    which names the field."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"options: no JSON ({error})") from error
    if not isinstance(document, dict):
        raise UsageError("options: expected a JSON object")
    if unknown := sorted(set(document) - set(DeployOptions.__dataclass_fields__)):
        raise UsageError(
            f"options: there is no {unknown}; there are {list(DeployOptions.__dataclass_fields__)}"
        )
    try:
        options = read_json_record(DeployOptions, document, DeployOptions())
    except FrameError as error:
        raise UsageError(f"options: {str(error).removeprefix('DeployOptions.')}") from error
    check_word(options.strategy, STRATEGIES, "options: strategy")
    return options


def _place(folder: Path, name: str | None) -> Path:
    """Return the path of an uploaded file. Raises RequestError for a name that would leave `folder`, or is too long."""
    path = PurePosixPath(unquote(name or ""))
    parts = path.parts
    if not parts or path.is_absolute() or any(p in ("..", ".") or "\\" in p or "\0" in p for p in parts):
        raise RequestError(f"file name {name!r}: give a path inside the model's folder")
    if len(str(path)) > 1024 or any(len(part.encode()) > 255 for part in parts):
        raise RequestError(f"file name {str(path)[:80]!r}...: it is too long")
    return folder.joinpath(*parts)


async def _store(
    part: BodyPartReader, place: Path, total: int, limits: BodyLimits, received: BytesReceived
) -> int:
    """Write one file, and return `total` plus its size."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = place.open("xb")
    except OSError as error:
        raise RequestError(f"file {place.name!r}: {error.strerror}; send each file once") from error
    with file:
        while chunk := await _limit_time(part.read_chunk(CHUNK_BYTES), limits):
            total += len(chunk)
            if total > limits.upload_bytes:
                raise TooLarge(f"the files are over the limit of {limits.upload_bytes} bytes")
            if shutil.disk_usage(place.parent).free < len(chunk) + SPARE_BYTES:
                raise TooLarge(f"this device's disk is full: {total} bytes of the model have come")
            await asyncio.to_thread(file.write, chunk)
            received(total)
    return total


async def _text(part: BodyPartReader, limits: BodyLimits) -> str:
    found = bytearray()
    while chunk := await _limit_time(part.read_chunk(), limits):
        found += chunk
        if len(found) > OPTIONS_BYTES:
            raise TooLarge(f"`options` is over {OPTIONS_BYTES} bytes")
    return found.decode()


async def _limit_time(reading: Any, limits: BodyLimits) -> Any:
    try:
        return await asyncio.wait_for(reading, limits.stall_s)
    except TimeoutError:
        raise RequestError(f"the upload stood still for {limits.stall_s:g} s; nothing was deployed") from None
