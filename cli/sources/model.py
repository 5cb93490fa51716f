"""The model that a user names by a path, a folder, a URL or a digest, as files to deploy. Door: files and the network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from edgepart.agent.wire.inference import DeployOptions
from edgepart.cli.sources.download import downloaded, is_url
from edgepart.client.model_files import files_of, find_model
from edgepart.planner.errors import ModelError, UsageError

USUAL_DOWNLOAD_LIMIT = "16G"
"""The largest file that is downloaded if the user does not say."""


@dataclass(frozen=True)
class LocalModel:
    """A model on this machine's disk."""

    graph: Path
    """The .onnx file."""
    files: dict[str, Path]
    """All files to send, by their paths relative to the model's folder."""
    digest: str
    """The digest by which the cluster knows the model; "" if nobody asked."""


def read_digest(text: str) -> str:
    """The hex digits of a digest such as "sha256:9f86..."; "" for "". Raises UsageError.

    >>> read_digest("sha256:" + 32 * "Ab")[:6]
    'ababab'
    """
    if not text:
        return ""
    found = re.fullmatch(r"(?:sha256:)?([0-9a-f]{64})", text.strip().lower())
    if not found:
        raise UsageError(f"digest {text[:100]!r}: give sha256: and 64 hex digits, as sha256sum prints them")
    return found[1]


def name_of_source(given: str) -> Path:
    """The path whose name suggests the deployment's name."""
    return Path(PurePosixPath(unquote(urlsplit(given).path))) if is_url(given) else Path(given)


@contextmanager
def model_at(
    given: str, digest: str, most_bytes: int, options: DeployOptions, *, with_digest: bool = False
) -> Iterator[LocalModel]:
    """The model at a path or URL, which is there as long as the block lasts. `digest` is the one that it must have (hex);
    "" accepts any. Raises UsageError, ModelError and ClusterError."""
    if not is_url(given):
        yield _local(Path(given), digest, options, with_digest=with_digest)
        return
    with downloaded(given, digest, most_bytes) as (file, found):
        try:
            files = files_of(file)
        except ModelError as error:
            raise ModelError(
                f"{given}: {error}. A URL brings one file: of a model with several, download the folder and give its path"
            ) from error
        yield LocalModel(file, files, found)


def _local(path: Path, digest: str, options: DeployOptions, *, with_digest: bool) -> LocalModel:
    graph = find_model(path)
    files = files_of(graph)
    found = digest_of(graph, options) if digest or with_digest else ""
    if digest and found != digest:
        raise UsageError(
            f"{path} has the digest sha256:{found}, and not sha256:{digest}. Nothing was deployed"
        )
    return LocalModel(graph, files, found)


def digest_of(model: Path, options: DeployOptions) -> str:
    """The digest by which the cluster knows the model in this file once it is deployed with these options. Raises
    UsageError and ModelError."""
    from edgepart.agent.planwork.model_process import stored_digest
    from edgepart.agent.text.companions import NAMES

    files = files_of(model)
    return stored_digest(model, [files[name] for name in NAMES if name in files], options)
