"""The store: keeps blobs (by their digest), models, and blobs that are still arriving, on disk.

A door: the only module that writes under the state directory's `store`. Files have mode 0600, folders 0700. A file gets its
name only when it is complete, so a crash never leaves a file that seems valid but is not.

    store/sha256/ab/abcd...   a blob; for a file of a model, a link into the model's folder
    store/models/DIGEST/      `files/`: a model and its external data, laid out as the user had them; `manifest.json`
    store/partial/DIGEST      the bytes of a blob that have arrived so far
    store/partial/upload-X/   the files that a user is sending
    store/trash/              blobs and models that are being deleted
    store/damaged/DIGEST      a blob or a model with wrong bytes, until the right ones are stored again
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import numpy as np

from edgepart.agent.storage import atomic_files
from edgepart.agent.storage.atomic_files import NEW, move, read_json
from edgepart.agent.storage.atomic_files import write_atomic as write_atomic
from edgepart.planner.errors import EdgepartError, ModelError, PeerError, Unavailable, UsageError
from edgepart.planner.json_text import parse_json
from edgepart.planner.model.blobs import pack_constant
from edgepart.planner.model.digests import joint_digest
from edgepart.planner.model.graph import Constant, Graph
from edgepart.planner.region import Array, Region

K = TypeVar("K")
V = TypeVar("V")

UPLOAD = "upload-"
"""The names of folders in `partial` that receive users' files (agent/http) begin with this."""
PARTIAL_S = 24 * 3600.0
"""Seconds for which the arrived part of a blob is kept after its last byte, for the next try."""


@dataclass(frozen=True, slots=True)
class Source:
    """The region of a model's constant from which a blob can be cut."""

    model: str
    """The model's digest."""
    constant: str
    region: Region
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The shapes of the model's inputs: some constants, but no weights, are folded from them."""


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a model."""

    path: str
    """The path relative to the model's folder, with "/"."""
    digest: str
    """SHA-256 (hex) of the file's bytes."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The list of a model's files, with which another device can fetch them."""

    files: tuple[ModelFile, ...]
    """The files; the graph comes first."""

    @property
    def digest(self) -> str:
        """The digest of the model."""
        return joint_digest([file.digest for file in self.files])


def manifest_to_json(manifest: Manifest) -> list[dict[str, Any]]:
    return [{"path": f.path, "digest": f.digest, "nbytes": f.nbytes} for f in manifest.files]


def manifest_from_json(document: Any) -> Manifest:
    """Return the manifest in a document. PeerError if it is no manifest or names a file outside the model's folder."""
    try:
        files = tuple(ModelFile(str(e["path"]), str(e["digest"]), int(e["nbytes"])) for e in document)
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise PeerError(f"no list of a model's files: {error!r}") from error
    for file in files:
        path = PurePosixPath(file.path)
        if (
            not path.parts
            or path.is_absolute()
            or ".." in path.parts
            or "\0" in file.path
            or not 0 <= file.nbytes < 2**63
        ):
            raise PeerError(f"a model's file cannot be {file.path!r} of {file.nbytes} bytes")
        if not _can_be_called(file.path):
            raise PeerError(f"no file can be called {file.path[:80]!r}")
        _check_digest(file.digest)
    if not files or len({file.path for file in files}) < len(files):
        raise PeerError("a model's list of files is empty, or names one twice")
    return Manifest(files)


def _can_be_called(path: str) -> bool:
    """Whether file systems accept this path, by the usual limits on lengths."""
    try:
        return len(path.encode()) <= 1024 and all(len(part.encode()) <= 255 for part in path.split("/"))
    except UnicodeEncodeError:  # half a surrogate pair
        return False


def manifest_from_text(text: str) -> Manifest:
    """Return the manifest in a text that a member sent. PeerError if the text is no manifest."""
    try:
        return manifest_from_json(parse_json(text))
    except ValueError as error:
        raise PeerError(f"a list of files that is no JSON: {error}") from error


