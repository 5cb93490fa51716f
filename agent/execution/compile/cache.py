"""Compiled: segments that ONNX Runtime has optimised, kept on disk for the next time. Door: files.

    entries/<key>     a segment's optimised model, and the facts by which it is checked before use
    weights/<digest>  an initializer of such models, named by the SHA-256 of its bytes: ONNX Runtime maps these files, so
                      that sessions share their pages with each other and with the system's cache

An entry is valid only on the kind of processor and for the version of ONNX Runtime that it was made with: its key and the
entry itself contain both. A damaged entry, or one with damaged weights, is deleted. The entries that were not used for the
longest time are deleted first to make room.
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
"""The prefix of the names of folders in which segments are being compiled."""


@dataclass(frozen=True)
class CompiledEntry:
    """A segment, optimised with some of its ports wrapped (nchwc.py)."""

    environment: str
    """The processor, the ONNX Runtime and the version of compiling that made the entry."""
    native: frozenset[str]
    """The wrapped ports at which the segment computes in blocks (`nchwc.native`)."""
    model: bytes
    """The optimised model, with the operators that were put at the wrapped ports. Its big initializers are external, in
    `weights/`."""
    weights: Mapping[str, int]
    """Sizes of the external weights in bytes, by digest."""


def entry_key(segment: str, ports: Collection[str], environment: str) -> str:
    """Return the SHA-256 (hex) of the segment's digest, the names of the wrapped ports and the environment."""
    return hashlib.sha256(msgpack.packb([segment, sorted(ports), environment])).hexdigest()


class Compiled:
    """A folder of entries, which `make_room` keeps to `limit_bytes`. For one process at a time; not thread-safe."""

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self.root = root
        self._limit_bytes = limit_bytes
        self._sound: set[str] = set()
        """Digests of the weights that this process has written, or has read and found undamaged."""

    def weight_path(self, digest: str) -> Path:
        return self.root / "weights" / digest

    def get(self, key: str, environment: str) -> CompiledEntry | None:
        """Return the entry, or None if there is none that can be trusted. An entry that cannot be trusted is deleted."""
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
        """Raise ValueError and delete the weight if its file does not have that digest and size. The bytes of a weight are
        read once in the life of a process."""
        path = self.weight_path(digest)
        if path.stat().st_size == nbytes and (digest in self._sound or file_digest(path) == digest):
            self._sound.add(digest)
            return
        self._sound.discard(digest)
        path.unlink()
        raise ValueError(f"weight {digest[:8]} is damaged")

    def put(self, key: str, entry: CompiledEntry) -> None:
        """Write an entry, whose weights must have been written before."""
        write_atomic(self.root / "entries" / key, _serialise(entry), synced=False)

    def put_weight(self, data: memoryview, like: Path | None = None) -> str:
        """Keep an initializer and return its digest. `like` is a file that may hold the same bytes: if it does, it gets a
        second name and nothing is copied."""
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
        """Delete the entries that were not used for the longest time until the rest fits into the limit, and all weights
        that belong to no entry. Return the number of entries deleted, or 0 if an error stopped this, which is logged.
        Sessions that have mapped a weight keep it."""
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
    """Give `source` the second name `path` if its own name is `digest`, as it then holds the same bytes. Return False if
    it is not, or if the file system cannot link the two."""
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
    """Return the entry in these bytes. Raises ValueError if they are not the bytes of an entry."""
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
    """Whether these are a SHA-256 in hex and a size. This is checked because digests become the names of files."""
    named = isinstance(digest, str) and re.fullmatch(r"[0-9a-f]{64}", digest) is not None
    return named and type(nbytes) is int and nbytes >= 0
