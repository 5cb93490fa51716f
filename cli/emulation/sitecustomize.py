"""Makes a Python process a slow device: with this folder on PYTHONPATH and EDGEPART_LAB_SLOW=8, every ONNX
Runtime run takes 8 times the CPU time of the session's fastest run. The product does not know about it. An agent
then does not see how long its threads wait for the machine's cores, which run the other emulated devices too.

Sleeping leaves the CPU to the other emulated devices, so that several fit on few cores without disturbing each
other. The smallest time counts, because a disturbed run must not be stretched as well. (A CPU quota does not work:
waiting saves up quota.) The CPU time is that of the calling thread, so sessions need to have one thread: start agents
with `--threads 1`. A session should see inputs of one shape. The probe is slowed down too, because it runs sessions.

Devices that work on one request begin their runs at the same moment, and cores share caches and more. So a session's
first run is repeated a few times, by one process of the machine at a time, to make its time independent of the
neighbours.

With EDGEPART_LAB_SLOW=@FILE the number is in FILE, which is read before each run: a device that slows down while it
serves, and recovers. A writer has to replace the whole file.

With EDGEPART_LAB_FSYNC=1.5 (or @FILE, as above) every fsync takes 1.5 s longer: a slow disk, like an SD card under
load. Each fsync waits by itself, as if nothing else were to be written.

With EDGEPART_LAB_RUNS=FILE, a line with the beginning and the end of each run is appended to FILE, such as "1.5 2.5"
on the machine's monotonic clock, with the sleep: a record of the device's work that does not depend on the product.

With EDGEPART_LAB_SLOW_PYTHON=8, Python, TLS and what threads do in the kernel are stretched too: slow_python.py.

With EDGEPART_LAB_ENGINE=lab the device has an engine beside its CPU, of another speed or with faults: lab_engine.py.
"""

from __future__ import annotations

import fcntl
import functools
import importlib.machinery
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "EDGEPART_LAB_SLOW"
FSYNC_VARIABLE = "EDGEPART_LAB_FSYNC"
RUNS_VARIABLE = "EDGEPART_LAB_RUNS"
MODULE = "onnxruntime.capi.onnxruntime_inference_collection"
"""Module of ONNX Runtime's Python API that defines InferenceSession."""
PACKAGE = "onnxruntime"
ENGINE_VARIABLE = "EDGEPART_LAB_ENGINE"
PYTHON_VARIABLE = "EDGEPART_LAB_SLOW_PYTHON"
SYSTEM = "edgepart.agent.host.system"
"""Module that tells an agent how long its threads wait for a CPU."""

RUNS = ("run", "run_with_iobinding", "run_with_ortvaluevector")
FIRST_RUNS = 5
"""Minimum number of times that a session's first run is made."""
FIRST_S = 0.01
"""CPU seconds that the first runs take in all, unless MOST_RUNS is reached before."""
MOST_RUNS = 30
"""Short first runs are repeated until they took FIRST_S seconds in all, or MOST_RUNS times: with five runs of
a tenth of a millisecond, two equal devices differed by a third. As one process of the machine makes them at a
time, plans of a hundred segments are loaded seconds later than on real devices if the numbers are much larger."""

TIMER_SLACK_NS = 1
"""The kernel may end a sleep so much later. Its usual 50,000 ns lengthen each run, as if the device were slower still."""


def sharpen_sleep() -> None:
    """Have the sleeps of this thread, and of threads that it starts, end on time."""
    try:
        Path("/proc/self/timerslack_ns").write_text(str(TIMER_SLACK_NS))
    except OSError as error:
        print(f"each run of a slow device takes some 50 microseconds more: {error}", file=sys.stderr)


def factor_of(text: str, variable: str = VARIABLE) -> float:
    """Return the factor in an environment variable. Ends the process if it is invalid: a lab must not be
    fast unnoticed."""
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1.0 <= factor < float("inf"):
        sys.exit(f"{variable}={text!r}: expected a number from 1 up, by which runs are to be slower")
    return factor


def source_of(text: str) -> Callable[[], float]:
    """Return a function that gives the factor: a fixed number, or the one that is now in the file."""
    if text.startswith("@"):
        return lambda: factor_of(Path(text[1:]).read_text())
    factor = factor_of(text)
    return lambda: factor


