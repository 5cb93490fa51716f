"""Shared memory: arrays that this process and one other see without a copy. Door: an anonymous file of the kernel's.

The file is sparse: what was never written takes no memory, so that it may be as large as all that could ever be wanted.
It has no name, and is gone with the last process that maps it. Only the side that made it places arrays; the other one is
told where they lie.
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
"""Where each array begins: at a line of the processor's cache."""
SLACK = 2
"""Times the most that was taken at once may be in use of the file before it is emptied. More keeps more memory than is
needed; less asks the kernel for pages again, which takes as long as copying what they hold."""


class SharedMemory:
    """Places arrays in a file that another process maps too. Thread-safe."""

    def __init__(self, nbytes: int) -> None:
        """Room for `nbytes`, none of which is taken yet. Unavailable where the system has no such files."""
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
        """By size, the places that were taken once and are free now."""
        self._returned: deque[tuple[int, int]] = deque()
        """Places whose arrays are gone: garbage collection may come at any moment, so that it takes no lock."""
        self._end = 0
        self._taken = 0
        self._most = 0
        """Bytes taken at once since the file was emptied last."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """As np.empty, in the file. Its place is free again when nobody refers to it or to a part of it. MemoryError where
        there is no room."""
        size = _rounded(max(1, prod(shape) * dtype.itemsize))
        with self._lock:
            self._collect()
            place = _MemoryPlace(self, self._take(size), size)
        flat: Array = np.asarray(place)
        return flat[: prod(shape) * dtype.itemsize].view(dtype).reshape(shape)

    def copy(self, array: Array) -> Array:
        """The same numbers, contiguous, in the file."""
        made = self.empty(array.shape, array.dtype)
        np.copyto(made, array)
        return made

    def offset(self, array: Array) -> int | None:
        """Where in the file a contiguous array begins; None for one that lies elsewhere."""
        at = array.__array_interface__["data"][0] - self._start
        inside = 0 <= at < self.nbytes and array.flags.c_contiguous
        return at if inside else None

    def give_back(self) -> None:
        """What is free becomes the machine's again, where nothing is taken."""
        with self._lock:
            self._collect()
            self._clear()

    @property
    def held_bytes(self) -> int:
        """That the machine has given for it, at most."""
        return self._end

    def close(self) -> None:
        """No other process can be given the file any more; arrays in it stay."""
        os.close(self.file)

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
    """A part of the file, held by the arrays that lie in it."""

    def __init__(self, memory: SharedMemory, at: int, size: int) -> None:
        self._memory, self._at, self._size = memory, at, size
        self.__array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (memory._start + at, False),
            "version": 3,
        }

    def __del__(self) -> None:
        self._memory._returned.append((self._at, self._size))


class MappedMemory:
    """The other side of a SharedMemory: arrays at places that its maker names."""

    def __init__(self, file: int) -> None:
        """Takes the file descriptor, which is closed."""
        with os.fdopen(file, "r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), 0)
        self._whole: Array = np.frombuffer(self._map, np.uint8)

    def array(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A view."""
        end = offset + prod(shape) * dtype.itemsize
        return self._whole[offset:end].view(dtype).reshape(shape)

    def span(self, offset: int, nbytes: int) -> memoryview:
        return memoryview(self._map)[offset : offset + nbytes]


def _rounded(nbytes: int) -> int:
    """The next of four sizes to each octave, so that places of nearly equal arrays are used again.

    >>> [_rounded(one) for one in (1, 64, 65, 1000, 1025, 5000)]
    [64, 64, 128, 1024, 1280, 5120]
    """
    step = max(LINE_BYTES, 1 << max(0, (nbytes - 1).bit_length() - 3))
    return nbytes + -nbytes % step
