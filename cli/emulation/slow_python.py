"""Stretches Python on an emulated slow device. sitecustomize.py puts it in; the product does not know about it.

With EDGEPART_LAB_SLOW_PYTHON=8, what a thread computed is stretched to 8 times its CPU time before the thread hands
something on or waits: at sockets, TLS, pipes, conditions and event loops (WAITING, SENDING). So what a message costs
in Python, in TLS and in the kernel takes eight times as long before the other side learns of it. Runs of ONNX Runtime
have a factor of their own, and are left out here. What a send takes is slept before it, as much as the last one of
about that size took; the difference is made up for at the next sleep.

A control group cannot do this: its shortest quota is a millisecond, in which several messages are handled at full
speed. Threads of one process sleep at the same time here, where on a slow device they would wait for each other in
the interpreter, so a process with several busy threads is faster than there.
"""

from __future__ import annotations

import asyncio
import functools
import multiprocessing.connection
import os
import selectors
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any

LONG_S = 1e-3
"""What takes at least so long counts as long as it takes. Of shorter computations, the least CPU time between the same
two lines of code counts, as a thread that sleeps finds its caches cold, and more so the longer it sleeps: this must
not be stretched as well."""

LEAST_SLEEP_S = 50e-6
"""Shorter sleeps are put off until there is so much to sleep, as a sleep itself takes some ten microseconds."""

WAITING: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (socket.socket, ("recv", "recv_into", "recvfrom")),
    (ssl.SSLSocket, ("read", "recv", "recv_into")),
    (ssl.SSLObject, ("read",)),
    (multiprocessing.connection.Connection, ("recv_bytes", "poll")),
    (threading.Condition, ("notify", "wait")),
    (asyncio.BaseEventLoop, ("call_soon_threadsafe",)),
    (selectors.EpollSelector, ("select",)),
    (os, ("eventfd_write", "eventfd_read")),
)
"""What threads wait in, or wake others by: classes or modules, and the names of their functions."""

SENDING: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (socket.socket, ("send", "sendall", "sendmsg", "sendto")),
    (ssl.SSLSocket, ("send", "sendall", "write")),
    (ssl.SSLObject, ("write",)),
    (multiprocessing.connection.Connection, ("send_bytes",)),
)
"""What threads send bytes by."""


class ThreadStretcher(threading.local):
    """Stretches what the calling thread computes."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._counted_s = time.thread_time()
        self._left_s = 0.0
        """What is still to be slept; below 0 if more was slept than was to be."""
        self._place: Hashable = None
        """Where the thread handed something on or waited last."""
        self._least_s: dict[Hashable, float] = {}
        """The least that was computed between two places, and within a call at a place."""
        self._within = False
        """Whether the thread is in one of the functions, which may call others."""

    def call(
        self, function: Callable[..., Any], place: Hashable, sends: bool, *args: Any, **options: Any
    ) -> Any:
        """Call the function after what was computed before it is stretched. What the call itself computes is stretched
        afterwards, or before if it sends."""
        if self._within:
            return function(*args, **options)
        self._add((self._place, place))
        ahead_s = self._factor * self._least_s.get(place, 0.0) if sends else 0.0
        self._left_s += ahead_s
        self._place = place
        self._sleep()
        self._within = True
        try:
            return function(*args, **options)
        finally:
            self._within = False
            self._add(place)
            self._left_s -= ahead_s
            if not sends:
                self._sleep()
            self.leave_out()

    def leave_out(self) -> None:
        """Do not stretch what the thread computed since its last call of a function."""
        self._counted_s = time.thread_time()

    def _add(self, what: Hashable) -> None:
        """Add what is to be slept for what the thread computed just now."""
        used_s = least_s = time.thread_time() - self._counted_s
        if used_s < LONG_S:
            least_s = self._least_s[what] = min(used_s, self._least_s.get(what, used_s))
        self._left_s = max(self._left_s + self._factor * least_s - used_s, -LONG_S)

    def _sleep(self) -> None:
        if self._left_s >= LEAST_SLEEP_S:
            began_s = time.monotonic()
            time.sleep(self._left_s)
            self._left_s -= time.monotonic() - began_s
        self.leave_out()


def stretch_python(factor: float) -> ThreadStretcher:
    """Stretch all threads of this process from now on, and return what does it."""
    stretcher = ThreadStretcher(factor)
    for sends, places in ((False, WAITING), (True, SENDING)):
        for owner, names in places:
            for name in names:
                setattr(owner, name, _stretched(getattr(owner, name), stretcher, sends))
    return stretcher


def _stretched(function: Callable[..., Any], stretcher: ThreadStretcher, sends: bool) -> Callable[..., Any]:
    @functools.wraps(function)
    def stretched(*args: Any, **options: Any) -> Any:
        caller = sys._getframe(1)
        size = _size(args[1]).bit_length() if sends and len(args) > 1 else 0
        return stretcher.call(function, (caller.f_code, caller.f_lasti, size), sends, *args, **options)

    return stretched


def _size(data: Any) -> int:
    """Return the bytes of a buffer, or of a list of them."""
    return sum(map(_size, data)) if isinstance(data, list | tuple) else memoryview(data).nbytes
