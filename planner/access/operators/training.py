"""Steps of training, which is not what a deployed model does. Facts only."""

from __future__ import annotations

_STEP = "it is a step of training, which ONNX Runtime cannot run"

OPAQUE = {("ai.onnx.preview.training", name): _STEP for name in ("Adagrad", "Adam", "Gradient", "Momentum")}
