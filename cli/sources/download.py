"""Downloads of models: a URL comes in, a file with the right digest comes out, or nothing. Door: the network and files."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from edgepart.cli.output import progress
from edgepart.client.model_files import cache_folder
from edgepart.planner.errors import ClusterError, UsageError
from edgepart.planner.figures import format_bytes

CONNECT_S, SILENT_S = 10.0, 60.0
"""Seconds that opening a connection may take, and seconds of silence after which it is given up."""
CHUNK_BYTES = 1 << 20
SPARE_BYTES = 256 << 20
"""Bytes of disk space that a download leaves free."""
DOWNLOADING = "downloading the model"


def is_url(text: str) -> bool:
    """Whether a model is given by its URL, and not by a path."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


def check_url(url: str) -> str:
    """The URL. Raises UsageError unless it is https, or stays on this machine: nobody on the way may change what it
    brings."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as error:
        raise UsageError(f"{url!r} is no URL: {error}") from error
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host))):
        raise UsageError(f"{url!r}: a model comes by https://, or is a file")
    return url


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def downloaded(url: str, digest: str, most_bytes: int) -> Iterator[tuple[Path, str]]:
    """The file that the URL brings, and its digest. The file's folder exists as long as the block lasts. `digest` is the
    SHA-256 (hex) that the file must have; "" accepts any.

    Raises UsageError if the URL is of another kind, the file is larger than `most_bytes` or has another digest, and
    ClusterError if it cannot be had."""
    check_url(url)
    name = PurePosixPath(unquote(urlsplit(url).path)).name
    folder = cache_folder(os.environ)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=folder, prefix="download-") as place:
        file = Path(place) / (name if name.endswith(".onnx") and "\0" not in name else "model.onnx")
        found = asyncio.run(_download(url, file, most_bytes))
        if digest and found != digest:
            raise UsageError(
                f"{url} brought a file with the digest sha256:{found}, and not sha256:{digest}. It was deleted"
            )
        yield file, found


async def _download(url: str, file: Path, most_bytes: int) -> str:
    """Write what the URL brings to `file`; return its SHA-256 (hex)."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENT_S)
    headers = {"Accept-Encoding": "identity"}
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers, trust_env=True) as session,
            session.get(url) as response,
        ):
            for passed in (*response.history, response):
                check_url(str(passed.url))
            if response.status != 200:
                raise ClusterError(
                    f"{url} cannot be had: HTTP status {response.status}. Nothing was deployed"
                )
            return await _receive(response, url, file, most_bytes)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ClusterError(
            f"{url} cannot be had ({error or type(error).__name__}). Nothing was deployed"
        ) from error


async def _receive(response: object, url: str, file: Path, most_bytes: int) -> str:
    import aiohttp

    assert isinstance(response, aiohttp.ClientResponse)
    total, done, digest = response.content_length or 0, 0, hashlib.sha256()
    with progress({DOWNLOADING: "bytes"}) as bar, file.open("xb") as out:
        bar(DOWNLOADING, 0, total)
        async for chunk in response.content.iter_chunked(CHUNK_BYTES):
            done += len(chunk)
            if max(done, total) > most_bytes:
                raise UsageError(
                    f"{url} has {'at least ' if total <= most_bytes else ''}{format_bytes(max(done, total))}, more than "
                    f"--download-limit allows ({format_bytes(most_bytes)}). Nothing was deployed"
                )
            if shutil.disk_usage(file.parent).free < len(chunk) + SPARE_BYTES:
                raise UsageError(
                    f"{file.parent.parent} has no room for {url}: {format_bytes(done)} of it have come. Nothing was "
                    "deployed; free some, or set XDG_CACHE_HOME to a folder on another disk"
                )
            digest.update(chunk)
            await asyncio.to_thread(out.write, chunk)
            bar(DOWNLOADING, done, total)
    if total and done != total:
        raise ClusterError(f"{url} ended after {done} of {total} bytes. Nothing was deployed")
    return digest.hexdigest()
