"""What an agent keeps on disk: blobs named by their content, models, what is still arriving, and state files.

A door: the only place that writes under the state directory's `store`. Files are 0600, folders 0700; a file
has its name only once it is whole, so that a crash at any moment leaves nothing that looks good and is not.

    store/sha256/ab/abcd...   a blob; of a model's files a link into its folder
    store/models/DIGEST/      `files/`: a model and its external data, as they were laid out; `manifest.json`
    store/partial/DIGEST      what has arrived so far
    store/partial/upload-X/   what a user is sending
    store/trash/              what was set aside and is being deleted
    store/damaged/DIGEST      a blob or a model that is not what it should be, until it is here again
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
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import numpy as np
from onnx import TensorProto
from onnx.helper import tensor_dtype_to_np_dtype

from edgepart.agent.storage import atomic_files
from edgepart.agent.storage.atomic_files import NEW, move, read_json
from edgepart.agent.storage.atomic_files import write_atomic as write_atomic
from edgepart.planner.errors import EdgepartError, PeerError, Unavailable, UsageError
from edgepart.planner.json_text import parse_json
from edgepart.planner.model.blobs import pack_constant
from edgepart.planner.model.digests import joint_digest
from edgepart.planner.model.graph import Constant, Graph
from edgepart.planner.plans.plan import Plan, WeightRef
from edgepart.planner.region import Array, Region

K = TypeVar("K")
V = TypeVar("V")

UPLOAD = "upload-"
"""How the names of folders in `partial` begin that users' files come in by (agent/http)."""
PARTIAL_S = 24 * 3600.0
"""What has arrived of a blob is kept for so long after its last byte, for the next try."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a blob can be cut from."""

    model: str
    """Its digest."""
    constant: str
    region: Region
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """That the model's inputs are bound to: some constants are folded from them. Weights are not."""


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a model."""

    path: str
    """Relative to the model's folder, with "/"."""
    digest: str
    """SHA-256 (hex) of its bytes."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a model: what a device needs to fetch it from another."""

    files: tuple[ModelFile, ...]
    """The graph first."""

    @property
    def digest(self) -> str:
        """The model's."""
        return joint_digest([file.digest for file in self.files])


def manifest_to_json(manifest: Manifest) -> list[dict[str, Any]]:
    return [{"path": f.path, "digest": f.digest, "nbytes": f.nbytes} for f in manifest.files]


def manifest_from_json(document: Any) -> Manifest:
    """PeerError where it is none, or names a file outside the model's folder."""
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
        _checked(file.digest)
    if not files or len({file.path for file in files}) < len(files):
        raise PeerError("a model's list of files is empty, or names one twice")
    return Manifest(files)


def _can_be_called(path: str) -> bool:
    """Whether file systems take it, as far as that is known."""
    try:
        return len(path.encode()) <= 1024 and all(len(part.encode()) <= 255 for part in path.split("/"))
    except UnicodeEncodeError:  # half a surrogate pair
        return False


def manifest_from_text(text: str) -> Manifest:
    """As a member sends it. PeerError where it is none."""
    try:
        return manifest_from_json(parse_json(text))
    except ValueError as error:
        raise PeerError(f"a list of files that is no JSON: {error}") from error


