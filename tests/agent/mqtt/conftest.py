"""A real mosquitto, where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.mosquitto import Mosquitto, program


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    if program() is None:
        pytest.skip("mosquitto is not installed")
    with Mosquitto(tmp_path) as broker:
        yield broker
