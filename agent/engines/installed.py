"""Installed: which software computes on this box, as text. A door: the metadata of installed packages, without importing
any of them."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version

_PARTS = ("onnxruntime", "openvino", "tensorrt", "nvidia-cudnn")
"""How the names of packages begin that what engines do depends on."""
_METADATA = (".dist-info", ".egg-info")
"""How the names of folders end that say which package is installed, after NAME-VERSION."""


RUNTIMES = "onnxruntime"
"""How the names of the packages begin that all hold the module onnxruntime, of which only one may be installed."""
BESIDE = ("onnxruntime-extensions", "onnxruntime-genai", "onnxruntime-tools")
"""Packages whose names begin like that, and that hold other modules."""


def runtimes_in(installed: str) -> tuple[str, ...]:
    """The packages among those of `installed_runtime` that hold the module onnxruntime.

    >>> runtimes_in("onnxruntime 1.23.0, onnxruntime-gpu 1.23.0, openvino 2026.0")
    ('onnxruntime', 'onnxruntime-gpu')
    """
    names = [entry.partition(" ")[0] for entry in installed.split(", ")]
    return tuple(name for name in names if name.startswith(RUNTIMES) and name not in BESIDE)


def installed_runtime() -> str:
    """The names and versions of the packages that compute, such as "onnxruntime 1.23.0"."""
    # Names of folders, because each start waits for this: reading the metadata of all packages takes ten times as long.
    entries = [entry for folder in sys.path if os.path.isdir(folder) for entry in os.listdir(folder)]
    packages = {
        entry.partition("-")[0].replace("_", "-").lower() for entry in entries if entry.endswith(_METADATA)
    }
    return ", ".join(sorted(f"{name} {version(name)}" for name in packages if name.startswith(_PARTS)))
