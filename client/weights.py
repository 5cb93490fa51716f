"""Weights of few bits: a model is made smaller before it is sent. Door: files; what needs ONNX Runtime is done in processes
of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from edgepart.client.model_files import cache_folder

if TYPE_CHECKING:
    from edgepart.agent.quantise.quantised_model import QuantisedModel, ShowProgress
    from edgepart.agent.wire.inference import DeployOptions
    from edgepart.planner.region import Array


def with_weights(
    model: Path,
    files: Mapping[str, Path],
    options: DeployOptions,
    inputs: Mapping[str, Array] | None,
    progress: ShowProgress,
) -> QuantisedModel:
    """The model with weights as `options.weights` says, and options that tell of it. `files` are the model's, by their
    paths relative to its folder; answers are compared on `inputs`, or else on made-up ones. It blocks. Raises UsageError if
    the model has nothing to quantise, and ModelError if answers are too far off, or if the model cannot be used."""
    import numpy as np

    from edgepart.agent.quantise.quantised_model import quantise

    if inputs is None:
        return quantise(model, files, options, weights_folder(), None, progress)
    with tempfile.NamedTemporaryFile(suffix=".npz") as given:
        np.savez(given, allow_pickle=False, **inputs)
        given.flush()
        return quantise(model, files, options, weights_folder(), Path(given.name), progress)


def model_with_weights(model: Path, kind: str, progress: ShowProgress) -> Path:
    """The .onnx file of the model with such weights. How far its answers are off is not measured. Raises UsageError and
    ModelError."""
    from edgepart.agent.quantise.quantised_model import make

    return make(model, kind, weights_folder(), progress)


def weights_folder() -> Path:
    """The folder in which such models are kept."""
    return cache_folder(os.environ) / "weights"
