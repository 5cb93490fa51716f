"""Arrays for a deployment: reads them from files, makes random ones, compares them, and converts them to lists.

Rules over numpy, and one door: `read_inputs` opens the files that the user names.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgepart.agent.gateway.oip_elements import (
    BINARY_ONLY,
    DATATYPES,
    array_from_json,
    numpy_dtype,
)
from edgepart.client.pictures import ENDINGS, form_of, read_picture
from edgepart.planner.errors import UsageError

Array = np.ndarray[Any, np.dtype[Any]]

SHOWN = 6
"""Number of values of each output that are printed."""


def read_inputs(
    texts: Sequence[str],
    metadata: Mapping[str, Any],
    picture: str = "",
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Array]:
    """The inputs by name. Each text is "NAME=FILE" (.npy, .json, a picture, or .npz with one array), or "FILE" alone: an
    .npz whose arrays have the inputs' names, or any file if the model has one input. `picture` says how pictures are
    prepared (client/pictures.py), and `tell` is told what is assumed of each. Raises UsageError, which names the option
    and the file."""
    known = {entry["name"]: entry for entry in metadata["inputs"]}
    found: dict[str, Array] = {}
    for text in texts:
        name, path = _split(text, known)
        entry = known.get(name or "") or (next(iter(known.values())) if len(known) == 1 else None)
        if path.suffix.lower() in ENDINGS and entry is not None:
            form = form_of(entry, picture)
            tell(f"{path} for input {entry['name']}: {form}")
            arrays = {"": read_picture(path, form, entry["datatype"])}
        else:
            arrays = _read(path, entry)
        if name is None and path.suffix == ".npz":
            new = arrays
        elif name is None and len(known) != 1:
            raise UsageError(
                f"--input {text}: the model has inputs {sorted(known)}; say which: --input NAME={path}"
            )
        elif len(arrays) != 1:
            raise UsageError(
                f"--input {text}: {path} holds {len(arrays)} arrays; give the file without NAME="
            )
        else:
            new = {name or next(iter(known)): next(iter(arrays.values()))}
        if twice := sorted(set(new) & set(found)):
            raise UsageError(f"--input {text}: {twice} given twice")
        found |= new
    return found


def _split(text: str, known: Mapping[str, Any]) -> tuple[str | None, Path]:
    """The name and the path. Both may contain "=", so the longest known name wins."""
    for name in sorted(known, key=len, reverse=True):
        if text.startswith(f"{name}="):
            return name, Path(text[len(name) + 1 :])
    if Path(text).exists() or "=" not in text:
        return None, Path(text)
    raise UsageError(
        f"--input {text}: the model has no input {text.partition('=')[0]!r}; it has {sorted(known)}"
    )


def _read(path: Path, entry: Mapping[str, Any] | None) -> dict[str, Array]:
    """The file's arrays by name; an array without a name is under ""."""
    try:
        if path.suffix == ".json":
            if entry is None:
                raise UsageError(f"--input {path}: name the input it is for: --input NAME={path}")
            return {"": array_from_lists(json.loads(path.read_text()), entry, f"--input {path}")}
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"": loaded}
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except OSError as error:
        raise UsageError(f"--input {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError, zipfile.BadZipFile, EOFError) as error:
        raise UsageError(
            f"--input {path}: is not a .npy, .npz or .json file of numbers or texts, or a picture ({error})"
        ) from error


def array_from_lists(data: Any, entry: Mapping[str, Any], where: str) -> Array:
    """The array that nested lists hold, in the datatype of the input that `entry` describes. Raises RequestError, which
    begins with `where`, if they hold something else."""
    shape = np.shape(np.array(data, dtype=object)) if not isinstance(data, list) else _extents(data)
    datatype = str(entry["datatype"])
    flat = data if isinstance(data, list) else [data]
    if datatype in BINARY_ONLY:
        return array_from_json(flat, "FP32", shape, where).astype(numpy_dtype(datatype))
    return array_from_json(flat, datatype, shape, where)


def _extents(data: Any) -> tuple[int, ...]:
    found: list[int] = []
    while isinstance(data, list):
        found.append(len(data))
        data = data[0] if data else None
    return tuple(found)


def bound_metadata(metadata: Mapping[str, Any], card: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata with the shapes that the deployment was planned for first in place of free dimensions."""
    first: Mapping[str, Any] = next((bound["shapes"] for bound in card.get("bindings") or ()), {})
    inputs = [entry | {"shape": first.get(entry["name"], entry["shape"])} for entry in metadata["inputs"]]
    return {**metadata, "inputs": inputs}


def glance(array: Array) -> str:
    """The first values of an array, in a line."""
    values = [f"{v:.5g}" if isinstance(v, float) else str(v)[:200] for v in array.ravel()[:SHOWN].tolist()]
    return ", ".join(values) + (", ..." if array.size > SHOWN else "")


def random_inputs(metadata: Mapping[str, Any], seed: int) -> dict[str, Array]:
    """An array for each input; free dimensions are 1. Whole numbers are 0 or 1, because they are often indices."""
    draw = np.random.default_rng(seed)
    made: dict[str, Array] = {}
    for entry in metadata["inputs"]:
        datatype = entry["datatype"]
        if datatype not in DATATYPES:
            raise UsageError(f"input {entry['name']!r} is {datatype}, which clients cannot send")
        shape = tuple(max(extent, 1) if extent < 0 else extent for extent in entry["shape"])
        if datatype == "BYTES":
            made[entry["name"]] = np.full(shape, "a", dtype=object)
        elif numpy_dtype(datatype).kind in "biu":
            made[entry["name"]] = draw.integers(0, 2, shape).astype(numpy_dtype(datatype))
        else:
            made[entry["name"]] = draw.standard_normal(shape, dtype=np.float32).astype(numpy_dtype(datatype))
    return made


def plain(array: Array) -> Any:
    """The array as nested lists. NaN and infinities, which JSON lacks, become texts ("nan", "inf", "-inf")."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        wide = array.astype(np.float64)
        return np.where(np.isfinite(wide), wide, wide.astype("U8").astype(object)).tolist()
    if array.dtype.kind not in "OUSfiub":
        return array.astype(np.float32).tolist()
    return array.tolist()


def largest_difference(a: Mapping[str, Array], b: Mapping[str, Array]) -> float:
    """The largest distance between two numbers in the same place of `a` and `b`. Arrays of other values, or of different
    shapes, differ by 0 if they are equal, else by infinity."""
    worst = 0.0
    for name in a:
        x, y = a[name], b[name]
        if x.shape != y.shape or x.dtype.kind in "OUSb":
            worst = max(worst, 0.0 if np.array_equal(x, y) else float("inf"))
            continue
        left, right = x.astype(np.float64), y.astype(np.float64)
        same = (left == right) | (np.isnan(left) & np.isnan(right))
        with np.errstate(invalid="ignore"):
            apart = np.where(same, 0.0, np.abs(left - right))
        worst = max(worst, float(np.where(np.isnan(apart), np.inf, apart).max(initial=0.0)))
    return worst