class Store:
    """Stores blobs and models under `root`. Methods may be called from several threads."""

    def __init__(self, root: Path, *, alone: bool = True) -> None:
        """Open the store. `alone` says that no other process writes to it now; unfinished files are then left from a crash
        and deleted."""
        self.root = root
        for folder in (root, *(root / name for name in ("sha256", "models", "partial", "trash", "damaged"))):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if alone:
            unfinished = [p for p in (root / "models").iterdir() if not (p / "manifest.json").exists()]
            for left in [*root.rglob(f"{NEW}*"), *(root / "partial").glob(f"{UPLOAD}*"), *unfinished]:
                shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
            self.empty_trash()
        self._graphs: OrderedDict[tuple[str, str], Graph] = OrderedDict()
        """Models from which blobs are cut, by digest and shapes; their weights are not in memory."""
        self._weights: OrderedDict[str, Mapping[str, Constant]] = OrderedDict()
        """The constants that the files of models hold directly, by the model's digest."""
        self._constants: OrderedDict[str, Mapping[str, Constant]] = OrderedDict()
        """The constants of models that depend on no shape, by the model's digest."""

    # blobs

    def path(self, digest: str) -> Path:
        """The path that the blob has, or would have."""
        return self.root / "sha256" / _check_digest(digest)[:2] / digest

    def has(self, digest: str) -> bool:
        return self.path(digest).exists()

    def size(self, digest: str) -> int:
        """The size of a blob in bytes. Unavailable if the blob is not stored."""
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError as error:
            raise _describe_absent(digest) from error

    def get(self, digest: str) -> Array:
        """Return the blob's bytes (uint8, read-only, mapped into memory). Unavailable if the blob is not stored."""
        if self.size(digest) == 0:
            return np.frombuffer(b"", np.uint8)
        return np.memmap(self.path(digest), np.uint8, mode="r")

    def file(self, digest: str) -> Path:
        """Return the path of a blob's bytes. Unavailable if the blob is not stored."""
        self.size(digest)
        return self.path(digest)

    def put_bytes(self, data: bytes | memoryview, *, synced: bool = True) -> str:
        """Store these bytes and return their digest. Without `synced` a crash may leave any bytes under the name."""
        digest = hashlib.sha256(data).hexdigest()
        if not self.has(digest):
            write_atomic(self.path(digest), data, synced=synced)
        return digest

    def delete(self, digest: str) -> None:
        """Delete a blob. Nothing happens if it is not stored or is a file of a model."""
        if not self.path(digest).is_symlink():
            self.path(digest).unlink(missing_ok=True)

    def cut(self, wanted: Sequence[tuple[str, Source]]) -> None:
        """Cut these blobs from stored models; they are on disk when this returns. Raises the same errors as `blob`.

        All blobs are written and then flushed together, because a plan may need ten thousand, and flushing each one would
        take minutes on an SD card. A blob that a crash leaves damaged is found before it is used (integrity.py)."""
        for digest, source in wanted:
            self.blob(digest, source, synced=False)
        atomic_files.flush_file_system(self.root)

    def blob(
        self, digest: str, source: Source | tuple[str, str, Region] | None = None, *, synced: bool = True
    ) -> Array:
        """Return the bytes of a blob, which is cut from its model if it is not stored itself. Unavailable if neither is
        stored.

        PeerError if the model has no such region, or if its bytes have another digest than the plan says."""
        source = Source(*source) if isinstance(source, tuple) else source
        if self.has(digest) or source is None or not self.has_model(source.model):
            return self.get(digest)
        name, region = source.constant, source.region
        constant = self._constant(source)
        if constant is None or constant.dtype == "string":
            raise PeerError(f"blob {digest}: model {source.model} has no such constant: {name!r}")
        if region.rank != len(constant.shape) or not constant.region.contains(region):
            raise PeerError(f"blob {digest}: {name!r} of shape {list(constant.shape)} has no region {region}")
        data = pack_constant(constant, region).reshape(-1).view(np.uint8).data
        if (found := hashlib.sha256(data).hexdigest()) != digest:
            raise PeerError(f"blob {digest}: {name!r} {region} of model {source.model} has digest {found}")
        self.put_bytes(data, synced=synced)
        return self.get(digest)

    def partial(self, digest: str, nbytes: int) -> Partial:
        """Return the state of a blob that is arriving, with the bytes that an earlier try has left."""
        return Partial(self.root / "partial" / _check_digest(digest), self.path(digest), digest, nbytes)

    # models

    def put_model(self, files: Sequence[Path]) -> str:
        """Store a model, given its files as `model_files` lists them, and return its digest."""
        folder = files[0].absolute().parent
        with tempfile.TemporaryDirectory(dir=self.root / "models", prefix=NEW) as making:
            kept = []
            for number, file in enumerate(files):
                inside = file.name if number == 0 else _inside(file, folder)
                copy = Path(making) / "files" / inside
                copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                digest = atomic_files.copy(file, copy)
                kept.append(ModelFile(inside, digest, copy.stat().st_size))
            return self._finish(Manifest(tuple(kept)), Path(making))

    def adopt_model(self, manifest: Manifest) -> str:
        """Make a model of files that have arrived as blobs, and return its digest. Unavailable if a file is missing."""
        with tempfile.TemporaryDirectory(dir=self.root / "models", prefix=NEW) as making:
            for file in manifest.files:
                if not self.has(file.digest):
                    raise _describe_absent(file.digest)
                place = Path(making) / "files" / file.path
                place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                _second_name(self.path(file.digest).resolve(), place)
            return self._finish(manifest, Path(making))

    def _finish(self, manifest: Manifest, making: Path) -> str:
        """Rename a folder that has all files of a model to its final name, and link the blobs to it."""
        digest = manifest.digest
        home = self.root / "models" / digest
        if not (home / "manifest.json").exists():
            write_atomic(making / "manifest.json", json.dumps(manifest_to_json(manifest)).encode())
            atomic_files.flush_tree(making / "files")
            atomic_files.make_folder(home)
            shutil.rmtree(home / "files", ignore_errors=True)
            move(making / "files", home / "files")
            move(making / "manifest.json", home / "manifest.json")
        self._link_files(digest)
        return digest

    def _link_files(self, model: str) -> None:
        """Make the files of a model available as blobs, by links."""
        for file in self.manifest(model).files:
            blob = self.path(file.digest)
            if not blob.is_symlink() or not blob.exists():
                _link(blob, self.root / "models" / model / "files" / file.path)

    def has_model(self, digest: str) -> bool:
        return (self.root / "models" / _check_digest(digest) / "manifest.json").exists()

    def models(self) -> tuple[str, ...]:
        """Digests of the stored models."""
        found = (path.parent.name for path in (self.root / "models").glob("*/manifest.json"))
        return tuple(sorted(name for name in found if not name.startswith(NEW)))

    def manifest(self, digest: str) -> Manifest:
        """Return the manifest of a model. Unavailable if the model is not stored."""
        document = read_json(self.root / "models" / _check_digest(digest) / "manifest.json")
        if document is None:
            raise Unavailable(f"model {digest} is not on this device")
        return manifest_from_json(document)

    def model_path(self, digest: str) -> Path:
        """Return the path of the model's .onnx file, which has its external data beside it. Unavailable if the model is not
        stored."""
        return self.root / "models" / digest / "files" / self.manifest(digest).files[0].path

    def _set_model_aside(self, digest: str, kept: Path | None = None) -> None:
        home = self.root / "models" / digest
        for link in (self.root / "sha256").glob("*/*"):
            if link.is_symlink() and link.resolve().is_relative_to(home.resolve()):
                link.unlink()
        if kept is None:
            self._set_aside(home)
        else:
            shutil.rmtree(kept, ignore_errors=True)
            home.rename(kept)
        self.link_models()  # other models may share a file with this one

    def link_models(self) -> None:
        """Make the files of all models available as blobs, because a crash may have prevented that for some."""
        for model in self.models():
            self._link_files(model)

    def keep_damaged(self, digest: str) -> Path:
        """Move a damaged blob or model to `damaged`, replacing an earlier one with this digest, and return its new path. It
        no longer counts as stored."""
        kept = self.root / "damaged" / _check_digest(digest)
        if (self.root / "models" / digest).exists():
            self._set_model_aside(digest, kept)
        else:
            self.path(digest).replace(kept)
        return kept

    def owner(self, digest: str) -> str:
        """Return the digest of the model to which a blob belongs as a file; "" if it belongs to none."""
        path = self.path(digest)
        home = path.resolve().relative_to((self.root / "models").resolve()) if path.is_symlink() else None
        return home.parts[0] if home else ""

    def _set_aside(self, path: Path) -> None:
        path.rename(self.root / "trash" / secrets.token_hex(8))

    def prune(self, keep: Collection[str], *, partial_s: float = PARTIAL_S) -> int:
        """Move to the trash the blobs and models whose digest is not in `keep`, and blobs that stopped arriving `partial_s`
        ago. Return how many were moved. The files of a model in `keep` are kept too.

        This is fast whatever the sizes are, so that the thread that decides what to keep can wait for it. `empty_trash`
        frees the bytes."""
        doomed = [model for model in self.models() if model not in keep]
        for model in doomed:
            self._set_model_aside(model)
        blobs = (path for path in (self.root / "sha256").glob("*/*") if not path.name.startswith(NEW))
        old = [path for path in blobs if path.name not in keep and not path.is_symlink()]
        since = time.time() - partial_s
        arriving = [path for path in (self.root / "partial").iterdir() if path.is_file()]
        old += [path for path in arriving if path.name not in keep and path.stat().st_mtime <= since]
        old += [p for p in (self.root / "damaged").iterdir() if self.has(p.name) or self.has_model(p.name)]
        for path in old:
            self._set_aside(path)
        return len(doomed) + len(old)

    def empty_trash(self) -> int:
        """Delete everything in the trash, and return the number of bytes that this freed."""
        freed = 0
        for path in (self.root / "trash").iterdir():
            if path.is_dir():
                freed += _bytes_below(path)
                shutil.rmtree(path)
            else:
                freed += path.stat().st_size
                path.unlink()
        return freed

    def nbytes(self) -> int:
        """The bytes of all files in the store, which is exact if nothing is written meanwhile."""
        return _bytes_below(self.root)

    def _constant(self, source: Source) -> Constant | None:
        """Return the constant of a stored model; None if the model has no constant of that name."""
        # Imported here because it takes much memory, which an agent that cuts no blobs need not spend.
        from edgepart.planner.model.load import load_constants, load_planned, load_weights

        path = self.model_path(source.model)
        weights = _remember(self._weights, source.model, lambda: load_weights(path))
        if source.constant in weights:
            return weights[source.constant]
        try:
            constants = _remember(self._constants, source.model, lambda: load_constants(path))
        except ModelError:
            if not source.shapes:
                raise
            constants = {}  # Without shapes, the types of all values may not be known.
        if source.constant in constants or not source.shapes:
            return constants.get(source.constant)
        key = (source.model, repr(sorted(source.shapes.items())))
        graph = _remember(self._graphs, key, lambda: load_planned(path, source.shapes))
        return graph.constants.get(source.constant)


