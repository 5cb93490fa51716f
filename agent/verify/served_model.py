"""The model that is served of a file: the file itself, or what rules make of it where it could not be served as it stands.
One session over it is what plans are compared with. A door: it reads the model's file."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import onnx
from onnx import ModelProto

from edgepart.planner.model.model_file import read_model
from edgepart.planner.model.rewrites.masked_positions import COUNTED, count_positions_in_mask
from edgepart.planner.model.rewrites.merged_decoder import ALWAYS, CACHE_BRANCH, decide, is_merged


def served_model(path: Path | bytes, inputs: Collection[str]) -> Path | bytes:
    """What a session is given whose inputs are to be `inputs`: `path`, or if the model is served as another one than the
    file's, that model, whose external data are still beside the file. Raises ModelError."""
    seen = read_model(path)
    decided = is_merged(seen) and CACHE_BRANCH not in inputs
    if not decided and not any(node.name.startswith(COUNTED) for node in seen.graph.node):
        return path
    own = (
        ModelProto.FromString(path)
        if isinstance(path, bytes)
        else onnx.load(str(path), load_external_data=False)
    )
    made = count_positions_in_mask(own)
    if decided:
        decide(made, ALWAYS)
    return bytes(made.SerializeToString())
