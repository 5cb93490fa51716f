"""Networks of placers: runs those that the package brings along and those of a user's files. A door: the disk, and ONNX
Runtime.

They are small and run on one thread of the CPU, whatever engines the box has: they take milliseconds, and guide a search
that is about the engines.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import onnxruntime as ort

from edgepart.agent.engines.provider_sessions import ORT_ERRORS
from edgepart.planner.errors import ModelError, NotInstalled
from edgepart.planner.placing.problem.networks import Networks, NeuralNetwork, read_card

MOST_BYTES = 64 * 2**20
"""The most bytes of a network's file. Those that `edgepart train` writes have less than one hundredth of it."""

_QUIET = 3
"""ONNX Runtime's level of logs at which only errors are logged."""


def networks_of(given: Mapping[str, Path]) -> Networks:
    """Return what finds networks by the name of their placer: in the files of `given`, or among those that the package
    brings along."""

    def find(placer: str) -> NeuralNetwork:
        path = given.get(placer)
        return _shipped(placer) if path is None else _of_file(placer, path)

    return find


@lru_cache
def _shipped(placer: str) -> NeuralNetwork:
    file = files("edgepart.planner.placing.guided") / "weights" / f"{placer}.onnx"
    if not file.is_file():
        raise NotInstalled(
            f"{placer} needs a trained network, and none comes with the package: make one with "
            f"`edgepart train --placer {placer} --out {placer}.onnx`, and name it with --network {placer}.onnx"
        )
    return _load(placer, file.read_bytes(), f"the network of {placer}")


def _of_file(placer: str, path: Path) -> NeuralNetwork:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ModelError(f"{path}: a network may have {MOST_BYTES:,} bytes at most")
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error
    return _load(placer, data, str(path))


def _load(placer: str, data: bytes, where: str) -> NeuralNetwork:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = _QUIET
    try:
        session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except ORT_ERRORS as error:
        raise ModelError(f"{where}: not a network that ONNX Runtime can run ({error})") from error
    card = read_card(session.get_modelmeta().custom_metadata_map, where)
    if card.placer != placer:
        raise ModelError(
            f"{where}: a network of {card.placer}, not of {placer}; say --strategy {card.placer}"
        )

    return NeuralNetwork(card, lambda inputs: session.run(None, dict(inputs)))
