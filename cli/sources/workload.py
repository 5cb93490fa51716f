"""The workload, a graph of costs, in a file that a user names. Door: it reads files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgepart.planner.errors import ModelError

if TYPE_CHECKING:
    from edgepart.planner.placing.problem.workload import Workload

HEAD_BYTES = 64
"""Bytes of a file that are read to see whether it is a workload."""


def is_workload(path: Path) -> bool:
    """Whether the file is a workload, and not a model."""
    from edgepart.planner.placing.problem.read import looks_like_workload

    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return looks_like_workload(file.read(HEAD_BYTES), path.name)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error


def read_workload_file(path: Path) -> Workload:
    """The workload in the file. Raises ModelError, which says what is wrong with it."""
    from edgepart.planner.placing.problem.read import MOST_BYTES, read_workload

    try:
        if path.stat().st_size > MOST_BYTES:
            raise ModelError(f"{path}: a workload may have {MOST_BYTES:,} bytes at most")
        return read_workload(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error
