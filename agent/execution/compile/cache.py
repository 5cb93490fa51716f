"""Compiled: segments that ONNX Runtime has optimised, kept on disk for the next time. Door: files.

    entries/<key>     a segment's optimised model, and what is to be known to trust it
    weights/<digest>  an initializer of such models by the SHA-256 of its bytes: ONNX Runtime maps these files, so that
                      sessions share their pages, with each other and with the system's cache

An entry is only good on the kind of processor and for the version of ONNX Runtime that it was made with: both are in its
key, and in it. One that is damaged, or whose weights are, is thrown away as if it had never been. What was not used for
longest makes room.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgpack

from edgepart.agent.storage.atomic_files import write_atomic
from edgepart.planner.model.digests import file_digest

log = logging.getLogger(__name__)

_DIGEST_BYTES = 32
MAKING = ".making-"
"""How the names of folders begin in which segments are being compiled."""


@dataclass(frozen=True)
class CompiledEntry:
    """A segment, optimised with some of its ports wrapped (nchwc.py)."""

    environment: str
    """What it was made with: processor, ONNX Runtime, options."""
    native: frozenset[str]
    """Those of these ports that are native."""
    model: bytes
    """Optimised, with what is put at these ports. Its big initializers are external, in `weights/`."""
    weights: Mapping[str, int]
    """Bytes by digest."""


def entry_key(segment: str, ports: Collection[str], environment: str) -> str:
    """SHA-256 (hex), by the segment's digest and the names of the ports that are wrapped."""
    return hashlib.sha256(msgpack.packb([segment, sorted(ports), environment])).hexdigest()


class Compiled:
    """A folder of entries that takes `limit_bytes` at most between two uses. One process at a time; not thread-safe."""

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self.root = root
        self._limit_bytes = limit_bytes
        self._sound: set[str] = set()
        """Weights that this process has read and found as they should be."""

    def weight_path(self, digest: str) -> Path:
        return self.root / "weights" / digest

    def get(self, key: str, environment: str) -> CompiledEntry | None:
        """None where there is none that can be trusted; what cannot be is deleted."""
        path = self.root / "entries" / key
        try:
            entry = _read(path.read_bytes())
            if entry.environment != environment:
                raise ValueError(f"it was made with {entry.environment}")
            for digest, nbytes in entry.weights.items():
                self._check(digest, nbytes)
            os.utime(path)
            return entry
        except FileNotFoundError as error:
            if path.exists():
                log.warning("compiled segment %s is thrown away: %s is gone", path.name[:8], error.filename)
        except (OSError, ValueError) as error:
            log.warning("compiled segment %s is thrown away: %s", path.name[:8], error)
        path.unlink(missing_ok=True)
        return None

    def _check(self, digest: str, nbytes: int) -> None:
        """ValueError where that weight is not what it should be; then it is deleted. Its bytes are read once in the life of
        a process."""
        path = self.weight_path(digest)
        if path.stat().st_size == nbytes and (digest in self._sound or file_digest(path) == digest):
            self._sound.add(digest)
            return
        self._sound.discard(digest)
        path.unlink()
        raise ValueError(f"weight {digest[:8]} is damaged")

    def put(self, key: str, entry: CompiledEntry) -> None:
        """Its weights are there already."""
        write_atomic(self.root / "entries" / key, _serialise(entry), synced=False)

    def put_weight(self, data: memoryview, like: Path | None = None) -> str:
        """Keeps an initializer; its digest. `like` is a file that may have the same bytes: then it is one file with two
        names."""
        digest = hashlib.sha256(data).hexdigest()
        path = self.weight_path(digest)
        if digest in self._sound and path.exists():
            return digest
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.unlink(missing_ok=True)
        if like is None or not _link(like, path, digest):
            write_atomic(path, data, synced=False)
        self._sound.add(digest)
        return digest

    def make_room(self) -> int:
        """Deletes what was not used for longest until the rest keeps to the limit, and what belongs to nothing; how many
        entries. Sessions that have mapped a weight keep it. What cannot be deleted is logged, and stays."""
        try:
            return self._make_room()
        except OSError as error:
            log.warning("no room can be made among compiled segments: %s", error)
            return 0

    def _make_room(self) -> int:
        for left in self.root.glob(f"{MAKING}*"):  # by a process that was killed
            shutil.rmtree(left)
        entries = sorted((self.root / "entries").glob("*"), key=lambda path: path.stat().st_mtime_ns)
        used = {path: weights for path in entries if (weights := _weights(path)) is not None}
        sizes = {path: path.stat().st_size for path in used}
        gone = [path for path in entries if path not in used]
        for path in list(used):
            if sum(sizes.values()) + sum(_together(used).values()) <= self._limit_bytes:
                break
            del used[path], sizes[path]
            gone.append(path)
        for path in gone:
            path.unlink()
        needed = _together(used)
        for path in (self.root / "weights").glob("*"):
            if path.name not in needed:
                path.unlink()
                self._sound.discard(path.name)
        return len(gone)


def _together(used: Mapping[Path, Mapping[str, int]]) -> dict[str, int]:
    return {digest: nbytes for weights in used.values() for digest, nbytes in weights.items()}


def _weights(path: Path) -> Mapping[str, int] | None:
    """The weights of an entry, with their sizes; None if the entry is damaged."""
    try:
        return _read(path.read_bytes()).weights
    except ValueError:
        return None


def _link(source: Path, path: Path, digest: str) -> bool:
    """Gives `source` a second name, if it holds just that and the file system can."""
    if source.name != digest:
        return False
    try:
        os.link(source.resolve(), path)
    except OSError as error:
        log.debug("%s is copied, not linked: %s", source.name[:8], error)
        return False
    return True


def _serialise(entry: CompiledEntry) -> bytes:
    fields = [entry.environment, sorted(entry.native), entry.model, dict(entry.weights)]
    packed: bytes = msgpack.packb(fields, use_bin_type=True)
    return hashlib.sha256(packed).digest() + packed


def _read(data: bytes) -> CompiledEntry:
    """ValueError where these are not the bytes of an entry."""
    digest, packed = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if hashlib.sha256(packed).digest() != digest:
        raise ValueError("it is damaged")
    match msgpack.unpackb(packed):
        case [str() as environment, [*native], bytes() as model, dict() as weights] if all(
            isinstance(port, str) for port in native
        ) and all(_is_weight(digest, nbytes) for digest, nbytes in weights.items()):
            return CompiledEntry(environment, frozenset(native), model, weights)
    raise ValueError("it is none")


def _is_weight(digest: object, nbytes: object) -> bool:
    """Digests become the names of files."""
    named = isinstance(digest, str) and re.fullmatch(r"[0-9a-f]{64}", digest) is not None
    return named and type(nbytes) is int and nbytes >= 0
