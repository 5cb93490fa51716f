"""Shared memory: when its pages go back to the operating system, which counts them by file."""

from __future__ import annotations

import os

import numpy as np

from edgepart.agent.workers.shared_memory import SharedMemory
from edgepart.planner.region import Array

NBYTES = 1 << 20


def written(memory: SharedMemory) -> Array:
    array = memory.empty((NBYTES,), np.dtype(np.uint8))
    array.fill(1)
    return array


def test_the_last_array_of_a_closed_memory_frees_it() -> None:
    memory = SharedMemory(64 * NBYTES)
    watched = os.dup(memory.file)
    try:
        first, second = written(memory), written(memory)
        del first
        part = second[5:9]
        memory.close()
        del second
        assert os.fstat(watched).st_blocks >= 2 * NBYTES // 512
        assert part.all()
        del part
        assert os.fstat(watched).st_blocks == 0 == memory.held_bytes
    finally:
        os.close(watched)


def test_a_memory_that_is_closed_without_arrays_is_free_at_once() -> None:
    memory = SharedMemory(64 * NBYTES)
    watched = os.dup(memory.file)
    try:
        written(memory)
        assert os.fstat(watched).st_blocks >= NBYTES // 512
        memory.close()
        assert os.fstat(watched).st_blocks == 0
    finally:
        os.close(watched)
