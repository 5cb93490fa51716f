"""Digests identify files, and models of one or more files, by content. Reads files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of the file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def joint_digest(digests: Sequence[str]) -> str:
    """The digest of a model, from the digests of its files in the order of `model_files`."""
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


def model_digest(files: Sequence[Path]) -> str:
    """The digest of a model: the SHA-256 (hex) of its only file, or the `joint_digest` of several files."""
    return joint_digest([file_digest(file) for file in files])
