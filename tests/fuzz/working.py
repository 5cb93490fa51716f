"""Working: targets are run in processes of their own, as many at once as there are processors. Door: processes."""

from __future__ import annotations

import logging
import multiprocessing
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from edgepart.agent.host.process_memory import share_heaps
from tests.fuzz.running import Tally, run
from tests.fuzz.targets import TARGETS, named

MEMORY = Path("/dev/shm")

Job = tuple[str, int, int]
"""Target, cases, seed."""


def work(job: Job) -> Tally:
    """In a process that does nothing else."""
    share_heaps()  # else each thread of a door reserves more than a target may take
    logging.getLogger().addHandler(logging.NullHandler())  # what doors warn of is not for this terminal
    warnings.simplefilter("ignore")
    if MEMORY.is_dir():
        tempfile.tempdir = str(MEMORY)  # millions of files are not for a disk
    name, cases, seed = job
    return run(named(name), cases, seed)


def jobs(only: Sequence[str], cases: int, seed: int) -> list[Job]:
    """The slowest first, so that no process is left alone with one at the end."""
    chosen = [t for t in TARGETS if not only or any(part in t.name for part in only)]
    return [(t.name, max(1, round(cases * t.share)), seed) for t in sorted(chosen, key=lambda t: t.share)]


def all_of(todo: Sequence[Job], processes: int) -> Iterator[Tally]:
    """As they are done. BrokenProcessPool where a process dies of a case."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context) as pool:
        for done in as_completed([pool.submit(work, job) for job in todo]):
            yield done.result()
