"""The folder of a plan's stand-alone form. Door: files. It is there whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgepart.agent.standalone.documents import (
    addresses_of,
    check_expressible,
    folder_names,
    plan_document,
    readme,
)
from edgepart.agent.standalone.segment_files import write_segment
from edgepart.agent.standalone.steps import device_steps
from edgepart.planner.errors import UsageError
from edgepart.planner.model.graph import Graph
from edgepart.planner.plans.plan import Plan, Program

RUNNER = Path(__file__).with_name("run.py")


def check_free(folder: Path) -> None:
    """Raises UsageError if something is there that would be lost."""
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise UsageError(
            f"{folder} is there and not empty: give another folder, or remove it first. Nothing was written"
        )


def write_folder(
    plan: Plan,
    graph: Graph,
    folder: Path,
    *,
    addresses: Mapping[str, str],
    threads: Mapping[str, int],
) -> None:
    """Write the plan's files. `graph` is the one for which the plan was made; `addresses` are by device, as HOST:PORT, and
    devices without one are reached by their names. `threads` are those of a session, for each device of the cluster.

    Raises UsageError if the folder is not empty or cannot be written, and ModelError or UsageError if the plan is more than
    such files can say; nothing is left behind then."""
    check_free(folder)
    check_expressible(plan, graph)
    reached = addresses_of(plan.programs, addresses, threads)
    at = folder.absolute()
    try:
        at.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{at.name}-", dir=at.parent))
    except OSError as error:
        raise UsageError(f"{folder} cannot be made ({error}). Nothing was written") from error
    try:
        _write(plan, graph, unfinished, reached, threads)
        unfinished.chmod(0o755)  # What mkdtemp makes is for its owner alone.
        os.rename(unfinished, at)  # It may replace an empty folder.
    except OSError as error:
        raise UsageError(f"{folder} cannot be written ({error}). Nothing is left of it") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _write(
    plan: Plan, graph: Graph, at: Path, addresses: Mapping[str, str], threads: Mapping[str, int]
) -> None:
    folders = folder_names(plan.programs)
    for name, program in plan.programs.items():
        (at / folders[name]).mkdir()
        _write_device(plan, program, graph, at / folders[name])
    constants: dict[str, str] = {}
    for name in plan.constant_outputs:
        if name in graph.constants:
            constants[name] = f"constant-{len(constants)}.npy"
            np.save(at / constants[name], graph.constants[name].load(), allow_pickle=False)
    document = plan_document(plan, graph, folders, addresses, threads, constants)
    _write_json(at / "plan.json", document)
    (at / "README.txt").write_text(readme(plan, graph, folders, addresses))
    shutil.copyfile(RUNNER, at / "run.py")


def _write_device(plan: Plan, program: Program, graph: Graph, at: Path) -> None:
    models = [f"segment-{number:03}.onnx" for number in range(len(program.segments))]
    for model, segment in zip(models, program.segments, strict=True):
        write_segment(segment, graph, at / model)
    steps = device_steps(program, plan.transfers, models)
    _write_json(at / "schedule.json", {"device": program.device, "steps": steps})


def _write_json(path: Path, document: Any) -> None:
    """A document with a line for each step, transfer and device, so that people can read it and compare two of them."""
    path.write_text(_laid_out(document) + "\n")


def _laid_out(document: Any, depth: int = 0) -> str:
    if depth == 2 or not isinstance(document, dict | list) or not document:
        return json.dumps(document)
    inner, outer = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(document, list):
        return "[" + ",".join(inner + _laid_out(one, depth + 1) for one in document) + outer + "]"
    rows = (inner + json.dumps(key) + ": " + _laid_out(one, depth + 1) for key, one in document.items())
    return "{" + ",".join(rows) + outer + "}"
