"""The processes in which models are read, run and written, so that their memory is given back and what a model does to ONNX
Runtime ends no more than its process. Door: processes, pipes.

    python -m edgepart.agent.quantise.work

They are programs of their own, and not forks or spawned copies of the caller, which may be anybody's script.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgepart.agent.wire.codec import json_record, read_json_record
from edgepart.agent.wire.inference import DeployOptions
from edgepart.planner import errors
from edgepart.planner.errors import EdgepartError, ModelError

MODEL, DATA = "model.onnx", "model.onnx.data"
"""The files of a quantised model."""
ENDED = "{what} ended its process ({how}): {why}. Nothing was deployed"
MEMORY = "most likely this machine has too little memory for it; deploy from one that has more"
ENDED_BY_FAULT = "ONNX Runtime failed inside"


def do_apart(work: str, what: str, **given: Any) -> Any:
    """The result of one of WORK in a process of its own. `what` is what is done, for errors. Raises the error that the work
    raises, and ModelError if the process ends without an answer."""
    order = json.dumps({"work": work, "given": {name: _plain(value) for name, value in given.items()}})
    command = [sys.executable, "-m", "edgepart.agent.quantise.work"]
    done = subprocess.run(command, input=order, capture_output=True, text=True, env=_environment())
    if done.returncode:
        killed = done.returncode == -signal.SIGKILL
        said = done.stderr.strip().splitlines()[-1:]
        how = signal.Signals(-done.returncode).name if done.returncode < 0 else "".join(said)[:1000]
        raise ModelError(ENDED.format(what=what, how=how, why=MEMORY if killed else ENDED_BY_FAULT))
    answer = json.loads(done.stdout)
    if "error" in answer:
        kind: type[EdgepartError] = getattr(errors, answer["kind"])
        raise kind(answer["error"])
    return answer["result"]


def _environment() -> dict[str, str]:
    """The environment of the process: it finds the modules that this one finds, and, from Python 3.11 on, none in the
    folder in which the user happens to be."""
    path = os.pathsep.join(os.path.abspath(place) for place in sys.path)
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def _plain(value: Any) -> Any:
    if isinstance(value, DeployOptions):
        return json_record(value)
    return str(value) if isinstance(value, Path) else value


def _write(model: str, kind: str, folder: str) -> None:
    from edgepart.agent.quantise.writing import write_quantised

    write_quantised(Path(model), kind, Path(folder))


def _answer(model: str, tokenizer: str | None, options: Any, given: str | None, folder: str) -> Any:
    from edgepart.agent.quantise.comparing import answer_as_it_was

    read = read_json_record(DeployOptions, options, DeployOptions())
    beside, inputs = (None if path is None else Path(path) for path in (tokenizer, given))
    return answer_as_it_was(Path(model), beside, read, inputs, Path(folder))


def _compare(quantised: str, told: Mapping[str, Any], folder: str) -> Any:
    from edgepart.agent.quantise.comparing import compare_with

    return asdict(compare_with(Path(quantised), told, Path(folder)))


WORK: Mapping[str, Callable[..., Any]] = {
    "write": _write,
    "answer": _answer,
    "compare": _compare,
}


def main() -> None:
    """Does the work that stdin orders, and prints its result."""
    order = json.load(sys.stdin)
    try:
        answer = {"result": WORK[order["work"]](**order["given"])}
    except EdgepartError as error:
        answer = {"error": str(error), "kind": type(error).__name__}
    except MemoryError:
        answer = {"error": f"this machine refused the memory: {MEMORY}", "kind": ModelError.__name__}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
