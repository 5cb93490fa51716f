"""Labs for tests. Tests that need one are skipped, with the reason, if there can be none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.hosts import Host
from tests.lab.lab import Lab
from tests.lab.system import missing


@pytest.fixture(autouse=True)
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hosts of a test are alike: the first agent measures its host, and the others read what it found."""
    monkeypatch.setenv("EDGEPART_MEASURED", str(tmp_path / "measured.json"))


@pytest.fixture
def possible() -> None:
    if reason := missing():
        pytest.skip(reason)


@pytest.fixture
def pair(possible: None) -> Iterator[Lab]:
    """Yield a lab of two hosts that are as fast as this machine."""
    with Lab([Host("pi-a"), Host("pi-b")]) as lab:
        yield lab
