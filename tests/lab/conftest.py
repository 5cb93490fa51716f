"""Labs for tests. Tests that need one are skipped, with the reason, if there can be none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.hosts import Host
from tests.lab.lab import Lab
from tests.lab.system import missing


@pytest.fixture
def possible() -> None:
    if reason := missing():
        pytest.skip(reason)


@pytest.fixture
def pair(possible: None) -> Iterator[Lab]:
    """Yield a lab of two hosts that are as fast as this machine."""
    with Lab([Host("pi-a"), Host("pi-b")]) as lab:
        yield lab
