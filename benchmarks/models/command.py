"""The command that writes one of the models to a file."""

from __future__ import annotations

import argparse
from pathlib import Path

import onnx

from benchmarks.models.exported import EXPORTS
from benchmarks.models.light import LIGHT, light
from benchmarks.models.model import save
from benchmarks.models.zoo import SMALL, ZOO, zoo_model
from edgepart.planner.errors import UsageError

_LIGHT = (*LIGHT, *(f"light_{name}" for name in LIGHT))
"""Names that always stand for a model with seeded weights, even if the zoo has another model of that name.
The README's figures are for these."""


def main(arguments: list[str] | None = None) -> int:
    names = [*dict.fromkeys((*_LIGHT, *ZOO, *EXPORTS, *SMALL))]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models", description="Writes a model to try.")
    parser.add_argument("name", choices=names, metavar="NAME", help=f"one of {', '.join(names)}")
    parser.add_argument("-o", "--output", type=Path, required=True, help="where to write it")
    parser.add_argument("--seed", type=int, default=0, help="of a light model's weights")
    options = parser.parse_args(arguments)
    name = options.name
    try:
        path = light(name, options.seed) if name in _LIGHT else zoo_model(name).path
    except UsageError as error:
        parser.exit(1, f"{error}\n")
    save(onnx.load(path), options.output)
    print(options.output)
    return 0
