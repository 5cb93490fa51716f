"""Models with descriptions of their operators: a copy of the model's file is made that has them, and is sent in its place.
Door: files."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from edgepart.client.model_files import cache_folder

if TYPE_CHECKING:
    from edgepart.planner.tdl.description import OperatorDescription


def described_files(
    model: Path,
    files: Mapping[str, Path],
    shapes: Mapping[str, tuple[int, ...]],
    operators: Sequence[OperatorDescription],
    held: ExitStack,
) -> dict[str, Path]:
    """The files to send in place of `files`, of which `model` is the .onnx file. The one that is made is there until `held`
    is closed. It blocks. Raises UsageError if a description is of no operator of the model, or does not fit one, and
    ModelError if the model cannot be used."""
    if not operators:
        return dict(files)
    from edgepart.planner.access import check_described
    from edgepart.planner.model.assumed_shapes import load_with_likely_shapes
    from edgepart.planner.model.described_operators import metadata_of

    check_described(load_with_likely_shapes(model, shapes, operators)[0], operators)
    folder = cache_folder(os.environ)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    place = held.enter_context(tempfile.TemporaryDirectory(dir=folder, prefix="described-"))
    made = shutil.copyfile(model, Path(place) / model.name)
    with made.open("ab") as file:
        file.write(metadata_of(operators))
    return {name: made if path.samefile(model) else path for name, path in files.items()}
