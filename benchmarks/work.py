"""One request's inputs and the expected outputs, in an .npz file for clients that run as processes of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_IN, _OUT = "in:", "out:"


def pack(path: Path, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
    """Write the file."""
    named = {f"{_IN}{name}": value for name, value in inputs.items()}
    np.savez(path, **named, **{f"{_OUT}{name}": value for name, value in outputs.items()})


def unpack(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the inputs and the expected outputs."""
    with np.load(path) as work:
        named = {name: work[name] for name in work.files}
    inputs = {name.removeprefix(_IN): value for name, value in named.items() if name.startswith(_IN)}
    return inputs, {name.removeprefix(_OUT): value for name, value in named.items() if name.startswith(_OUT)}
