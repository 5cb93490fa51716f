"""Thread probe: finds the number of threads, and the cores, with which this box computes quickest. Door: processes, ONNX
Runtime and the clock.

    python -m edgepart.agent.measure.thread_probe 4:0,1,2,3 2:0,1      prints the seconds of each, threads before the colon

Each set is timed in a process of its own, as ONNX Runtime's threads keep the cores that their process had when they were
started.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from edgepart.agent.host.child_process import deaf
from edgepart.agent.host.core_sets import CoreSet, choose_set
from edgepart.agent.storage.atomic_files import read_json, write_atomic
from edgepart.planner.errors import EdgepartError

log = logging.getLogger(__name__)

TRIALS = ("conv", "gemm", "pointwise")
"""The families whose trials are timed: what most of a model's time goes into."""
LIMIT_S = 60.0
"""Seconds for all sets; what takes longer is not looked for."""
RUNS, BUDGET_S = 3, 0.05


def find_quickest(tried: Sequence[CoreSet], kept: Path | None = None, made_with: str = "") -> CoreSet:
    """The quickest of these sets; the first one if there is no other, or if they cannot be timed. `kept` is the file that
    keeps the answer, which counts for the same sets and for what was installed then, `made_with`."""
    if len(tried) == 1:
        return tried[0]
    made_for: dict[str, object] = {
        "made_with": made_with,
        "sets": [[one.what, sorted(one.cpus), one.threads] for one in tried],
    }
    if (known := _read_kept(kept, made_for, len(tried))) is not None:
        return tried[known]
    seconds: dict[CoreSet, float] = {}
    for one in tried:
        taken = _timed(one)
        if taken is None:
            return tried[0]
        seconds[one] = taken
        log.info("%s, %d threads: %.3g ms", one.what, one.threads, 1e3 * taken)
    chosen = choose_set(seconds)
    if kept is not None:
        try:
            write_atomic(kept, json.dumps({**made_for, "quickest": tried.index(chosen)}).encode())
        except (OSError, EdgepartError) as error:
            log.warning("%s cannot be written (%s): the next start times the cores again", kept, error)
    return chosen


def _read_kept(kept: Path | None, made_for: dict[str, object], sets: int) -> int | None:
    """The place of the quickest set in what was tried; None if the file has none, or was made for something else."""
    if kept is None or not kept.exists():
        return None
    try:
        document = read_json(kept)
    except EdgepartError as error:
        log.warning("%s: the cores are timed again", error)
        return None
    if not isinstance(document, dict) or any(document.get(key) != value for key, value in made_for.items()):
        return None
    found = document.get("quickest")
    return found if type(found) is int and 0 <= found < sets else None


def _timed(one: CoreSet) -> float | None:
    """The seconds of the trials on this set; None if they cannot be found."""
    cpus = ",".join(map(str, sorted(one.cpus)))
    command = [sys.executable, "-m", "edgepart.agent.measure.thread_probe", f"{one.threads}:{cpus}"]
    try:
        with deaf():
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=True
            )
        return float(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError) as error:
        log.warning("which cores are quickest is not known, so all are used: %s", error)
        return None


def main(argument: str) -> None:
    """Print the seconds of the trials with the threads and cores of the argument."""
    threads, _, cpus = argument.partition(":")
    os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})
    # Imported after the cores are set.
    from edgepart.agent.execution.runtime.cpu_sessions import make_session, session_options
    from edgepart.agent.measure.probe_models import FAMILIES

    total_s = 0.0
    for name in TRIALS:
        trial = FAMILIES[name]
        session = make_session(trial.model.SerializeToString(), session_options(int(threads)))
        session.run(None, {"x": trial.input})
        best_s, end, runs = float("inf"), time.perf_counter() + BUDGET_S, 0
        while runs < RUNS or time.perf_counter() < end:
            began = time.perf_counter()
            session.run(None, {"x": trial.input})
            best_s, runs = min(best_s, time.perf_counter() - began), runs + 1
        total_s += best_s
    print(json.dumps(total_s))


if __name__ == "__main__":
    main(sys.argv[1])
