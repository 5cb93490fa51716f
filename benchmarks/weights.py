"""Weights of few bits: how large models become, how fast, how far off, and boxes that hold them where float32 does not fit.

    python -m benchmarks.weights [--model NAME] [--markdown] [--json FILE]

The first table has one session on one thread. Its times are taken in turns with those of float32, and the median of their
ratios counts, so that what else the machine does matters little. The second has real agents on this machine with limits of
memory; first the model is deployed as it is, which has to be refused. What they answer is compared with what one session
over the quantised model answers: exits with 1 if it is something else.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper
from rich.table import Table

from benchmarks.generation_bare import BareDecoder
from benchmarks.machine import describe, sentence, show_table
from benchmarks.models.language import LanguageFolder, language_folder
from benchmarks.models.model import kept
from benchmarks.models.zoo import zoo_model
from benchmarks.weights_boxes import BOXES, BoxCase, Served, serve
from edgepart.agent.execution.runtime.loaded_models import load_model
from edgepart.agent.quantise.quantised_model import QuantisedModel
from edgepart.agent.wire.inference import DeployOptions
from edgepart.cli.output import note
from edgepart.client.model_files import files_of
from edgepart.client.weights import with_weights
from edgepart.planner.model.load import load_constants

FLOAT32 = "float32"
KINDS = ("int8", "int4")
ROUNDS = 15
CONTEXT = 256
ANY_ERROR = 9.0
"""The share of the largest magnitude by which answers may be off here: how far they are is what is asked."""
PROMPT = "What is the capital of France, and what is it known for?"


@dataclass(frozen=True)
class Tried:
    """A model to quantise."""

    name: str
    graph: Path
    what: str
    """What is timed."""
    once: Callable[[Path], Callable[[], object]]
    """Makes, of a model's file, what runs it once."""


@dataclass(frozen=True)
class Variant:
    """One session over a model with weights of a type."""

    model: str
    weights: str
    file_bytes: int
    what: str
    took_s: float
    speed: float
    """How many times as fast as with float32."""
    error: float | None
    same_tokens: float | None


def minilm() -> Tried:
    """MiniLM with the float32 weights that ONNX Runtime computes from its file's int8 when it loads it."""
    source = zoo_model("minilm_l6_int8")
    path = kept("minilm_l6_float32", "model.onnx", lambda: folded(source.path))
    inputs = source.inputs(0)

    def once(file: Path) -> Callable[[], object]:
        session = load_model(file, threads=1)
        return lambda: session.run([inputs[name] for name in session.input_names])

    return Tried("minilm_l6", path, "64 tokens", once)


def folded(path: Path) -> ModelProto:
    """The model with values in place of the nodes that compute them from weights alone."""
    model, constants = onnx.load(path), load_constants(path)
    wanted, nodes = {value.name for value in model.graph.output}, list[onnx.NodeProto]()
    for node in reversed(model.graph.node):
        if wanted & {*node.output} - constants.keys():
            wanted |= {*node.input}
            nodes.insert(0, onnx.NodeProto.FromString(node.SerializeToString()))
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(
        numpy_helper.from_array(np.ascontiguousarray(constants[name].load()), name)
        for name in sorted(wanted & constants.keys())
    )
    return model


def smollm2() -> Tried:
    folder = language_folder("smollm2_genai_float32")

    def once(file: Path) -> Callable[[], object]:
        decoder = BareDecoder(beside(folder, file), CONTEXT)
        decoder.forced(range(100, 196))

        def token() -> None:
            decoder.position = 96
            decoder.step(5)

        return token

    return Tried("smollm2_135m", folder.model, "a token after 96", once)


def beside(folder: LanguageFolder, file: Path) -> LanguageFolder:
    """The language model with another file of its weights."""
    return replace(folder, path=file.parent)


MODELS: Mapping[str, Callable[[], Tried]] = {"minilm_l6": minilm, "smollm2_135m": smollm2}


def quantised(tried: Tried, kind: str) -> QuantisedModel:
    options = DeployOptions(weights=kind, max_error=ANY_ERROR)
    return with_weights(tried.graph, files_of(tried.graph), options, None, lambda *_: None)


