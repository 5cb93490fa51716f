"""What clients notice when the very agent that they talk to is killed (SIGKILL) under their requests.

    python -m benchmarks.failover [--requests 200] [--markdown]

Three agents on this machine serve SqueezeNet. Each client sends its requests, four at a time; its agent is killed after a
quarter of them, and is started again for the next client. Exits with 1 if a client of edgepart loses a request, or gets a
wrong answer. (tritonclient knows one server, and loses what it sends to a server that is gone.)
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

import edgepart
from benchmarks.comparing import Values, differences, run_alone
from benchmarks.machine import sentence
from benchmarks.models import light, sample_inputs
from edgepart.cli.local import LocalAgent, LocalCluster
from edgepart.planner.figures import format_seconds
from edgepart.planner.model.load import load_graph

NAME = "photos"
AT_ONCE = 4
COMMANDS = 20
"""Number of `edgepart infer` commands, each a process of its own, one after the other."""
KILL_S = 0.5
"""Seconds from the start of such a command to the kill, so that the command is under way."""
TOLERANCE = 1e-4
"""The largest difference between two right answers of `edgepart bench`; outputs are probabilities."""
COLUMNS = ("client", "requests", "answered", "lost", "wrong", "sent again", "longest wait")


@dataclass
class Outcome:
    """The outcome of one client's requests."""

    client: str
    answered: int = 0
    lost: int = 0
    wrong: int = 0
    again: int | None = None
    """Number of times that the client sent a request again; None if it does not tell."""
    longest_s: float = 0.0
    errors: set[str] = field(default_factory=set)

    @property
    def cells(self) -> tuple[str, ...]:
        again = "" if self.again is None else str(self.again)
        counts = (self.answered + self.lost, self.answered, self.lost, self.wrong)
        return (self.client, *map(str, counts), again, format_seconds(self.longest_s))


@dataclass(frozen=True)
class Work:
    """What is asked, and the right answer."""

    inputs: Values
    expected: Values
    requests: int


Ask = Callable[[], tuple[Mapping[str, Any], int | None]]
"""Sends one request. Returns the outputs, and how often it was sent again."""


def count(
    client: str, ask: Ask, work: Work, requests: int, at_once: int, kill: Callable[[], None]
) -> Outcome:
    """Sends the requests, and kills the agent after a quarter of them."""
    outcome = Outcome(client)

    def one(number: int) -> None:
        if number == requests // 4:
            kill()
        began = time.perf_counter()
        try:
            outputs, again = ask()
        except Exception as error:  # noqa: BLE001  # whatever a client raises, its request is lost
            outcome.lost += 1
            outcome.errors.add(f"{type(error).__name__}: {str(error)[:120]}")
        else:
            outcome.answered += 1
            outcome.wrong += bool(differences(outputs, work.expected))
            outcome.again = outcome.again if again is None else (outcome.again or 0) + again
        outcome.longest_s = max(outcome.longest_s, time.perf_counter() - began)

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(one, range(requests)))
    return outcome


def with_python(agent: LocalAgent, work: Work) -> Outcome:
    with edgepart.connect(state=agent.state) as client:

        def ask() -> tuple[Mapping[str, Any], int]:
            answer = client.infer(NAME, work.inputs)
            return answer.outputs, answer.retries

        return count("edgepart.connect()", ask, work, work.requests, AT_ONCE, agent.kill)


def with_bench(agent: LocalAgent, work: Work) -> Outcome:
    """`edgepart bench`, which compares its answers with each other; the agent is killed when it has answered a quarter."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "inputs.npz"
        np.savez(path, allow_pickle=False, **work.inputs)
        with ThreadPoolExecutor(1) as pool:
            before = _answered(agent)
            command = ("bench", NAME, "-n", str(work.requests), "-c", str(AT_ONCE), "--input", str(path))
            running = pool.submit(agent.type, *command, timeout_s=300)
            while _answered(agent) - before < work.requests // 4 and not running.done():
                time.sleep(0.01)
            agent.kill()
            found = running.result()
    return Outcome(
        "edgepart bench",
        answered=found["requests"]["answered"],
        lost=found["requests"]["lost"],
        wrong=0 if (found["max_abs_diff"] or 0.0) <= TOLERANCE and found["answers_equal"] else 1,
        again=found["retries"],
        longest_s=found["latency_s"]["max"],
    )


def _answered(agent: LocalAgent) -> int:
    """Number of requests that this agent has answered as a gateway."""
    with urllib.request.urlopen(f"{agent.url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.search(rf'edgepart_requests_total{{model="{NAME}",outcome="answered"}} ([0-9.]+)', text)
    return int(float(found[1])) if found else 0


def with_commands(agent: LocalAgent, work: Work) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        given, taken = Path(folder) / "in.npz", Path(folder) / "out.npz"
        np.savez(given, allow_pickle=False, **work.inputs)

        def ask() -> tuple[Mapping[str, Any], None]:
            agent.type("infer", NAME, "--input", str(given), "--output", str(taken))
            with np.load(taken) as outputs:
                return dict(outputs), None

        return count(
            f"{COMMANDS} x edgepart infer", ask, work, COMMANDS, 1, threading.Timer(KILL_S, agent.kill).start
        )


def with_triton(agent: LocalAgent, work: Work) -> Outcome:
    import tritonclient.http as triton

    client = triton.InferenceServerClient(urlsplit(agent.url).netloc, concurrency=AT_ONCE)
    inputs = []
    for name, array in work.inputs.items():
        inputs.append(triton.InferInput(name, list(array.shape), "FP32"))
        inputs[-1].set_data_from_numpy(array)

    def ask() -> tuple[Mapping[str, Any], None]:
        answer = client.infer(NAME, inputs)
        return {name: answer.as_numpy(name) for name in work.expected}, None

    return count("tritonclient", ask, work, work.requests, 1, agent.kill)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    path = light("squeezenet")
    inputs = sample_inputs(load_graph(path))
    work = Work(inputs, run_alone(path, inputs), options.requests)
    outcomes = []
    with LocalCluster(["a", "b", "c"], options=("--threads", "1")) as cluster:
        cluster.first.type("deploy", str(path), "--name", NAME, timeout_s=300)
        for run in (with_python, with_bench, with_commands, with_triton):
            agent = next(agent for agent in cluster.agents.values() if agent.alive)
            outcomes.append(run(agent, work))
            agent.start()
            cluster.wait(lambda agent=agent: agent.addresses, f"{agent.name} to be up again", agent)
            cluster.wait_for_members(3)
    if options.markdown:
        print(f"{sentence()}\n")
    for line in (COLUMNS, ("---", *["---:"] * (len(COLUMNS) - 1)), *(found.cells for found in outcomes)):
        print(f"| {' | '.join(line)} |")
    for found in outcomes:
        for text in sorted(found.errors):
            print(f"{found.client}: {text}", file=sys.stderr)
    return int(any(found.lost or found.wrong for found in outcomes[:-1]))


if __name__ == "__main__":
    sys.exit(main())