def _remember(cache: OrderedDict[K, V], key: K, make: Callable[[], V]) -> V:
    """Return `cache[key]`, which is made if it is missing. At most four entries are kept; the oldest is dropped first."""
    found = cache.get(key)
    if found is None:
        found = cache[key] = make()
        while len(cache) > 4:
            cache.popitem(last=False)
    return found


class Partial:
    """A blob that arrives piece by piece, in order; the bytes on disk survive a restart."""

    def __init__(self, path: Path, final: Path, digest: str, nbytes: int) -> None:
        self._path, self._final, self.digest, self.nbytes = path, final, digest, nbytes
        self._hasher, self._hashed = hashlib.sha256(), 0
        """The hash of the first `_hashed` bytes. Bytes from before a restart are read when the next ones arrive."""
        if self.arrived > nbytes:
            path.unlink()

    @property
    def arrived(self) -> int:
        """The number of bytes that have arrived, which is the offset at which to continue."""
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def append(self, offset: int, data: bytes | memoryview) -> bool:
        """Add the next bytes. Return whether the blob is now complete, and therefore in the store.

        PeerError if the bytes do not continue those that have arrived, are too many, or give another digest (all are then
        deleted). After an OSError the earlier bytes are still there."""
        if offset != self.arrived or offset + len(data) > self.nbytes:
            raise PeerError(
                f"blob {self.digest}: {len(data)} bytes for offset {offset} do not go on from {self.arrived} "
                f"of {self.nbytes}"
            )
        self._catch_up(offset)
        whole = offset + len(data) == self.nbytes
        try:
            self._write(data, synced=whole)
        except OSError:
            os.truncate(self._path, offset)
            raise
        self._hasher.update(data)
        self._hashed += len(data)
        if not whole:
            return False
        if (found := self._hasher.hexdigest()) != self.digest:
            self._path.unlink()
            raise PeerError(f"blob {self.digest}: what arrived has digest {found}; it was thrown away")
        move(self._path, self._final)
        return True

    def _catch_up(self, offset: int) -> None:
        if self._hashed == offset:
            return
        self._hasher, self._hashed = hashlib.sha256(), offset
        if not offset:
            return
        with self._path.open("rb") as file:
            while chunk := file.read(1 << 20):
                self._hasher.update(chunk)

    def _write(self, data: bytes | memoryview, *, synced: bool) -> None:
        with open(self._path, "ab", opener=atomic_files.private) as file:
            file.write(data)
            if synced:
                file.flush()
                os.fsync(file.fileno())

    def discard(self) -> None:
        """Delete the bytes that have arrived."""
        self._path.unlink(missing_ok=True)


def _bytes_below(folder: Path) -> int:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files)


def _check_digest(digest: str) -> str:
    """Return the digest. PeerError if it is no SHA-256 in hex: members send digests, which become file names here."""
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise PeerError(f"{digest[:80]!r} is no SHA-256 digest")
    return digest


def _describe_absent(digest: str) -> EdgepartError:
    return Unavailable(f"blob {digest} is not on this device")


def _inside(file: Path, folder: Path) -> str:
    """Return the path of external data relative to the model's folder, as the graph names it. UsageError if the file is
    outside the folder."""
    if not file.absolute().is_relative_to(folder):
        raise UsageError(f"{file} does not lie in the model's folder {folder}")
    return file.absolute().relative_to(folder).as_posix()


def _second_name(file: Path, place: Path) -> None:
    """Create a hard link to a file, or a copy if the file system has no hard links."""
    try:
        os.link(file, place)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        atomic_files.copy(file, place)


def _link(link: Path, target: Path) -> None:
    """Create `link` as a symbolic link to `target`, replacing any file of that name."""
    link.parent.mkdir(exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=link.parent, prefix=NEW) as making:
        fresh = Path(making) / "link"
        fresh.symlink_to(os.path.relpath(target, link.parent))
        fresh.replace(link)