class Store:
    """Blobs and models under `root`. Methods may be called from several threads."""

    def __init__(self, root: Path, *, alone: bool = True) -> None:
        """`alone`: no other process writes here now, so what is half-made was left by a crash and is deleted."""
        self.root = root
        for folder in (root, *(root / name for name in ("sha256", "models", "partial", "trash", "damaged"))):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if alone:
            unfinished = [p for p in (root / "models").iterdir() if not (p / "manifest.json").exists()]
            for left in [*root.rglob(f"{NEW}*"), *(root / "partial").glob(f"{UPLOAD}*"), *unfinished]:
                shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
            self.empty_trash()
        self._graphs: OrderedDict[tuple[str, str], Graph] = OrderedDict()
        """Models that blobs are cut from, by digest and shapes; their weights are not in memory."""
        self._weights: OrderedDict[str, Mapping[str, Constant]] = OrderedDict()
        """Their constants that the files have as they are."""
        self._constants: OrderedDict[str, Mapping[str, Constant]] = OrderedDict()
        """Their constants that depend on no shape."""

    # blobs

    def path(self, digest: str) -> Path:
        """Where the blob is, or would be."""
        return self.root / "sha256" / _checked(digest)[:2] / digest

    def has(self, digest: str) -> bool:
        return self.path(digest).exists()

    def size(self, digest: str) -> int:
        """Bytes of a blob. Unavailable: it is not here."""
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError as error:
            raise _absent(digest) from error

    def get(self, digest: str) -> Array:
        """The blob's bytes (uint8, read-only, mapped into memory). Unavailable: it is not here."""
        if self.size(digest) == 0:
            return np.frombuffer(b"", np.uint8)
        return np.memmap(self.path(digest), np.uint8, mode="r")

    def file(self, digest: str) -> Path:
        """Where the blob's bytes are. Unavailable: it is not here."""
        self.size(digest)
        return self.path(digest)

    def put_bytes(self, data: bytes | memoryview, *, synced: bool = True) -> str:
        """Keeps the bytes; their digest. Not `synced`: a crash may leave anything under the name."""
        digest = hashlib.sha256(data).hexdigest()
        if not self.has(digest):
            write_atomic(self.path(digest), data, synced=synced)
        return digest

    def delete(self, digest: str) -> None:
        """Forgets a blob; nothing happens where it is not there, or is a model's file."""
        if not self.path(digest).is_symlink():
            self.path(digest).unlink(missing_ok=True)

    def cut(self, wanted: Sequence[tuple[str, Source]]) -> None:
        """Has these blobs, by digest, cut from models that are here; on disk when this returns. Errors are those of `blob`.

        They are written first and waited for together: a plan may need ten thousand, and a flush of each takes minutes on
        an SD card. What a crash leaves in between is found before it is used (integrity.py)."""
        for digest, source in wanted:
            self.blob(digest, source, synced=False)
        atomic_files.flush_file_system(self.root)

    def blob(
        self, digest: str, source: Source | tuple[str, str, Region] | None = None, *, synced: bool = True
    ) -> Array:
        """The blob; cut from its model where it is not there itself. Unavailable: neither is here.

        PeerError: the model's bytes have another digest than the plan says."""
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

    def weight(self, plan: Plan, ref: WeightRef) -> Array:
        """A weight of a plan's segment, typed and shaped. Unavailable: neither it nor its model is here."""
        shapes = {value.name: value.shape for value in plan.inputs if value.shape is not None}
        data = self.blob(ref.digest, Source(plan.model_digest, ref.source, ref.region, shapes))
        dtype = tensor_dtype_to_np_dtype(TensorProto.DataType.Value(ref.dtype.upper()))
        if data.nbytes != prod(ref.shape) * dtype.itemsize:
            raise PeerError(f"weight {ref.name!r}: {data.nbytes} bytes are no {ref.dtype} {list(ref.shape)}")
        weight: Array = data.view(dtype).reshape(ref.shape)
        return weight

    def partial(self, digest: str, nbytes: int) -> Partial:
        """A blob that is arriving, with what an earlier try has left of it."""
        return Partial(self.root / "partial" / _checked(digest), self.path(digest), digest, nbytes)

    # models

    def put_model(self, files: Sequence[Path]) -> str:
        """Keeps a model, given its files as `model_files` names them; its digest."""
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
        """Makes a model of files that have arrived as blobs; its digest. Unavailable: one is not here."""
        with tempfile.TemporaryDirectory(dir=self.root / "models", prefix=NEW) as making:
            for file in manifest.files:
                if not self.has(file.digest):
                    raise _absent(file.digest)
                place = Path(making) / "files" / file.path
                place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                _second_name(self.path(file.digest).resolve(), place)
            return self._finish(manifest, Path(making))

    def _finish(self, manifest: Manifest, making: Path) -> str:
        """Gives a folder with all its files its name, and links the blobs to it."""
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
        """Makes the files of a model blobs, too."""
        for file in self.manifest(model).files:
            blob = self.path(file.digest)
            if not blob.is_symlink() or not blob.exists():
                _link(blob, self.root / "models" / model / "files" / file.path)

    def has_model(self, digest: str) -> bool:
        return (self.root / "models" / _checked(digest) / "manifest.json").exists()

    def models(self) -> tuple[str, ...]:
        """Digests of the models that are here."""
        found = (path.parent.name for path in (self.root / "models").glob("*/manifest.json"))
        return tuple(sorted(name for name in found if not name.startswith(NEW)))

    def manifest(self, digest: str) -> Manifest:
        """Unavailable: the model is not here."""
        document = read_json(self.root / "models" / _checked(digest) / "manifest.json")
        if document is None:
            raise Unavailable(f"model {digest} is not on this device")
        return manifest_from_json(document)

    def model_path(self, digest: str) -> Path:
        """The model's .onnx file, its external data beside it. Unavailable: it is not here."""
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
        self.link_models()  # that may have had a file in common

    def link_models(self) -> None:
        """Makes the files of all models blobs; some may not be, after a crash."""
        for model in self.models():
            self._link_files(model)

    def keep_damaged(self, digest: str) -> Path:
        """Sets a damaged blob or model aside, in place of one of that name that was before; where it is. It does not count
        as here any more."""
        kept = self.root / "damaged" / _checked(digest)
        if (self.root / "models" / digest).exists():
            self._set_model_aside(digest, kept)
        else:
            self.path(digest).replace(kept)
        return kept

    def owner(self, digest: str) -> str:
        """The model whose file a blob is; "" where it is none."""
        path = self.path(digest)
        home = path.resolve().relative_to((self.root / "models").resolve()) if path.is_symlink() else None
        return home.parts[0] if home else ""

    def _set_aside(self, path: Path) -> None:
        path.rename(self.root / "trash" / secrets.token_hex(8))

    def prune(self, keep: Collection[str], *, partial_s: float = PARTIAL_S) -> int:
        """Sets aside blobs and models whose digest is not in `keep`, and what has arrived of a blob when nothing
        more came for `partial_s`; how many. A model that is kept keeps its files.

        Fast whatever the sizes are, so that whoever decides what is kept can do nothing else meanwhile;
        `empty_trash` frees the bytes."""
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
        """Deletes what was set aside; its bytes."""
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
        """Bytes of everything here, while nobody writes."""
        return _bytes_below(self.root)

    def _constant(self, source: Source) -> Constant | None:
        """The constant of a model that is here; None where it has none of that name."""
        # All that loads models: not where none is cut.
        from edgepart.planner.model.load import load_constants, load_graph, load_weights

        path = self.model_path(source.model)
        weights = _remembered(self._weights, source.model, lambda: load_weights(path))
        if source.constant in weights:
            return weights[source.constant]
        constants = _remembered(self._constants, source.model, lambda: load_constants(path))
        if source.constant in constants or not source.shapes:
            return constants.get(source.constant)
        key = (source.model, repr(sorted(source.shapes.items())))
        graph = _remembered(self._graphs, key, lambda: load_graph(path, shapes=source.shapes))
        return graph.constants.get(source.constant)


