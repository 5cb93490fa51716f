"""The environment that makes an agent on this machine a slow device without a laboratory.

It needs no root, and links are as fast as loopback (cli/emulation/sitecustomize.py says how it works).
"""

from __future__ import annotations

import os
from pathlib import Path

from edgepart.cli.emulation import sitecustomize

SLOW = Path(sitecustomize.__file__).parent


def slow_environment(factor: float, slow_python: float | None = None) -> dict[str, str]:
    """Return the environment of an agent that is `factor` times as slow as this machine where it runs models, and
    `slow_python` times in everything else."""
    paths = (str(SLOW), os.environ.get("PYTHONPATH", ""))
    found = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), sitecustomize.VARIABLE: repr(factor)}
    if slow_python is not None:
        found[sitecustomize.PYTHON_VARIABLE] = repr(slow_python)
    return found