def measure(tried: Tried) -> list[Variant]:
    """A row for each type of weights. Times are taken in turns."""
    made = {kind: quantised(tried, kind) for kind in KINDS}
    files = {FLOAT32: tried.graph} | {kind: one.graph for kind, one in made.items()}
    runs = {kind: tried.once(file) for kind, file in files.items()}
    took: dict[str, list[float]] = {kind: [] for kind in files}
    for number in range(ROUNDS + 1):
        for kind, run in runs.items():
            began = time.perf_counter()
            run()
            if number:  # The first round warms up.
                took[kind].append(time.perf_counter() - began)
    found = []
    for kind, file in files.items():
        ratio = median(one / other for one, other in zip(took[FLOAT32], took[kind], strict=True))
        about = made[kind].options.quantised if kind in made else None
        size = sum(path.stat().st_size for name, path in files_of(file).items() if ".onnx" in name)
        off, same = (None, None) if about is None else (about.error, about.same_tokens)
        found.append(Variant(tried.name, kind, size, tried.what, median(took[kind]), ratio, off, same))
    return found


def serve_minilm(case: BoxCase) -> Served:
    tried, source = minilm(), zoo_model("minilm_l6_int8")
    inputs = source.inputs(1)
    session = load_model(quantised(tried, case.weights).graph)
    expected = session.run([inputs[name] for name in session.input_names])
    return serve(
        case, tried.graph, dict(source.shapes), inputs, dict(zip(session.output_names, expected, strict=True))
    )


def serve_smollm2(case: BoxCase) -> Served:
    folder = language_folder("smollm2_genai_float32")
    alone = BareDecoder(beside(folder, quantised(smollm2(), case.weights).graph), CONTEXT)
    return serve(case, folder.path, {}, PROMPT, lambda tokens: alone.continued(tokens, case.tokens).tokens)


SERVE: Mapping[str, Callable[[BoxCase], Served]] = {"minilm_l6": serve_minilm, "smollm2_135m": serve_smollm2}


def variant_table(rows: Sequence[Variant]) -> Table:
    found = Table(title=f"one session, one thread\n{sentence()}")
    for head in (
        "model",
        "weights",
        "file",
        "",
        "takes",
        "against float32",
        "off by up to",
        "same likeliest token",
    ):
        found.add_column(head, justify="left" if head in ("model", "weights", "") else "right")
    for row in rows:
        plain = row.error is None
        found.add_row(
            row.model,
            row.weights,
            f"{row.file_bytes / 1e6:.0f} MB",
            row.what,
            f"{row.took_s * 1e3:.1f} ms",
            "" if plain else f"{row.speed:.2f}x",
            "" if row.error is None else f"{row.error:.1%}",
            "" if row.same_tokens is None else f"{row.same_tokens:.0%}",
        )
    return found


def served_table(rows: Sequence[Served]) -> Table:
    found = Table(title=f"boxes with too little memory for float32\n{sentence()}")
    heads = ("model", "boxes", "limit of each", "as it is", "weights", "computed by", "plan takes", "answers")
    for head in heads:
        found.add_column(head)
    for row in rows:
        takes = ", ".join(f"{size / 1e6:.0f}" for size in row.peak_bytes.values())
        found.add_row(
            row.case.model,
            str(row.case.boxes),
            row.case.limit,
            row.refused,
            row.case.weights,
            ", ".join(row.peak_bytes),
            f"{takes} MB",
            row.compared,
        )
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.weights",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", choices=tuple(MODELS), help="only this one")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path, help="write the figures there")
    given = parser.parse_args(arguments)
    variants: list[Variant] = []
    for name, make in MODELS.items():
        if given.model in (None, name):
            note(f"{name}: one session")
            variants += measure(make())
    boxes: list[Served] = []
    for case in BOXES:
        if given.model in (None, case.model):
            note(f"{case.model}: {case.boxes} boxes of {case.limit}, {case.weights}")
            boxes.append(SERVE[case.model](case))
    show_table(variant_table(variants), given.markdown)
    print()
    show_table(served_table(boxes), given.markdown)
    if given.json:
        rows: dict[str, Any] = {"sessions": list(map(asdict, variants)), "boxes": list(map(asdict, boxes))}
        given.json.write_text(json.dumps({"machine": describe()} | rows, indent=1))
    return 0 if all(row.right for row in boxes) else 1


if __name__ == "__main__":
    raise SystemExit(main())
