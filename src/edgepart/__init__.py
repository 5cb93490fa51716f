"""edgepart: runs any ONNX model over the small boxes a person already has."""

from importlib.metadata import version

__version__ = version("edgepart")
