"""Offline planning: `edgepart.plan` predicts a plan without any cluster, and `edgepart.export` writes it as files that run
without edgepart. Both are given a model, a cluster.json, and the options of `edgepart plan`. Door: it reads and writes
files and has a clock.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgepart.client.model_files import check_there
from edgepart.planner.errors import UsageError
from edgepart.planner.figures import format_seconds
from edgepart.planner.json_text import parse_json
from edgepart.planner.vocabulary import OBJECTIVES, STRATEGIES, check_word

if TYPE_CHECKING:
    from edgepart.planner.devices.cluster import Cluster
    from edgepart.planner.layout.strategy import Problem, Strategy
    from edgepart.planner.plans.plan import Plan
    from edgepart.planner.simulation.latency import Simulation
    from edgepart.planner.tdl.description import OperatorDescription

SEARCH_S = 10.0
"""About how many seconds the search may take, if the caller does not say."""


@dataclass(frozen=True)
class Forecast:
    """A plan, and what it promises."""

    plan: Plan
    simulation: Simulation
    strategy: Strategy
    document: dict[str, Any]
    """What `edgepart plan --json` prints."""
    problem: Problem = field(repr=False)
    """What was planned: the model and the cluster."""

    @property
    def latency_s(self) -> float:
        """Predicted seconds for one request."""
        return float(self.document["predicted_latency_s"])

    @property
    def throughput_per_s(self) -> float | None:
        """Predicted requests a second with many under way; None if no device computes anything."""
        found = self.document["predicted_throughput_per_s"]
        return None if found is None else float(found)

    @property
    def best_single(self) -> tuple[str, float] | None:
        """The best single device, and its seconds for one request; None if the model fits on no device."""
        found = self.document["baselines"]["single"]
        return None if found is None else (found["device"], found["predicted_latency_s"])

    @property
    def why(self) -> str:
        """Why the plan is as it is."""
        return str(self.document["why"])

    def __str__(self) -> str:
        named = f"{self.document['model']} · {self.document['strategy']}"
        return f"{named}: {format_seconds(self.latency_s, 4)} a request. {self.why}"


def plan(
    model: str | Path,
    cluster: str | Path | Mapping[str, Any] | Cluster,
    *,
    strategy: str = "auto",
    objective: str = "latency",
    axis: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    devices: Sequence[str] = (),
    gateway: str | None = None,
    memory_limit_bytes: float | Mapping[str, float] | None = None,
    search_budget_s: float = SEARCH_S,
    transfer_dtype: str = "float32",
    borders_first: bool = False,
    relays: bool = False,
    fusion: bool = True,
    operators: Sequence[OperatorDescription] = (),
) -> Forecast:
    """The plan that is predicted for an .onnx file on a cluster. The options are those of `edgepart plan`.

    `cluster` is a cluster.json: its path, its document (as `client.devices()` gives it), or a planner's Cluster.
    `memory_limit_bytes` is the most memory of each device, or of those named. `operators` are descriptions of the model's
    own operators (`edgepart.tdl`). Raises UsageError for a wrong option, ModelError for a model that cannot be used, and
    Infeasible if no plan fits."""
    from edgepart.planner.plans.reduced_precision import check_kind

    check_word(strategy, STRATEGIES, "strategy")
    if not search_budget_s > 0:
        raise UsageError(f"search_budget_s {search_budget_s}: give a positive number of seconds")
    found, entry = as_cluster(cluster, "cluster")
    names = tuple(devices) or tuple(device.name for device in found.devices)
    problem = problem_of(
        Path(model),
        found,
        shapes={name: tuple(shape) for name, shape in (shapes or {}).items()},
        devices=names,
        gateway=gateway or (entry if entry in names else names[0]),
        objective=check_word(objective, OBJECTIVES, "objective"),
        axis=axis,
        memory_limit_bytes=_limits(memory_limit_bytes, names),
        search_budget_s=search_budget_s,
        operators=operators,
    )
    rounding = check_kind(transfer_dtype, "transfer_dtype")
    problem = replace(
        problem, borders_first=borders_first, relays=relays, transfer_dtype=rounding, fusion=fusion
    )
    return forecast(problem, strategy)


def export(
    model: str | Path,
    cluster: str | Path | Mapping[str, Any] | Cluster,
    folder: str | Path,
    *,
    addresses: Mapping[str, str] | None = None,
    **options: Any,
) -> Forecast:
    """Write the plan for an .onnx file on a cluster as files that need edgepart no longer, into a folder that is empty or
    not there: ONNX models and a schedule for each device, and a program that runs them with onnxruntime and numpy.

    The options are those of `plan`, without `transfer_dtype`. Engines are not used: the plan is made for the devices' CPUs.
    `addresses` says where devices listen, as HOST:PORT by device. Raises UsageError and ModelError, also if the plan is
    more than such files can say, and Infeasible; nothing is written then."""
    if "transfer_dtype" in options:
        raise UsageError("transfer_dtype: what is exported rounds nothing; leave it out")
    found, entry = as_cluster(cluster, "cluster")
    names = tuple(options.get("devices", ())) or tuple(device.name for device in found.devices)
    gateway = options.pop("gateway", None) or (entry if entry in names else names[0])
    check_folder(Path(folder))
    made = plan(model, found.without_engines(), gateway=gateway, **options)
    write_export(made, Path(folder), addresses or {})
    return made


def check_folder(folder: Path) -> None:
    """Raises UsageError if something is in the folder that `write_export` would have to replace."""
    from edgepart.agent.standalone.folder import check_free

    check_free(folder)


def write_export(made: Forecast, folder: Path, addresses: Mapping[str, str]) -> None:
    """Write a plan as `export` does. Raises UsageError, and ModelError if the plan is more than such files can say."""
    from edgepart.agent.standalone.folder import write_folder

    threads = {device.name: device.threads for device in made.problem.cluster.devices}
    write_folder(made.plan, made.problem.graph, folder, addresses=addresses, threads=threads)


def problem_of(
    model: Path,
    cluster: Cluster,
    *,
    shapes: Mapping[str, tuple[int, ...]],
    devices: Sequence[str],
    gateway: str,
    objective: str,
    axis: str | None,
    memory_limit_bytes: Mapping[str, float],
    search_budget_s: float,
    operators: Sequence[OperatorDescription] = (),
) -> Problem:
    """The planning problem on these devices of the cluster. Raises ModelError, and UsageError for an unknown device, or a
    description that fits no operator."""
    from edgepart.agent.engines.networks import networks_of
    from edgepart.planner.access import check_described
    from edgepart.planner.layout.strategy import Problem
    from edgepart.planner.model.assumed_shapes import load_with_likely_shapes

    check_there(model)
    found = cluster.only(tuple(devices))
    graph, _ = load_with_likely_shapes(model, dict(shapes), operators)
    check_described(graph, operators)
    limits = dict(memory_limit_bytes)
    return Problem(
        graph,
        found,
        gateway,
        objective,
        axis,
        limits,
        search_budget_s,
        clock=time.perf_counter,
        networks=networks_of({}),
    )


def forecast(problem: Problem, strategy_name: str) -> Forecast:
    """The best plan of a strategy, and its document. Raises Infeasible if no plan fits."""
    from edgepart.planner.planner import best_single_device, choose_plan
    from edgepart.planner.report.document import plan_document
    from edgepart.planner.search.study import Study

    study = Study(problem)
    began = time.perf_counter()
    made, simulation, strategy = choose_plan(problem, strategy_name, study=study)
    document = plan_document(
        made,
        simulation,
        graph=problem.graph,
        strategy=strategy,
        search_s=time.perf_counter() - began,
        single=best_single_device(study),
    )
    return Forecast(made, simulation, strategy, document, problem)


def as_cluster(given: str | Path | Mapping[str, Any] | Cluster, where: str) -> tuple[Cluster, str]:
    """The cluster, and the gateway that it names: "" if it names none. Raises UsageError, which says what is wrong with the
    file, and begins with `where`."""
    from edgepart.planner.devices.cluster import Cluster
    from edgepart.planner.devices.cluster_json import cluster_from_json

    if isinstance(given, Cluster):
        return given, ""
    if isinstance(given, Mapping):
        return cluster_from_json(given), str(given.get("gateway") or "")
    try:
        document = parse_json(Path(given).read_text())
    except OSError as error:
        raise UsageError(f"{where} {given}: {error.strerror}; give the path of a cluster.json") from error
    except ValueError as error:
        raise UsageError(f"{where} {given}: is not JSON ({error})") from error
    return cluster_from_json(document), str(document.get("gateway") or "")


def _limits(given: float | Mapping[str, float] | None, names: Sequence[str]) -> dict[str, float]:
    """The limits in bytes, by device. Raises UsageError for an unknown device."""
    limits = given if isinstance(given, Mapping) else {} if given is None else dict.fromkeys(names, given)
    for name, size in limits.items():
        if name not in names:
            raise UsageError(f"memory_limit_bytes: no device {name!r} among {', '.join(names)}")
        if not size > 0:
            raise UsageError(f"memory_limit_bytes {size}: give a positive number of bytes")
    return {name: float(size) for name, size in limits.items()}
