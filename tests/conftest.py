"""Settings of all tests: hypothesis profile, options, markers, and the distribution over processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from _pytest.unittest import TestCaseFunction
from hypothesis import Phase, settings
from xdist.scheduler import LoadFileScheduling

# No deadline: a case may take as long as it does on a busy machine. No test is about time (benchmarks/ is).
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

_SETTINGS = "_hypothesis_internal_use_settings"
"""Attribute in which hypothesis keeps a test's settings. It has no public way to make a test draw fewer examples."""

_PHASES = (Phase.explicit, Phase.generate)


SHARED = {"trio: LocalCluster": "the cluster of three", "node_cases": "the cases of the onnx project"}
"""Maps a piece of text in test files to what the files that contain it share: it is slow to make, and each
process makes it once."""


class SharingScheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Runs all tests of a file in one process, and so all files that share something."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        folder = Path(__file__).parent
        texts = {f"tests/{one.relative_to(folder)}": one.read_text() for one in folder.rglob("test_*.py")}
        self._shares = {
            file: SHARED[piece] for file, text in texts.items() for piece in SHARED if piece in text
        }

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return self._shares.get(file, file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    return SharingScheduling(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="run tests that are marked nightly, too")
    parser.addoption("--installs", action="store_true", help="run tests that are marked installs, too")
    parser.addoption(
        "--examples",
        type=int,
        help="how many examples a hypothesis test draws at most",
    )
    parser.addoption("--no-shrink", action="store_true", help="an example that fails is not made smaller")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for mark, target in (("nightly", "test-all"), ("installs", "install-check")):
        if not config.getoption(f"--{mark}"):
            skipped = pytest.mark.skip(reason=f"takes long: `make {target}` runs it")
            for item in items:
                if item.get_closest_marker(mark):
                    item.add_marker(skipped)
    # Slow files first, so that they do not keep one core busy at the end while the others are idle.
    items.sort(key=lambda item: not item.get_closest_marker("processes"))
    most = config.getoption("--examples")
    phases = _PHASES if config.getoption("--no-shrink") else tuple(Phase)
    for item in items if most is not None else ():
        test = getattr(item, "obj", None)
        if hasattr(test, "hypothesis"):
            test = getattr(test, "__func__", test)
            kept = getattr(test, _SETTINGS)
            chosen = settings(kept, max_examples=min(most, kept.max_examples), phases=phases)
            setattr(test, _SETTINGS, chosen)
    for case in {item.cls for item in items if isinstance(item, TestCaseFunction)}:
        if most is not None and hasattr(case, "settings"):  # a state machine of hypothesis
            case.settings = settings(case.settings, max_examples=min(most, case.settings.max_examples))
