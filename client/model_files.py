"""Model files: which files are sent with a model, what a deployment is called by default, and the folder in which models
are kept. Door: it reads the model's folder."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from edgepart.planner.errors import UsageError
from edgepart.planner.json_text import parse_json


def check_there(model: Path) -> None:
    """Raises UsageError if `model` is no file."""
    if not model.is_file():
        raise UsageError(f"there is no model {str(model)!r}; give the path of an .onnx file")


def check_shapes(model: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises UsageError if the shapes do not fit the model's inputs. This is checked before any byte is sent."""
    if shapes:
        from edgepart.planner.model.load import check_shapes as fit

        fit(model, shapes)


def cache_folder(environ: Mapping[str, str]) -> Path:
    """The folder for downloads, and for models that were made here. It is on a disk, which /tmp is not everywhere."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edgepart"


def default_name(model: Path) -> str:
    """A deployment's name made of the file's name, without its ending. Raises UsageError if no allowed character is
    left."""
    made = re.sub(r"[^A-Za-z0-9._-]+", "-", model.stem).strip("-._")[:128]
    if not made:
        raise UsageError(f"{model}: its name makes no deployment's name; give one (--name)")
    return made


def find_model(given: Path) -> Path:
    """The .onnx file to deploy: the one given, or the one in the folder given, which genai_config.json names, or which is
    called model.onnx (in the folder onnx/ too), or which is the only one. Raises UsageError if there is no such file."""
    if not given.is_dir():
        return given
    found = [*sorted(given.glob("*.onnx")), *sorted((given / "onnx").glob("*.onnx"))]
    named = _model_named_by_genai(given)
    usual = [path for path in found if path.name == "model.onnx"]
    chosen = named if named is not None else usual[0] if usual else found[0] if len(found) == 1 else None
    if chosen is None and not found:
        raise UsageError(f"{given}: there is no .onnx file in this folder{_other_model_in(given)}")
    if chosen is None:
        names = ", ".join(str(path.relative_to(given)) for path in found)
        raise UsageError(f"{given}: which of its .onnx files is the model? Give its path. There are: {names}")
    return chosen


def _other_model_in(folder: Path) -> str:
    """What the largest file of the folder is, if that is a model in another format, and what to do; "" otherwise."""
    from edgepart.planner.model.foreign_formats import explain_foreign
    from edgepart.planner.model.weights import read_begin

    try:
        files = [path for path in folder.glob("*") if path.is_file()]
        largest = max(files, key=lambda path: path.stat().st_size, default=None)
        said = explain_foreign(read_begin(largest)) if largest is not None else None
    except OSError:  # What cannot be read cannot be explained.
        return ""
    return f"; {largest.name}: {said}" if largest is not None and said is not None else ""


def _model_named_by_genai(folder: Path) -> Path | None:
    """The decoder that the folder's genai_config.json names; None without that file. Raises UsageError if the file cannot
    be used."""
    try:
        name = parse_json((folder / "genai_config.json").read_bytes())["model"]["decoder"]["filename"]
        return folder / str(name)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{folder / 'genai_config.json'} names no decoder ({error!r}); give the path of the .onnx file"
        ) from error


def files_of(model: Path) -> dict[str, Path]:
    """The model and its external data, by their paths relative to the model's folder, and the files beside a language
    model, which may be in the folder above. Raises UsageError and ModelError."""
    from edgepart.agent.text.companions import NAMES, TOKENIZER

    check_there(model)
    from edgepart.planner.model.model_file import model_files

    # The receiver recognises the graph file by its ending.
    found = {f"{model.stem}.onnx": model}
    for path in model_files(model):
        if not path.samefile(model):
            found[os.path.relpath(path, model.parent)] = path
    beside = [folder for folder in (model.parent, model.parent.parent) if (folder / TOKENIZER).is_file()]
    if beside and (beside[0] == model.parent or model.parent.name == "onnx"):
        found |= {name: beside[0] / name for name in NAMES if (beside[0] / name).is_file()}
    return found
