"""What the product uses of Python 3.11's standard library, brought to Python 3.10, which JetPack 6 (Ubuntu 22.04) has.

The package's door imports this on 3.10 only, before any other module. The names are put into the standard modules, so that
the product is written for 3.11 throughout. The day that 3.10 is given up, this file goes, with the requirements of
pyproject.toml that are marked with it. tests/test_python310.py finds what the product uses and this file lacks.
"""

from __future__ import annotations

import asyncio
import datetime
import enum
import hashlib
import importlib
import sys
from typing import Any, BinaryIO

FROM_PACKAGES = {
    "taskgroup": ("asyncio", ("Runner", "TaskGroup", "Timeout", "timeout", "timeout_at")),
    "typing_extensions": ("typing", ("Self", "Unpack", "assert_never")),
}
"""The packages that have names of 3.11, the standard module that lacks them, and the names."""


class StrEnum(str, enum.Enum):  # noqa: UP042 - this is the class that the rule asks for
    """An enumeration of texts, whose `str` is the text and whose automatic values are the names in lower case."""

    __str__ = str.__str__
    __format__ = str.__format__  # type: ignore[assignment]

    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[Any]) -> str:
        return name.lower()


def file_digest(file: BinaryIO, digest: str) -> Any:
    """The hash object of all that is left to read of `file`, which is read in parts of 1 MiB."""
    found = hashlib.new(digest)
    while part := file.read(1 << 20):
        found.update(part)
    return found


OWN: dict[str, tuple[Any, Any]] = {
    "UTC": (datetime, datetime.timezone.utc),  # noqa: UP017 - 3.10 has no other name for it
    "StrEnum": (enum, StrEnum),
    "file_digest": (hashlib, file_digest),
}
"""The other names, with the standard module that lacks them."""


def names() -> set[str]:
    """All names that are brought, such as asyncio.timeout, and tomllib."""
    packaged = {f"{module}.{name}" for module, brought in FROM_PACKAGES.values() for name in brought}
    return packaged | {f"{module.__name__}.{name}" for name, (module, _) in OWN.items()} | {"tomllib"}


def bring() -> None:
    """Puts the names into the standard modules."""
    for package, (module, brought) in FROM_PACKAGES.items():
        for name in brought:
            setattr(importlib.import_module(module), name, getattr(importlib.import_module(package), name))
    for name, (owner, value) in OWN.items():
        setattr(owner, name, value)
    # One class since 3.11. asyncio looks its own up whenever it raises it.
    for place in (asyncio, asyncio.exceptions):
        vars(place)["TimeoutError"] = TimeoutError
    sys.modules["tomllib"] = importlib.import_module("tomli")
