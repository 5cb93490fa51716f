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

from edgepart.agent.host.child_process import deaf
from edgepart.agent.host.core_sets import CoreSet, choose_set

log = logging.getLogger(__name__)

TRIALS = ("conv", "gemm", "pointwise")
"""The families whose trials are timed: what most of a model's time goes into."""
LIMIT_S = 60.0
"""Seconds for all sets; what takes longer is not looked for."""
RUNS, BUDGET_S = 3, 0.05


def find_quickest(tried: Sequence[CoreSet]) -> CoreSet:
    """The quickest of these sets; the first one if there is no other, or if they cannot be timed."""
    if len(tried) == 1:
        return tried[0]
    seconds: dict[CoreSet, float] = {}
    for one in tried:
        taken = _timed(one)
        if taken is None:
            return tried[0]
        seconds[one] = taken
        log.info("%s, %d threads: %.3g ms", one.what, one.threads, 1e3 * taken)
    return choose_set(seconds)


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
    from edgepart.agent.execution.sessions import make_session, session_options  # After the cores are set.
    from edgepart.agent.measure.probe_models import FAMILIES

    total_s = 0.0
    for name in TRIALS:
        trial = FAMILIES[name]
        session = make_session(trial.model.SerializeToString(), session_options(int(threads), {}))
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
