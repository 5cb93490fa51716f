"""Model: a model to try; and the cache folder for models that are made here. Nothing is downloaded."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import ModelProto

from edgepart.planner.errors import UsageError
from edgepart.planner.region import Array

Inputs = dict[str, Array]

VERSION = 2
"""Part of the cache folders' names. Raise it when the weights made here change."""

EXTERNAL_BYTES = 64 << 20
"""Models whose weights exceed this size keep them in a file beside the model."""


@dataclass(frozen=True)
class Model:
    """A model to try."""

    name: str
    path: Path
    shapes: Mapping[str, tuple[int, ...]]
    """Shapes for its free dimensions."""
    inputs: Callable[[int], Inputs]
    """Makes inputs of those shapes for a seed: page-like, sound-like, text-like."""


def kept(name: str, file: str, make: Callable[[], ModelProto]) -> Path:
    """Return the file of a model in the user's cache folder. It is made if missing, also when several
    processes ask at once."""
    path = place_of(name, file)
    folder = path.parent
    if not path.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as making:
            save(make(), Path(making) / "model" / file)
            if not folder.exists():
                (Path(making) / "model").rename(folder)
    return path


def place_of(name: str, file: str) -> Path:
    """Return the path in the cache folder at which a model is kept."""
    return _cache_folder() / f"{name}-v{VERSION}" / file


def save(model: ModelProto, path: Path) -> None:
    """Write the model; a big one keeps its weights in `path`.data."""
    path.parent.mkdir(parents=True, exist_ok=True)
    big = sum(len(tensor.raw_data) for tensor in model.graph.initializer) > EXTERNAL_BYTES
    onnx.save_model(
        model,
        path,
        save_as_external_data=big,
        location=f"{path.name}.data" if big else None,
        size_threshold=1024,
    )


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "edgepart" / "models"


def package(name: str) -> Path:
    """Return the folder of an installed package, without importing it."""
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise UsageError(f"the package {name!r} is not installed; `make test` installs what the tests need")
    return Path(found.submodule_search_locations[0])
