"""Real agents as processes. A cluster of three is shared by a module's tests; those that kill make their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgepart.cli.local import LocalCluster

OPTIONS = ("--threads", "1")


@pytest.fixture(scope="module")
def trio() -> Iterator[LocalCluster]:
    """Three members that found each other by mDNS; not to be hurt."""
    with LocalCluster(["a", "b", "c"], options=OPTIONS) as cluster:
        yield cluster


@pytest.fixture
def victims(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three members of one test's own."""
    with LocalCluster(["a", "b", "c"], options=OPTIONS, folder=tmp_path) as cluster:
        yield cluster
