"""The inputs of `edgepart plan`: the model, cluster.json, and the options that describe the planning problem.

Door: it reads files, and measures this machine if no cluster is given.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgepart.cli.sources.operators import read_operators
from edgepart.client.offline import as_cluster
from edgepart.client.offline import problem_of as make_problem
from edgepart.planner.errors import UsageError

if TYPE_CHECKING:
    from edgepart.planner.devices.cluster import Cluster
    from edgepart.planner.layout.strategy import Problem

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def problem_of(
    model: Path,
    cluster: Path | None,
    shapes: Sequence[str],
    devices: str | None,
    gateway: str | None,
    limits: Sequence[str],
    objective: str,
    axis: str | None,
    budget: float,
    operators: Path | None,
    *,
    borders_first: bool,
    relays: bool,
    fusion: bool,
) -> Problem:
    """The planning problem that the options describe. Raises UsageError for wrong options, and ModelError for a wrong
    model."""
    found, entry = read_cluster(cluster)
    bound = dict(shape_option(text) for text in shapes)
    chosen = [name.strip() for name in (devices or "").split(",") if name.strip()]
    names = chosen or [device.name for device in found.devices]
    problem = make_problem(
        model,
        found,
        shapes=bound,
        devices=names,
        gateway=gateway or (entry if entry in names else names[0]),
        objective=objective,
        axis=axis,
        memory_limit_bytes=limits_option(limits, names),
        search_budget_s=budget,
        operators=read_operators(operators),
    )
    return replace(problem, borders_first=borders_first, relays=relays, fusion=fusion)


def read_cluster(path: Path | None) -> tuple[Cluster, str]:
    """The cluster of a cluster.json, and the gateway that it names ("" if it names none). Without a file, this machine is
    measured. Raises UsageError, which says what is wrong with the file."""
    if path is not None:
        return as_cluster(path, "--cluster")
    import os
    import platform

    from edgepart.agent.measure.probe import probe_device
    from edgepart.planner.devices.cluster import Cluster

    print("without --cluster, the plan is for this machine alone, which is measured now", file=sys.stderr)
    return Cluster((probe_device(platform.node() or "here", os.cpu_count() or 1),)), ""


def shape_option(text: str) -> tuple[str, tuple[int, ...]]:
    """The input's name and its shape.

    >>> shape_option("x=1,3,224,224")
    ('x', (1, 3, 224, 224))
    """
    name, equals, extents = text.rpartition("=")
    if not equals or not name or not re.fullmatch(r"\s*(\d+(\s*,\s*\d+)*)?\s*", extents):
        raise UsageError(f"--shape {text!r}: write it as INPUT=1,3,224,224")
    return name, tuple(int(extent) for extent in extents.split(",") if extent.strip())


def limits_option(texts: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """The limits in bytes, by device; a limit without a name is for all devices. Raises UsageError for a wrong size or an
    unknown device."""
    found: dict[str, float] = {}
    for text in texts:
        name, _, size = text.rpartition("=")
        if name and name not in names:
            raise UsageError(f"--memory-limit {text!r}: no device {name!r} among {', '.join(names)}")
        found.update({device: bytes_option(size) for device in ([name] if name else names)})
    return found


def bytes_option(text: str) -> float:
    """A size in bytes.

    >>> bytes_option("1.5G")
    1610612736.0
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if not match:
        raise UsageError(f"--memory-limit {text!r}: write bytes, or a number with K, M, G or T, such as 512M")
    return float(match[1]) * UNITS[match[2].upper()]
