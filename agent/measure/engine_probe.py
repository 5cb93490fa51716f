"""Engine probe: checks one engine against the CPU, and calibrates it. A door: ONNX Runtime and the clock. It runs in a
process of its own, which an engine may crash or hang (engine_probe_process.py).

    python -m edgepart.agent.measure.engine_probe NAME THREADS    prints a line before each trial, and then what it found

A trial that the engine cannot run is a family or kind that it lacks. An engine that gives a wrong answer to a trial is not
used at all.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort

from edgepart.agent.engines.catalogue import FLOAT32, EngineKind, kind_of
from edgepart.agent.engines.provider_sessions import (
    ENGINE_ERRORS,
    make_engine_session,
)
from edgepart.agent.execution.runtime.cpu_sessions import make_session, session_options
from edgepart.agent.measure import probe_models
from edgepart.agent.measure.calibration import calibrate
from edgepart.agent.measure.probe_models import Trial
from edgepart.planner.figures import format_figure
from edgepart.planner.region import Array

TRIAL = "trial"
"""Begins the line that tells of a trial before it runs; whoever watches sees from it that the engine does not hang."""
LEAST_RUNS, MOST_RUNS, BUDGET_S = 3, 400, 0.03
"""Timed runs of each trial, and seconds for them, as for the CPU. The best counts."""
FAULT_SHARE, FAULT_SHARE_ROUNDED = 1e-4, 2e-2
"""The largest difference to the CPU's answer, as a share of its largest magnitude: the product's first promise. The second
is for engines of another precision than float32."""
COPIED_BYTES = 16 << 20
"""The size of the value whose copies are timed."""


class Lies(Exception):
    """The engine gave a wrong answer."""


class EngineProbe:
    """The trials of one engine."""

    def __init__(
        self, kind: EngineKind, threads: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._kind = kind
        self._threads = threads
        self._clock = clock
        self._sessions: dict[int, Any] = {}
        """Sessions of trials by the trial's id; None for a trial that the engine cannot run. Some are run many times."""
        self.why = ""
        """Why the engine could not run the trial that it failed last."""

    def measure(self) -> dict[str, Any]:
        """What is found of the engine, as a JSON document. Raises Lies."""
        found = calibrate(self.best_s, {**probe_models.MOVES, **probe_models.large_moves()})
        if not found.families and not found.moves:
            return {"fault": self.why or "it runs none of the trials"}
        cpu_s = self._timed(make_session(_one().model.SerializeToString(), self._options()), _one().input)
        copy_s, copy_bytes_per_s = self._copies()
        return {
            "families": dict(found.families),
            "moves": dict(found.moves),
            "kernel_s": found.kernel_s,
            "run_s": max(0.0, found.one_s - cpu_s),
            "copy_s": copy_s,
            "copy_bytes_per_s": copy_bytes_per_s,
        }

    def best_s(self, trial: Trial) -> float | None:
        """The shortest time of a run on the engine, in seconds; None if the engine cannot run it. Raises Lies."""
        print(TRIAL, flush=True)
        if id(trial) not in self._sessions:
            self._sessions[id(trial)] = self._checked(trial)
        session = self._sessions[id(trial)]
        return None if session is None else self._timed(session, trial.input)

    def _checked(self, trial: Trial) -> Any:
        """A session whose answer to the trial is the CPU's; None if the engine cannot run it."""
        model, feeds = trial.model.SerializeToString(), {"x": trial.input}
        try:
            session = make_engine_session(self._kind.name, model, self._options(), self._threads)
            got = session.run(None, feeds)[0]
        except ENGINE_ERRORS as error:
            self.why = str(error)
            return None
        expected = make_session(model, self._options()).run(None, feeds)[0]
        allowed = FAULT_SHARE if self._kind.precision == FLOAT32 else FAULT_SHARE_ROUNDED
        if (off := _difference(got, expected)) > allowed:
            names = ", ".join(node.op_type for node in trial.nodes[:1])
            raise Lies(f"its answer to a {names} is off by {format_figure(off)} of the largest magnitude")
        return session

    def _options(self) -> Any:
        return session_options(self._threads)

    def _timed(self, session: Any, x: Array) -> float:
        """The shortest time of a run in seconds, with the values in the engine's own memory if it has one."""
        run = self._bound(session, x)
        run()
        best, end = float("inf"), self._clock() + BUDGET_S
        for number in range(MOST_RUNS):
            start = self._clock()
            run()
            best = min(best, self._clock() - start)
            if number + 1 >= LEAST_RUNS and self._clock() > end:
                break
        return best

    def _bound(self, session: Any, x: Array) -> Callable[[], object]:
        memory = self._kind.memory
        if not memory or session.get_providers()[0] != self._kind.provider:
            return lambda: session.run(None, {"x": x})
        binding = session.io_binding()
        held = ort.OrtValue.ortvalue_from_numpy(x, memory, 0)
        binding.bind_ortvalue_input("x", held)
        binding.bind_output("y", memory)

        def run() -> None:
            session.run_with_iobinding(binding)
            binding.synchronize_outputs()
            assert held is not None  # The binding does not keep it alive.

        return run

    def _copies(self) -> tuple[float, float | None]:
        """The seconds of copying a small value to the engine's memory or from it, and the bytes/s of large ones; None if
        nothing is copied."""
        if not (memory := self._kind.memory):
            return 0.0, None
        small_s, large_s = (
            min(_round_trips(np.zeros(nbytes // 4, np.float32), memory, self._clock)) / 2
            for nbytes in (4, COPIED_BYTES)
        )
        return small_s, COPIED_BYTES / max(large_s - small_s, large_s / 100)


def _one() -> Trial:
    return probe_models.chain_trial(1)


def _round_trips(array: Array, memory: str, clock: Callable[[], float], times: int = 10) -> list[float]:
    """Seconds of copying the array there and back."""
    taken = []
    for _ in range(times):
        start = clock()
        ort.OrtValue.ortvalue_from_numpy(array, memory, 0).numpy()
        taken.append(clock() - start)
    return taken


def _difference(got: Array, expected: Array) -> float:
    """The largest distance, as a share of the largest magnitude; infinite if the two cannot be compared."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return float("inf")
    apart = np.abs(got.astype(np.float64) - expected.astype(np.float64)).max(initial=0.0)
    scale = np.abs(expected.astype(np.float64)).max(initial=0.0)
    if not np.isfinite(apart):
        return float("inf")
    return float(apart / scale) if scale else (float("inf") if apart else 0.0)


def main(name: str, threads: str) -> None:
    """Print what is found of the engine, as JSON in the last line."""
    try:
        found = EngineProbe(kind_of(name), int(threads)).measure()
    except Lies as error:
        found = {"lie": str(error)}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":  # Started by agent/measure/engine_probe_process.py.
    main(*sys.argv[1:])
