"""Integrity: checks that the files of the store still have the right bytes. Door: the store, and reading files.

A blob that this process has written, or has read and found right, is trusted; a blob of an earlier process is read once
before it is used. A damaged blob or model is logged and moved away, and counts as missing: it is then cut or fetched again.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

from edgepart.agent.storage.store import Store
from edgepart.planner.errors import EdgepartError

log = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20


class StoreIntegrity:
    """Checks one store. `here` and `scrub` may be called from any thread; they read files."""

    def __init__(self, store: Store, damaged: Callable[[str], None] = lambda text: None) -> None:
        """Set up the checks. `damaged` is called with a sentence about each blob or model that is moved away."""
        self._store = store
        self._damaged = damaged
        self._sound: set[str] = set()

    def trust(self, digest: str) -> None:
        """Trust a blob that this process has just written or seen written."""
        self._sound.add(digest)

    def forget_deleted(self) -> None:
        """Forget the blobs that are stored no longer."""
        for digest in list(self._sound):
            if not self._store.has(digest):
                self._sound.discard(digest)

    def here(self, digest: str, rest: Callable[[int], None] = lambda nbytes: None) -> bool:
        """Whether the blob is stored and intact. `rest` is called with the size of each piece that was read, and may
        sleep."""
        if not self._store.has(digest):
            return False
        if digest not in self._sound and _digest(self._store.path(digest), rest) != digest:
            self._give_up(self._store.owner(digest) or digest, f"blob {digest[:12]} has other bytes")
            return False
        self._sound.add(digest)
        return True

    def look(self) -> None:
        """Check all models quickly: move those away of which a file is missing or has a wrong size."""
        for model in self._store.models():
            if fault := self._fault(model):
                self._give_up(model, fault)
        self._store.link_models()

    def scrub(self, rest: Callable[[int], None] = lambda nbytes: None) -> None:
        """Read and check the files of all models. `rest` has the same meaning as for `here`."""
        for model in self._store.models():
            for file in self._store.manifest(model).files if self._store.has_model(model) else ():
                self.here(file.digest, rest)

    def _fault(self, model: str) -> str:
        try:
            manifest = self._store.manifest(model)
        except EdgepartError as error:
            return str(error)
        if manifest.digest != model:
            return "its list of files is another model's"
        files = self._store.root / "models" / model / "files"
        wrong = [file.path for file in manifest.files if _size(files / file.path) != file.nbytes]
        return f"{', '.join(wrong)}: missing or cut short" if wrong else ""

    def _give_up(self, digest: str, fault: str) -> None:
        kept = self._store.keep_damaged(digest)
        text = f"{digest[:12]} in the store is damaged ({fault}); it was kept as {kept} and is not used"
        log.error("%s", text)
        self._damaged(text)


def _digest(path: Path, rest: Callable[[int], None]) -> str:
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            hasher.update(chunk)
            rest(len(chunk))
    return hasher.hexdigest()


def _size(path: Path) -> int:
    """The size of a file in bytes; -1 if there is no such file."""
    return path.stat().st_size if path.is_file() else -1
