"""The inputs of `edgepart plan`: the model, cluster.json, and the options that describe the planning problem.

Door: it reads files, and measures this machine if no cluster is given.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgepart.cli.options import check_there
from edgepart.planner.errors import UsageError
from edgepart.planner.json_text import parse_json

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
) -> Problem:
    """The planning problem that the options describe. Raises UsageError for wrong options, and ModelError for a wrong
    model."""
    from edgepart.planner.layout.strategy import Problem
    from edgepart.planner.model.assumed_shapes import load_with_likely_shapes

    check_there(model)
    bound = dict(shape_option(text) for text in shapes)
    found, entry = read_cluster(cluster)
    if devices:
        found = found.only(tuple(name.strip() for name in devices.split(",") if name.strip()))
    names = [device.name for device in found.devices]
    graph, _ = load_with_likely_shapes(model, bound)
    entry = gateway or (entry if entry in names else names[0])
    return Problem(graph, found, entry, objective, axis, limits_option(limits, names), budget)


def read_cluster(path: Path | None) -> tuple[Cluster, str]:
    """The cluster of a cluster.json, and the gateway that it names ("" if it names none). Without a file, this machine is
    measured. Raises UsageError, which says what is wrong with the file."""
    from edgepart.planner.devices.cluster import Cluster, cluster_from_json

    if path is None:
        import os
        import platform

        from edgepart.agent.measure.probe import probe_device

        print("without --cluster, the plan is for this machine alone, which is measured now", file=sys.stderr)
        return Cluster((probe_device(platform.node() or "here", os.cpu_count() or 1),)), ""
    try:
        document = parse_json(path.read_text())
        return cluster_from_json(document), str(document.get("gateway") or "")
    except OSError as error:
        raise UsageError(f"--cluster {path}: {error.strerror}; give the path of a cluster.json") from error
    except ValueError as error:
        raise UsageError(f"--cluster {path}: is not JSON ({error})") from error


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
