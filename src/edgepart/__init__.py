"""edgepart: runs any ONNX model over the small boxes a person already has."""

import sys
from typing import TYPE_CHECKING

if sys.version_info < (3, 11):  # noqa: UP036 - 3.10 is not what the code is written for
    from edgepart import python310

    python310.bring()

if TYPE_CHECKING:
    __version__: str


def __getattr__(name: str) -> str:
    """`__version__`, which is looked up when it is first used: most commands do not need it, and importing
    importlib.metadata would take a quarter of their start."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    globals()[name] = found = version("edgepart")
    return found
