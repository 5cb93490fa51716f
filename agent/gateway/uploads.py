"""Receiving a model's files: multipart bodies into a fresh folder, bounded and kept inside it. Door: files.

The form: an optional part `options` (JSON, see `read_options`), then one part `file` for each file, whose
file name is its path relative to the model's folder, percent-encoded where need be. curl writes such forms:
`curl -F options='{"strategy": "auto"}' -F file=@model.onnx ...`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from aiohttp import BodyPartReader, MultipartReader, web
from aiohttp.http import HttpProcessingError

from edgepart.agent.gateway.bodies import Limits, TooLarge
from edgepart.agent.messages import MOST_BINDINGS, MOST_SEARCH_BUDGET_S, DeployOptions
from edgepart.planner.errors import RequestError, UsageError
from edgepart.planner.rounding import checked
from edgepart.planner.vocabulary import AXES, OBJECTIVES, STRATEGIES, one_of

CHUNK_BYTES = 1 << 20
OPTIONS_BYTES = 1 << 20
SPARE_BYTES = 64 << 20
"""Left free on the disk, whatever a client sends."""

Received = Callable[[int], None]
"""Told how many bytes of files have come so far."""
Admit = Callable[[DeployOptions], None]
"""Looks at the options as soon as they are read. UsageError or Unavailable where nothing can come of them."""


async def receive(
    request: web.Request, folder: Path, limits: Limits, received: Received, admit: Admit
) -> DeployOptions:
    """Files into `folder`, and the options. RequestError, UsageError, Unavailable or TooLarge; the caller deletes the
    folder."""
    if request.content_type != "multipart/form-data":
        raise RequestError("send the model as multipart/form-data: parts `options` (JSON) and `file`")
    options = DeployOptions()
    files = 0
    total = 0
    try:
        reader = await request.multipart()
        while (part := await _timed(reader.next(), limits)) is not None:
            if isinstance(part, MultipartReader):
                raise RequestError("the form holds a multipart part; send files and options only")
            if part.name == "options":
                options = read_options(await _text(part, limits))
                admit(options)
            elif part.name == "file":
                files += 1
                if files > limits.upload_files:
                    raise TooLarge(f"the form holds over {limits.upload_files} files")
                total = await _store(part, _place(folder, part.filename), total, limits, received)
            else:
                raise RequestError(f"the form holds a part {part.name!r}; parts are `options` and `file`")
    except (ValueError, HttpProcessingError) as error:  # the latter: a part's head
        raise RequestError(f"the form is damaged: {' '.join(str(error).split())}") from error
    if not files:
        raise RequestError("the form holds no `file`; send the model's .onnx file")
    return options


def read_options(text: str) -> DeployOptions:
    """From JSON with DeployOptions' fields, each of them optional. UsageError names the field."""
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
    objective = document.get("objective", "latency")
    axis = document.get("axis")
    limit = document.get("memory_limit_bytes")
    if limit is not None and not (_is_count(limit) and limit):
        raise UsageError(f"options: memory_limit_bytes {limit!r} is no positive whole number")
    bindings = document.get("bindings", DeployOptions().bindings)
    if not _is_count(bindings) or bindings > MOST_BINDINGS:
        raise UsageError(f"options: bindings {bindings!r} is no whole number from 0 to {MOST_BINDINGS}")
    budget_s = document.get("search_budget_s")
    if budget_s is not None and not (_is_number(budget_s) and 0 < budget_s <= MOST_SEARCH_BUDGET_S):
        raise UsageError(
            f"options: search_budget_s {budget_s!r} is no positive number of seconds up to {MOST_SEARCH_BUDGET_S:g}"
        )
    strategy = document.get("strategy", "auto")
    dtype = document.get("transfer_dtype", DeployOptions().transfer_dtype)
    if not isinstance(dtype, str):
        raise UsageError("options: transfer_dtype must be a name")
    return DeployOptions(
        shapes=_shapes(document.get("shapes", {})),
        objective=_word(objective, OBJECTIVES, "objective"),
        strategy=_word(strategy, STRATEGIES, "strategy"),
        axis=None if axis is None else _word(axis, AXES, "axis"),
        devices=_texts(document.get("devices", [])),
        memory_limit_bytes=limit,
        bindings=bindings,
        search_budget_s=None if budget_s is None else float(budget_s),
        transfer_dtype=checked(dtype, "options: transfer_dtype"),
    )


def options_document(options: DeployOptions) -> dict[str, Any]:
    """The JSON that `read_options` reads."""
    return {name: getattr(options, name) for name in DeployOptions.__dataclass_fields__}


def _word(value: Any, allowed: Sequence[str], field: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"options: {field} must be one of {', '.join(allowed)}")
    return one_of(value, allowed, f"options: {field}")


def _shapes(value: Any) -> dict[str, tuple[int, ...]]:
    good = isinstance(value, Mapping) and all(
        isinstance(dims, list) and all(map(_is_count, dims)) for dims in value.values()
    )
    if not good:
        raise UsageError('options: shapes must look like {"x": [1, 3, 224, 224]}')
    return {str(name): tuple(dims) for name, dims in value.items()}


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise UsageError("options: devices must be a list of names")
    return tuple(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _place(folder: Path, name: str | None) -> Path:
    """Where a file goes; RequestError for a name that would leave `folder`, or is taken."""
    path = PurePosixPath(unquote(name or ""))
    parts = path.parts
    if not parts or path.is_absolute() or any(p in ("..", ".") or "\\" in p or "\0" in p for p in parts):
        raise RequestError(f"file name {name!r}: give a path inside the model's folder")
    if len(str(path)) > 1024 or any(len(part.encode()) > 255 for part in parts):
        raise RequestError(f"file name {str(path)[:80]!r}...: it is too long")
    return folder.joinpath(*parts)


async def _store(part: BodyPartReader, place: Path, total: int, limits: Limits, received: Received) -> int:
    """Writes one file; gives `total` grown by its size."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = place.open("xb")
    except OSError as error:
        raise RequestError(f"file {place.name!r}: {error.strerror}; send each file once") from error
    with file:
        while chunk := await _timed(part.read_chunk(CHUNK_BYTES), limits):
            total += len(chunk)
            if total > limits.upload_bytes:
                raise TooLarge(f"the files are over the limit of {limits.upload_bytes} bytes")
            if shutil.disk_usage(place.parent).free < len(chunk) + SPARE_BYTES:
                raise TooLarge(f"this device's disk is full: {total} bytes of the model have come")
            await asyncio.to_thread(file.write, chunk)
            received(total)
    return total


async def _text(part: BodyPartReader, limits: Limits) -> str:
    found = bytearray()
    while chunk := await _timed(part.read_chunk(), limits):
        found += chunk
        if len(found) > OPTIONS_BYTES:
            raise TooLarge(f"`options` is over {OPTIONS_BYTES} bytes")
    return found.decode()


async def _timed(reading: Any, limits: Limits) -> Any:
    try:
        return await asyncio.wait_for(reading, limits.stall_s)
    except TimeoutError:
        raise RequestError(f"the upload stood still for {limits.stall_s:g} s; nothing was deployed") from None
