"""Networks of torch as ONNX models whose axes may have any length. Rules only."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from io import BytesIO

import torch
from torch import Tensor, nn

OPSET = 17

Axes = Mapping[str, Mapping[int, str]]
"""The axes of inputs and outputs that may have any length, and their names."""


def export_network(
    network: nn.Module, inputs: Mapping[str, Tensor], outputs: Sequence[str], axes: Axes
) -> bytes:
    """Return the bytes of an ONNX model. It is the same for all `inputs` that differ only in the lengths of `axes`."""
    kept = BytesIO()
    with warnings.catch_warnings():
        # The exporter that traces is called outdated; the other one needs a package more and is slower.
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            network,
            tuple(inputs.values()),
            kept,
            input_names=list(inputs),
            output_names=list(outputs),
            opset_version=OPSET,
            dynamic_axes={name: dict(named) for name, named in axes.items()},
            dynamo=False,
        )
    return kept.getvalue()