def seconds_of(text: str) -> float:
    """Return the extra seconds of each fsync. Ends the process if the text is invalid."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < float("inf"):
        sys.exit(f"{FSYNC_VARIABLE}={text!r}: expected seconds that each fsync is to take longer")
    return seconds


def slow_fsync(text: str) -> Callable[[int], None]:
    """Return a replacement for os.fsync that takes longer."""
    fsync = os.fsync

    def slow(descriptor: int) -> None:
        time.sleep(seconds_of(Path(text[1:]).read_text() if text.startswith("@") else text))
        fsync(descriptor)

    return slow


def stretch(
    run: Callable[..., Any],
    factor: Callable[[], float],
    told: Callable[[float, float], None] | None = None,
    first_runs: int = 1,
) -> Callable[..., Any]:
    """Return `run`, a method of a session, changed to return after `factor()` x the session's smallest CPU time.

    Then it calls `told(began, ended)`, in seconds.
    """

    @functools.wraps(run)
    def stretched(session: Any, *args: Any, **options: Any) -> Any:
        if first_runs > 1 and not hasattr(session, "lab_least_s"):
            session.lab_least_s = least_of(lambda: run(session, *args, **options), first_runs)
        began_s, cpu_s = time.monotonic(), time.thread_time()
        outputs = run(session, *args, **options)
        took_s = time.thread_time() - cpu_s
        session.lab_least_s = least_s = min(took_s, getattr(session, "lab_least_s", took_s))
        left_s = getattr(session, "lab_factor", factor)() * least_s - (time.monotonic() - began_s)
        if left_s > 0:
            time.sleep(left_s)
        if told is not None:
            told(began_s, time.monotonic())
        return outputs

    return stretched


def least_of(run: Callable[[], Any], times: int) -> float:
    """Return the smallest CPU time in seconds of `times` runs, or of more if they are short.

    Meanwhile no other slow device measures its first runs.
    """
    with Path(__file__).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed
        taken: list[float] = []
        while len(taken) < times or (len(taken) < MOST_RUNS and sum(taken) < FIRST_S):
            cpu_s = time.thread_time()
            run()
            taken.append(time.thread_time() - cpu_s)
    return min(taken)


def telling(path: str) -> Callable[[float, float], None] | None:
    """Return a function that appends runs to the file; None if no file is wanted."""
    if not path:
        return None
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def told(began_s: float, ended_s: float) -> None:
        os.write(file, f"{began_s:.6f} {ended_s:.6f}\n".encode())

    return told


Change = Callable[[ModuleType], None]
"""Changes a module after it has been loaded."""


def stretch_sessions(factor: Callable[[], float], leave_out: Callable[[], None] | None = None) -> Change:
    """Return a change that stretches runs, and calls `leave_out` after each."""

    def change(module: ModuleType) -> None:
        told = telling(os.environ.get(RUNS_VARIABLE, ""))
        for name in RUNS:
            session: Any = module.InferenceSession
            run = stretch(getattr(session, name), factor, told, FIRST_RUNS)
            setattr(session, name, run if leave_out is None else followed(run, leave_out))

    return change


def followed(run: Callable[..., Any], then: Callable[[], None]) -> Callable[..., Any]:
    """Return `run`, changed to call `then` at its end."""

    @functools.wraps(run)
    def both(*args: Any, **options: Any) -> Any:
        try:
            return run(*args, **options)
        finally:
            then()

    return both


def engine_changes(text: str) -> dict[str, list[Change]]:
    """Return the changes that make an emulated engine (lab_engine.py)."""
    from edgepart.cli.emulation.lab_engine import add_provider, engine_of, make_sessions

    engine = engine_of(text)
    return {PACKAGE: [add_provider(engine)], MODULE: [make_sessions(engine)]}


def hide_threads(module: ModuleType) -> None:
    """Hide what the kernel reports about threads.

    Threads wait for each other only because the machine emulates more devices than it has cores. Runs still
    take the same time, because they only sleep less.
    """
    module.thread_times = lambda processes: {}  # type: ignore[attr-defined]


class ChangingLoader(Loader):
    """Loads a module unchanged, and then changes it."""

    def __init__(self, loader: Loader, changes: Sequence[Change]) -> None:
        self._loader = loader
        self._changes = changes

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        for change in self._changes:
            change(module)


class ChangingFinder(MetaPathFinder):
    """Changes some modules when they are imported; none of them is imported before the process does it."""

    def __init__(self, changes: Mapping[str, Sequence[Change]]) -> None:
        self._changes = changes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._changes:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = ChangingLoader(spec.loader, self._changes[fullname])
        return spec


def run_next_sitecustomize() -> None:
    """Run the sitecustomize that this one hides, if there is any: a process imports only one module of this name."""
    here = Path(__file__).resolve().parent
    others = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":
    changes: dict[str, list[Change]] = {}
    if value := os.environ.get(ENGINE_VARIABLE):
        changes = engine_changes(value)
    leave_out: Callable[[], None] | None = None
    if value := os.environ.get(PYTHON_VARIABLE):
        from edgepart.cli.emulation.slow_python import stretch_python

        sharpen_sleep()
        leave_out = stretch_python(factor_of(value, PYTHON_VARIABLE)).leave_out
    if value := os.environ.get(VARIABLE):
        sharpen_sleep()
        changes.setdefault(MODULE, []).append(stretch_sessions(source_of(value), leave_out))
        changes[SYSTEM] = [hide_threads]
    if changes:
        sys.meta_path.insert(0, ChangingFinder(changes))
    if value := os.environ.get(FSYNC_VARIABLE):
        os.fsync = slow_fsync(value)  # type: ignore[assignment]
    run_next_sitecustomize()
