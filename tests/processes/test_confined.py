"""An agent in a container that gives it little: no /sys, a root that cannot be written to, 64 file descriptors, 300 MB."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgepart.cli.local import LocalCluster, Place
from tests.processes.asking import deploy, infer
from tests.processes.test_slow_disk import scaled

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="takes root and unshare"),
]

CONFINED = """
mount --bind "$1" "$1" && mount -t tmpfs -o ro none /sys && mount -t tmpfs -o ro none /proc/sys || exit 1
mount -o remount,ro,bind / || exit 1
ulimit -n 64
shift
exec "$@"
"""
GROUPS = Path("/sys/fs/cgroup/memory")
LIMIT_BYTES = 300_000_000


@pytest.fixture
def group() -> Iterator[Path | None]:
    """A control group of 300 MB, where this machine has them of the first version."""
    folder = GROUPS / f"edgepart-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(LIMIT_BYTES))
    except OSError:
        yield None
        return
    yield folder
    for process in (folder / "cgroup.procs").read_text().split():  # what ends with its agent, and has not yet
        with contextlib.suppress(OSError):
            (GROUPS / "cgroup.procs").write_text(process)
    folder.rmdir()


@pytest.mark.nightly
def test_an_agent_in_a_container_that_tells_and_gives_little_serves(
    tmp_path: Path, group: Path | None
) -> None:
    join = f"echo $$ > {group}/cgroup.procs; " if group else ""
    prefix = ("sh", "-c", join + 'exec unshare -m sh -c "$0" sh "$@"', CONFINED, str(tmp_path))
    try_it = subprocess.run([*prefix, sys.executable, "-c", "pass"], capture_output=True, text=True)
    if try_it.returncode:
        pytest.skip(f"no mounts can be made here: {try_it.stderr.strip()}")
    place = Place(prefix=prefix, env={"PYTHONDONTWRITEBYTECODE": "1"}, listen="127.0.0.1:0")
    options = ("--threads", "1", "--no-mdns")
    with LocalCluster(("box",), options=options, folder=tmp_path, places=lambda name: place) as cluster:
        deploy(cluster, scaled(tmp_path, 2.0), "net")
        x = np.arange(4, dtype=np.float32)
        np.testing.assert_array_equal(infer(cluster.first, "net", {"x": x})["y"], 2 * x)
        assert cluster.first.type("doctor")
