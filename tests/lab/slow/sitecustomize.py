"""Makes a Python process a slow device: with this folder on PYTHONPATH and EDGEPART_LAB_SLOW=8, every ONNX
Runtime run takes 8 times the CPU time that the session's fastest run took. Nothing of the product knows about
it. An agent is not told, then, how long its threads wait for the machine's cores, on which other devices are played.

Sleeping leaves the CPU to the other emulated devices, so that several fit on few cores without disturbing
each other; the smallest time is taken because a run that was disturbed must not be stretched as well. (A CPU
quota will not do: waiting banks quota.) The CPU time is that of the calling thread, so sessions have to have
one thread: start agents with `--threads 1`. A session should see inputs of one shape. The probe is slowed
down too: it runs sessions.

Devices that work on one request begin their runs at the same moment, and cores share caches and more: so a
session's first run is made a few times, by one process of the machine at a time, for its time not to hang on
what the neighbours do.

With EDGEPART_LAB_SLOW=@FILE the number is in FILE, which is read before each run: a device that slows down while it
serves, and recovers. Whoever writes it puts a whole new file in its place.

With EDGEPART_LAB_FSYNC=1.5 every fsync takes 1.5 s longer, @FILE as above: a disk that is slow, as an SD card is under
load. Each waits by itself, as if nothing else were to be written.

With EDGEPART_LAB_RUNS=FILE, when each run began and ended is appended there as a line, "1.5 2.5" on the
machine's monotonic clock, sleep included: what the device was busy with, told by nobody of the product.
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
"""Where ONNX Runtime's Python front defines InferenceSession."""
SYSTEM = "edgepart.agent.host.system"
"""Where an agent asks how long its threads wait for a CPU."""

RUNS = ("run", "run_with_iobinding", "run_with_ortvaluevector")
FIRST_RUNS = 5
"""As often the first run of a session is made at least."""
FIRST_S = 0.03
MOST_RUNS = 100
"""Short ones are made on until they took so many seconds, or so often: by five of a tenth of a millisecond two equal
devices differed by a third."""


def factor_of(text: str) -> float:
    """The factor in the environment variable. Ends the process where it is none: a lab must not be fast in
    secret."""
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1.0 <= factor < float("inf"):
        sys.exit(f"{VARIABLE}={text!r}: expected a number from 1 up, by which runs are to be slower")
    return factor


def source_of(text: str) -> Callable[[], float]:
    """Where the factor comes from: always the number, or what is in the file."""
    if text.startswith("@"):
        return lambda: factor_of(Path(text[1:]).read_text())
    factor = factor_of(text)
    return lambda: factor


def seconds_of(text: str) -> float:
    """What an fsync takes longer. Ends the process where that is none."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < float("inf"):
        sys.exit(f"{FSYNC_VARIABLE}={text!r}: expected seconds that each fsync is to take longer")
    return seconds


def slow_fsync(text: str) -> Callable[[int], None]:
    """In place of os.fsync."""
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
    """`run`, a method of a session, made to return when `factor()` x the smallest CPU time of its session has
    passed; then `told(began, ended)`, in seconds."""

    @functools.wraps(run)
    def stretched(session: Any, *args: Any, **options: Any) -> Any:
        if first_runs > 1 and not hasattr(session, "lab_least_s"):
            session.lab_least_s = least_of(lambda: run(session, *args, **options), first_runs)
        began_s, cpu_s = time.monotonic(), time.thread_time()
        outputs = run(session, *args, **options)
        took_s = time.thread_time() - cpu_s
        session.lab_least_s = least_s = min(took_s, getattr(session, "lab_least_s", took_s))
        left_s = factor() * least_s - (time.monotonic() - began_s)
        if left_s > 0:
            time.sleep(left_s)
        if told is not None:
            told(began_s, time.monotonic())
        return outputs

    return stretched


def least_of(run: Callable[[], Any], times: int) -> float:
    """The smallest CPU time of so many runs, or more where they are short, in seconds, while no other slow device does the
    same."""
    with Path(__file__).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # let go of with the file
        taken: list[float] = []
        while len(taken) < times or (len(taken) < MOST_RUNS and sum(taken) < FIRST_S):
            cpu_s = time.thread_time()
            run()
            taken.append(time.thread_time() - cpu_s)
    return min(taken)


def telling(path: str) -> Callable[[float, float], None] | None:
    """Appends runs to the file; None where no file is wanted."""
    if not path:
        return None
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def told(began_s: float, ended_s: float) -> None:
        os.write(file, f"{began_s:.6f} {ended_s:.6f}\n".encode())

    return told


Change = Callable[[ModuleType], None]
"""What is to be done to a module once it is loaded."""


def stretch_sessions(factor: Callable[[], float]) -> Change:
    def change(module: ModuleType) -> None:
        told = telling(os.environ.get(RUNS_VARIABLE, ""))
        for name in RUNS:
            session: Any = module.InferenceSession
            setattr(session, name, stretch(getattr(session, name), factor, told, FIRST_RUNS))

    return change


def hide_threads(module: ModuleType) -> None:
    """What the kernel tells of threads is unknown: that they wait for each other is the machine's doing, which has fewer
    cores than it plays devices. Runs take as long all the same, for they only sleep less."""
    module.thread_times = lambda processes: {}  # type: ignore[attr-defined]


class ChangingLoader(Loader):
    """Loads the module as it is, and changes it."""

    def __init__(self, loader: Loader, change: Change) -> None:
        self._loader = loader
        self._change = change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._change(module)


class ChangingFinder(MetaPathFinder):
    """Waits for some modules to be imported; none of them is before the process does it."""

    def __init__(self, changes: Mapping[str, Change]) -> None:
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
    """There is one module of this name in a process: run the one that this one hides, if there is any."""
    here = Path(__file__).resolve().parent
    others = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":
    if value := os.environ.get(VARIABLE):
        changes = {MODULE: stretch_sessions(source_of(value)), SYSTEM: hide_threads}
        sys.meta_path.insert(0, ChangingFinder(changes))
    if value := os.environ.get(FSYNC_VARIABLE):
        os.fsync = slow_fsync(value)  # type: ignore[assignment]
    run_next_sitecustomize()
