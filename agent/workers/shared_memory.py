"""Shared memory: arrays that this process and one other use without a copy. Door: an anonymous file of the kernel's.

The file is sparse: pages that were never written take no memory, so the file may be as large as its arrays could ever get.
It has no name, and disappears with the last process that maps it. Only the process that made it places arrays; the other
one is told their offsets.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from math import prod
from threading import Lock
from typing import Any

import numpy as np

from edgepart.planner.errors import Unavailable
from edgepart.planner.region import Array

LINE_BYTES = 64
"""Arrays begin at multiples of this: 64 bytes are one cache line of most processors."""
SLACK = 2
"""A file in which no array lies is emptied if the part of it that was used is more than this many times the most bytes
taken at once. A larger number keeps more memory than is needed; a smaller one asks the kernel for pages again, which takes
as long as copying their contents."""


class SharedMemory:
    """Places arrays in a file that another process maps too. Thread-safe."""

    def __init__(self, nbytes: int) -> None:
        """Make a file with room for `nbytes`, none of which takes memory yet. Raises Unavailable if the system has no
        such files."""
        try:
            self.file = os.memfd_create("edgepart", os.MFD_CLOEXEC)
            os.ftruncate(self.file, nbytes)
            self._map = mmap.mmap(self.file, nbytes)
        except OSError as error:
            raise Unavailable(f"no memory can be shared with a worker: {error.strerror}") from error
        self.nbytes = nbytes
        self._whole: Array = np.frombuffer(self._map, np.uint8)
        self._start = self._whole.ctypes.data
        self._lock = Lock()
        self._free: dict[int, list[int]] = {}
        """Offsets of places that were taken before and are free now, by size."""
        self._returned: deque[tuple[int, int]] = deque()
        """Offset and size of places whose arrays are gone. Garbage collection may add one at any moment, even while this
        thread holds the lock, so it takes no lock."""
        self._closed = False
        self._end = 0
        self._taken = 0
        self._most = 0
        """The most bytes taken at once since the file was emptied last."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An uninitialised array in the file, as np.empty returns. Its place is free again when nothing refers to the array
        or a part of it. Raises MemoryError if there is no room."""
        size = _round_up(max(1, prod(shape) * dtype.itemsize))
        with self._lock:
            self._collect()
            place = _MemoryPlace(self, self._take(size), size)
        flat: Array = np.asarray(place)
        return flat[: prod(shape) * dtype.itemsize].view(dtype).reshape(shape)

    def copy(self, array: Array) -> Array:
        """A contiguous copy of the array in the file."""
        made = self.empty(array.shape, array.dtype)
        np.copyto(made, array)
        return made

    def offset(self, array: Array) -> int | None:
        """The offset in the file at which a contiguous array begins, in bytes; None if the array lies elsewhere."""
        at = array.__array_interface__["data"][0] - self._start
        inside = 0 <= at < self.nbytes and array.flags.c_contiguous
        return at if inside else None

    def give_back(self) -> None:
        """Return the file's memory to the operating system, if no array lies in it."""
        with self._lock:
            self._collect()
            self._clear()

    @property
    def held_bytes(self) -> int:
        """The most bytes of memory that the file can take now."""
        return self._end

    def close(self) -> None:
        """Close the file descriptor, so that no further process can map the file. Arrays in it stay; when the last one is
        gone, the file's memory goes back to the operating system, whatever still refers to this object."""
        os.close(self.file)
        self._closed = True
        self.give_back()

    def _take(self, size: int) -> int:
        if free := self._free.get(size):
            at = free.pop()
        elif self._end + size <= self.nbytes:
            at, self._end = self._end, self._end + size
        else:
            raise MemoryError(
                f"{size:,} bytes do not fit in what is shared with the worker ({self.nbytes:,})"
            )
        self._taken += size
        self._most = max(self._most, self._taken)
        return at

    def _collect(self) -> None:
        while self._returned:
            at, size = self._returned.popleft()
            self._free.setdefault(size, []).append(at)
            self._taken -= size
        if not self._taken and self._end > SLACK * self._most:
            self._clear()

    def _clear(self) -> None:
        if not self._taken and self._end:
            self._map.madvise(mmap.MADV_REMOVE, 0, self._end + -self._end % mmap.PAGESIZE)
            self._free.clear()
            self._end = self._most = 0


class _MemoryPlace:
    """A part of the file. The arrays in it refer to this object, so the part is free again when all of them are gone."""

    def __init__(self, memory: SharedMemory, at: int, size: int) -> None:
        self._memory, self._at, self._size = memory, at, size
        self.__array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (memory._start + at, False),
            "version": 3,
        }

    def __del__(self) -> None:
        memory = self._memory
        memory._returned.append((self._at, self._size))
        # A thread that holds the lock may be interrupted by this, and must not wait for itself.
        if memory._closed and memory._lock.acquire(blocking=False):
            try:
                memory._collect()
                memory._clear()
            finally:
                memory._lock.release()


class MappedMemory:
    """A SharedMemory as the other process sees it: arrays at offsets that the process which made it sends."""

    def __init__(self, file: int) -> None:
        """Map the file of this descriptor, and close the descriptor."""
        with os.fdopen(file, "r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), 0)
        self._whole: Array = np.frombuffer(self._map, np.uint8)

    def array(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A view of the file as an array."""
        end = offset + prod(shape) * dtype.itemsize
        return self._whole[offset:end].view(dtype).reshape(shape)

    def span(self, offset: int, nbytes: int) -> memoryview:
        return memoryview(self._map)[offset : offset + nbytes]


def _round_up(nbytes: int) -> int:
    """The next larger size, of four for each power of two, so that arrays of nearly equal size use the same places.

    >>> [_round_up(one) for one in (1, 64, 65, 1000, 1025, 5000)]
    [64, 64, 128, 1024, 1280, 5120]
    """
    step = max(LINE_BYTES, 1 << max(0, (nbytes - 1).bit_length() - 3))
    return nbytes + -nbytes % step
