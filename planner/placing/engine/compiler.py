"""Compiler: has numba compile functions on arrays, where numba is installed: an optional extra of the package.

numba compiles a function when it is first called. That takes seconds, or a minute on a small machine, and the
result is kept on the disk for later processes. So a search whose time is limited does not call what is not compiled
yet: whoever starts one calls `prepare` (judge.py) before.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

INSTALLED = find_spec("numba") is not None
"""Whether functions are compiled. Without numba they are what they were before, and slow."""


def compiled(function: Function) -> Function:
    """Compiles the decorated function for the types that it is called with. Floats keep their order and rounding."""
    if not INSTALLED:
        return function
    njit = import_module("numba").njit
    try:
        found: Function = njit(cache=True)(function)
    except RuntimeError:  # There is no folder where the result could be kept.
        found = njit(function)
    return found


def compiled_part(function: Function) -> Function:
    """Compiles a function that only compiled functions call and that makes no array. Without counting references to
    the arrays that it gets, which is more work than what it does with them, a schedule takes a tenth of the
    time."""
    if not INSTALLED:
        return function
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    found: Function = import_module("numba").njit(_nrt=False, **options)(function)
    return found
