"""Models to try edgepart on: trained ones that packages ship, topologies that the onnx package ships, and standard
architectures, built here with seeded weights. Nothing is downloaded; results are kept in the user's cache folder.

    python -m benchmarks.models resnet50 -o resnet50.onnx
"""

from benchmarks.models.command import main
from benchmarks.models.inputs import page, sample_inputs
from benchmarks.models.light import LIGHT, all_light, light
from benchmarks.models.model import Inputs, Model, save
from benchmarks.models.real import real_models
from benchmarks.models.zoo import SMALL, ZOO, named_model, zoo_model

__all__ = [
    "LIGHT",
    "SMALL",
    "ZOO",
    "Inputs",
    "Model",
    "all_light",
    "light",
    "main",
    "named_model",
    "page",
    "real_models",
    "sample_inputs",
    "save",
    "zoo_model",
]
