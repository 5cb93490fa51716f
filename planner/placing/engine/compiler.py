"""Compiler: has numba compile functions on arrays, where numba is installed: an optional extra of the package.

numba compiles a function when it is first called. That takes seconds, or a minute on a small machine, and the
result is kept on the disk for later processes. So a search whose time is limited must not compile: functions are only
marked, and stay as they are written until whoever starts a search has their module compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

INSTALLED = find_spec("numba") is not None
"""Whether functions can be compiled. As they are written, they are slow."""

_MARK = "_compiled_as"
_WHOLE, _PART = "whole", "part"


def compiled(function: Function) -> Function:
    """Marks the decorated function as one to compile, for the types that it is called with. Floats keep their order and
    rounding. It may call functions of its own module only."""
    setattr(function, _MARK, _WHOLE)
    return function


def compiled_part(function: Function) -> Function:
    """Marks a function that only compiled functions call and that makes no array. Without counting references to
    the arrays that it gets, which is more work than what it does with them, a schedule takes a tenth of the
    time."""
    setattr(function, _MARK, _PART)
    return function


def compile_module(module: ModuleType) -> None:
    """Puts compiled functions in the place of the module's marked ones; numba compiles each when it is first called.
    Raises ImportError if numba is not installed."""
    # Imported here, as numba takes half a second to load.
    njit = import_module("numba").njit
    for name, function in list(vars(module).items()):
        mark = getattr(function, _MARK, None)
        if mark == _PART:
            options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
            setattr(module, name, njit(_nrt=False, **options)(function))
        elif mark == _WHOLE:
            try:
                made = njit(cache=True)(function)
            except RuntimeError:  # There is no folder where the result could be kept.
                made = njit(function)
            setattr(module, name, made)
