"""Real agents as processes. Tests that leave a cluster whole share one of three; tests that kill agents make their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

from edgepart.cli.local import LocalCluster

OPTIONS = ("--threads", "1")


@pytest.fixture(scope="session", autouse=True)
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The agents of this machine measure it once, rather than at each start: half of what a start costs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEPART_MEASURED", str(tmp_path_factory.getbasetemp().parent / "measured.json"))
        yield


@pytest.fixture(scope="session")
def counting(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which a process counts the lines that it runs, if this one does."""
    counter = coverage.Coverage.current()
    if counter is None:
        return {}
    config = tmp_path_factory.mktemp("counting") / "coverage.ini"
    data_file = Path(str(counter.get_option("run:data_file"))).absolute()
    config.write_text(
        f"[run]\nsource_pkgs = edgepart\nbranch = true\nsigterm = true\nparallel = true\ndata_file = {data_file}\n"
    )
    return {"COVERAGE_PROCESS_START": str(config)}


@pytest.fixture(scope="session")
def trio() -> Iterator[LocalCluster]:
    """Three members that found each other by mDNS; not to be hurt."""
    with LocalCluster(["a", "b", "c"], options=OPTIONS) as cluster:
        yield cluster


@pytest.fixture
def victims(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three members of one test's own."""
    with LocalCluster(["a", "b", "c"], options=OPTIONS, folder=tmp_path) as cluster:
        yield cluster
