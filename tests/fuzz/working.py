"""Runs targets in processes of their own, several at a time. Does I/O: processes."""

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
"""Target, number of cases, seed."""


def work(job: Job) -> Tally:
    """Run a job in a process that does nothing else."""
    share_heaps()  # otherwise each thread of a door reserves more memory than a target may take
    logging.getLogger().addHandler(logging.NullHandler())  # warnings of doors do not belong on this terminal
    warnings.simplefilter("ignore")
    if MEMORY.is_dir():
        tempfile.tempdir = str(MEMORY)  # in memory: millions of files are too many for a disk
    name, cases, seed = job
    return run(named(name), cases, seed)


def jobs(only: Sequence[str], cases: int, seed: int) -> list[Job]:
    """Return the jobs, the slowest first, so that no process runs one alone at the end."""
    chosen = [t for t in TARGETS if not only or any(part in t.name for part in only)]
    return [(t.name, max(1, round(cases * t.share)), seed) for t in sorted(chosen, key=lambda t: t.share)]


def all_of(todo: Sequence[Job], processes: int) -> Iterator[Tally]:
    """Yield results as jobs end. Raises BrokenProcessPool if a case kills its process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context) as pool:
        for done in as_completed([pool.submit(work, job) for job in todo]):
            yield done.result()