def _remembered(cache: OrderedDict[K, V], key: K, make: Callable[[], V]) -> V:
    """`cache[key]`, made where it is not there; the oldest of more than four is forgotten."""
    found = cache.get(key)
    if found is None:
        found = cache[key] = make()
        while len(cache) > 4:
            cache.popitem(last=False)
    return found


class Partial:
    """A blob that arrives piece by piece, in order; what is on disk survives a restart."""

    def __init__(self, path: Path, final: Path, digest: str, nbytes: int) -> None:
        self._path, self._final, self.digest, self.nbytes = path, final, digest, nbytes
        self._hasher, self._hashed = hashlib.sha256(), 0
        """Of what is here; bytes of an earlier life are read when the next ones come."""
        if self.arrived > nbytes:
            path.unlink()

    @property
    def arrived(self) -> int:
        """Bytes that are here: where to go on."""
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def append(self, offset: int, data: bytes | memoryview) -> bool:
        """Adds what comes next; whether the blob is whole now, and in the store.

        PeerError: it does not go on from what is here, is too much, or has another digest (all gone then). OSError: what
        was here before still is."""
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
        """Throws away what has arrived."""
        self._path.unlink(missing_ok=True)


def _bytes_below(folder: Path) -> int:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files)


def _checked(digest: str) -> str:
    """PeerError for what is no SHA-256 in hex: digests become file names, and they come from others."""
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise PeerError(f"{digest[:80]!r} is no SHA-256 digest")
    return digest


def _absent(digest: str) -> EdgepartError:
    return Unavailable(f"blob {digest} is not on this device")


def _inside(file: Path, folder: Path) -> str:
    """The path of external data below the model's folder, as the graph names it."""
    if not file.absolute().is_relative_to(folder):
        raise UsageError(f"{file} does not lie in the model's folder {folder}")
    return file.absolute().relative_to(folder).as_posix()


def _second_name(file: Path, place: Path) -> None:
    """The same bytes under another name; a copy where the file system knows no second names."""
    try:
        os.link(file, place)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        atomic_files.copy(file, place)


def _link(link: Path, target: Path) -> None:
    """Makes `link` lead to `target`, in place of a copy that was there."""
    link.parent.mkdir(exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=link.parent, prefix=NEW) as making:
        fresh = Path(making) / "link"
        fresh.symlink_to(os.path.relpath(target, link.parent))
        fresh.replace(link)
