"""Quantised models: a model with weights of few bits is made, tried and kept, so that the next time it is there. Door:
files, processes and a clock.

They are kept in the user's cache folder by the digest of the model, the type of the weights and who made them; so are the
differences, by what they were measured on.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from edgepart.agent.planwork.model_process import stored_digest
from edgepart.agent.quantise.work import DATA, MODEL, do_apart
from edgepart.agent.text.companions import NAMES, TOKENIZER
from edgepart.agent.wire.inference import DeployOptions, QuantisedWeights
from edgepart.planner.errors import ModelError
from edgepart.planner.figures import format_bytes, format_figure
from edgepart.planner.model.digests import model_digest
from edgepart.planner.model.model_file import model_files
from edgepart.planner.vocabulary import WEIGHTS, check_word

USUAL_MAX_ERROR = 0.1
"""How far answers may be off, relative to each output's largest magnitude, if the user does not say. Weights of 8 bits are
within it for models that were trained; with 4 bits it depends on the model."""
MAKING = "making-"
"""How names of folders begin in which a model is being written."""
FORM = 1
"""The form of what is kept. Raise it when the same model would become another one."""
KEPT = 4
"""How many quantised models are kept. With more, fewer are made again, and the disk holds more."""
IN_USE_S = 3600.0
"""Seconds since its last use in which a model is not deleted, as it may still be being sent."""

ShowProgress = Callable[[str, float, float], None]
"""Called with (stage, done, total); a total of 0 is not known."""


@dataclass(frozen=True)
class QuantisedModel:
    """A model with weights of few bits."""

    graph: Path
    files: dict[str, Path]
    """All files to send, by their paths relative to the model's folder."""
    options: DeployOptions
    """The options, which say what became of the weights."""
    note: str
    """How far its answers are off, and how large it is, for people."""


def quantise(
    model: Path,
    files: Mapping[str, Path],
    options: DeployOptions,
    cache: Path,
    given: Path | None = None,
    progress: ShowProgress = lambda *_: None,
) -> QuantisedModel:
    """The model with weights as `options.weights` says. `files` are the model's files, by their paths relative to its
    folder; `cache` is the folder in which quantised models are kept, and `given` an .npz with the user's inputs.

    Raises UsageError if the model has nothing to quantise, and ModelError if answers are off by more than
    `options.max_error`, or if it cannot be read or run here."""
    kind = options.weights or ""
    beside = {name: files[name] for name in NAMES if name in files}
    graph = make(model, kind, cache, progress)
    key = _key(
        options.shapes, options.states, options.context, _digest(given), _digest(beside.get(TOKENIZER))
    )
    told = graph.parent / f"difference-{key}.json"
    if not told.is_file():
        progress("comparing answers with those of the model as it was", 0, 0)
        _compare(model, beside.get(TOKENIZER), options, given, graph, told)
    source = stored_digest(model, list(beside.values()), options)
    found = QuantisedWeights(source, **json.loads(told.read_text()))
    _check(found, kind, options)
    made = {MODEL: graph, DATA: graph.with_name(DATA)}
    sizes = [sum(path.stat().st_size for path in paths) for paths in (model_files(model), made.values())]
    became = f"{format_bytes(sizes[0])} became {format_bytes(sizes[1])}"
    note = f"{found.describe(kind)}; {became}"
    return QuantisedModel(graph, {**made, **beside}, replace(options, quantised=found), note)


def make(model: Path, kind: str, cache: Path, progress: ShowProgress) -> Path:
    """The .onnx file of the model with weights of that type, which is made if it is not in the cache. Raises UsageError and
    ModelError as `quantise` does."""
    check_word(kind, WEIGHTS, "--weights")
    place = cache / _key(model_digest(model_files(model)), kind, version("onnxruntime"), FORM)
    if not (place / MODEL).is_file():
        progress(f"making {kind} weights", 0, 0)
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=cache, prefix=MAKING) as folder:
            made = Path(folder) / place.name
            made.mkdir()
            do_apart("write", f"quantising {model.name}", model=model.absolute(), kind=kind, folder=made)
            if not place.exists():
                made.rename(place)
    place.touch()
    _prune(cache, place, time.time())
    return place / MODEL


def _check(found: QuantisedWeights, kind: str, options: DeployOptions) -> None:
    """Raises ModelError if answers are too far off."""
    most = USUAL_MAX_ERROR if options.max_error is None else options.max_error
    if found.error > most:
        other = " or take --weights int8" if kind == "int4" else ""
        raise ModelError(
            f"{found.describe(kind)}. That is more than --max-error allows ({format_figure(100 * most)} %): give a larger "
            f"one if that will do{other}, or inputs of your own (--input), as made-up ones may be unlike yours. Nothing "
            "was deployed"
        )


def _compare(
    model: Path,
    tokenizer: Path | None,
    options: DeployOptions,
    given: Path | None,
    quantised: Path,
    told: Path,
) -> None:
    """Measures how far answers are off, and writes it down."""
    with tempfile.TemporaryDirectory(dir=told.parent, prefix="answers-") as folder:
        said = do_apart(
            "answer",
            model.name,
            model=model.absolute(),
            tokenizer=tokenizer and tokenizer.absolute(),
            options=options,
            given=given and given.absolute(),
            folder=Path(folder),
        )
        found = do_apart(
            "compare",
            f"{model.name} with {options.weights} weights",
            quantised=quantised,
            told=said,
            folder=Path(folder),
        )
        written = Path(folder) / "difference"
        written.write_text(json.dumps({"maker": f"ONNX Runtime {version('onnxruntime')}", **found}))
        written.rename(told)


def _prune(cache: Path, used: Path, now: float) -> None:
    """Deletes the models that were not used for longest, and what was left half made."""
    found = sorted((path for path in cache.iterdir() if path != used), key=_used_at, reverse=True)
    half_made = [path for path in found if path.name.startswith(MAKING)]
    made = [path for path in found if path not in half_made]
    for path in (*half_made, *made[KEPT - 1 :]):
        if now - _used_at(path) > IN_USE_S:
            shutil.rmtree(path, ignore_errors=True)  # Another command may be deleting it too.


def _used_at(path: Path) -> float:
    return path.stat().st_mtime


def _digest(file: Path | None) -> str:
    return "" if file is None else hashlib.sha256(file.read_bytes()).hexdigest()


def _key(*parts: Any) -> str:
    def plain(value: Any) -> Any:
        return sorted(value.items()) if isinstance(value, Mapping) else value

    text = json.dumps([plain(part) for part in parts], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
