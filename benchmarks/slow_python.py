"""Whether Python that the laboratory slows down is as slow as it should be: two processes that send each other messages.

    python -m benchmarks.slow_python [--factors 1,2,4,8] [--rounds 9] [--markdown]

Each end takes a message, computes something in Python, and sends a message on, so that nothing happens at the same time.
Slowed down eight times, a message should take eight times as long as without, as nearly all of its time is CPU time. The
rounds of all factors take turns, and medians count.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time
from statistics import median

from benchmarks.latency import numbers
from benchmarks.machine import sentence, show_table
from benchmarks.slowed import slow_environment
from edgepart.cli.output import say, table
from edgepart.planner.figures import format_figure, format_seconds

FACTORS = (1, 2, 4, 8, 16)
EXCHANGES, NBYTES, LOOPS = 200, 2304, 800
"""The messages each way in a round, their bytes, and the loops of Python that each end makes for one of them, about as
long as sending it takes."""


def play(line: socket.socket, begins: bool) -> float:
    """Take turns on the connection, and return the seconds of a message."""
    payload, into = bytes(NBYTES), memoryview(bytearray(NBYTES))
    began_s = time.perf_counter()
    for number in range(EXCHANGES + begins):
        if number or not begins:
            filled = 0
            while filled < NBYTES:
                filled += line.recv_into(into[filled:])
        total = 0
        for loop in range(LOOPS):
            total += loop
        if number < EXCHANGES or not begins:
            line.sendall(payload)
    return (time.perf_counter() - began_s) / (2 * EXCHANGES)


def end() -> None:
    """Be one end, in a process of its own: the connection is a descriptor, and a line that comes in begins a round."""
    descriptor, begins = int(sys.argv[2]), sys.argv[3] == "near"
    with socket.socket(fileno=descriptor) as line:
        for _ in sys.stdin:
            print(play(line, begins), flush=True)


def ends(factor: float) -> list[subprocess.Popen[str]]:
    """Start two ends that are connected, slowed down by the factor; 0 starts them as they are."""
    one, other = socket.socketpair()
    slowed = slow_environment(1.0, factor) if factor else {}
    with one, other:
        return [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.slow_python", "end", str(side.fileno()), name],
                env={**os.environ, **slowed},
                pass_fds=[side.fileno()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for side, name in ((one, "near"), (other, "far"))
        ]


def play_round(pair: list[subprocess.Popen[str]]) -> float:
    """Have the two ends play a round, and return the seconds of a message."""
    for process in reversed(pair):
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    told = [process.stdout.readline() for process in pair if process.stdout is not None]
    return float(told[0])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--factors", type=numbers, default=FACTORS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--markdown", action="store_true", help="print the table as documents have it")
    options = parser.parse_args()
    pairs = {factor: ends(factor) for factor in (0, *options.factors)}
    try:
        rounds = [{factor: play_round(pair) for factor, pair in pairs.items()} for _ in range(options.rounds)]
    finally:
        for process in [process for pair in pairs.values() for process in pair]:
            process.communicate()
    took_s = {factor: median(one[factor] for one in rounds[1:]) for factor in pairs}
    say(f"On {sentence()}. Without slowing down, a message takes {format_seconds(took_s[0], 3)}.\n")
    columns = ("times as slow", "a message takes", "times as long as without")
    rows = [
        (str(factor), format_seconds(took_s[factor], 3), format_figure(took_s[factor] / took_s[0], 3))
        for factor in options.factors
    ]
    show_table(table(columns, rows, columns), options.markdown)


if __name__ == "__main__":
    end() if sys.argv[1:2] == ["end"] else main()
