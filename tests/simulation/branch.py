"""A copy of this process that does one thing and ends, so that the common beginning of many plays is computed
once."""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def branch(do: Callable[[], Result]) -> Result:
    """Run `do` in a copy of this process and return its result; nothing that it changes is changed here.

    Raises ChildProcessError if the copy died. Only for processes with one thread.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        status = 1
        try:
            gc.disable()
            with os.fdopen(writer, "wb") as pipe:
                pickle.dump(do(), pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise ChildProcessError(f"a copy of this process ended with {os.waitstatus_to_exitcode(status)}")
    result: Result = pickle.loads(said)
    return result
