"""What is written runs: every schedule is followed by the program that goes with it, with no sockets between them."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from benchmarks.models.light import light
from onnx import helper

from edgepart.agent.standalone import folder as standalone
from edgepart.agent.standalone.folder import write_folder
from edgepart.agent.standalone.segment_files import write_segment
from edgepart.agent.verify.reference import run_alone
from edgepart.agent.verify.rehearsal import Rehearsal
from edgepart.agent.verify.same_answer import differences
from edgepart.agent.verify.sample_inputs import random_inputs
from edgepart.planner.errors import EdgepartError, ModelError, UsageError
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.planner import choose_plan
from edgepart.planner.plans.plan import GATEWAY, KeptState, Plan
from tests.agent.verify.test_local_run import Infos
from tests.agent.verify.test_local_run import model as small
from tests.planner.plans.test_join import among
from tests.planner.small_models import quantised, residual


def divided(graph: Graph, axis: str | None) -> Plan:
    return Rehearsal(graph).divide(axis).devices.plan


def write(plan: Plan, graph: Graph, folder: Path) -> Path:
    write_folder(plan, graph, folder, addresses={}, threads=dict.fromkeys(plan.programs, 1))
    return folder


def program_of(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("exported_run", folder / "run.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.PLAN.update(json.loads((folder / "plan.json").read_text()))
    return module


def answer(folder: Path, inputs: dict[str, Any], group: int = 0) -> dict[str, Any]:
    """What the exported program computes, all devices in this process."""
    runs = program_of(folder)
    here = runs.PLAN["groups"][group]
    parts = {name: runs.Request("") for name in (None, *here["devices"])}
    failed: list[BaseException] = []

    def send(target: str | None, name: str, array: Any) -> None:
        parts[target].mail.put((name, np.array(array)))

    def follow(device: str) -> None:
        at = folder / runs.PLAN["devices"][device]["folder"]
        steps = runs.json.loads((at / "schedule.json").read_text())["steps"]
        held: dict[str, Any] = {}
        try:
            parts[device].follow(steps, held, {file.name: runs.load(file, 1) for file in at.glob("*.onnx")})
            assert not held, "all that no step needs is dropped"
        except BaseException as error:  # noqa: BLE001 - the test fails with it
            failed.append(error)
            parts[None].mail.put((runs.FAULT, repr(error)))

    for part in parts.values():
        part.send = send
    threads = [Thread(target=follow, args=(device,)) for device in here["devices"]]
    for thread in threads:
        thread.start()
    held = {**inputs, **{name: np.load(folder / file) for name, file in runs.PLAN["constants"].items()}}
    parts[None].follow(here["steps"], held, {})
    for thread in threads:
        thread.join(60)
    assert not failed
    return {name: held[value] for name, value in here["outputs"].items()}


def check(source: bytes | Path, plan: Plan, graph: Graph, folder: Path) -> None:
    inputs = random_inputs(graph)
    write(plan, graph, folder)
    for group in range(len(plan.parts)):
        assert not differences(answer(folder, inputs, group), run_alone(source, inputs))


@pytest.mark.parametrize("axis", ["channel", "height", "width", "inner", None])
def test_every_division_of_a_network_runs_from_its_files(axis: str | None, tmp_path: Path) -> None:
    source = residual(rows=12, channels=4)
    graph = load_graph(source)
    check(source, divided(graph, axis), graph, tmp_path / "out")


def test_products_of_integers_are_exact(tmp_path: Path) -> None:
    graph = load_graph(quantised())
    check(quantised(), divided(graph, "height"), graph, tmp_path / "out")


@pytest.mark.parametrize("strategy", ["auto", "single"])
def test_copies_of_a_model_and_a_single_device(strategy: str, tmp_path: Path) -> None:
    source = light("squeezenet")
    graph = load_graph(source)
    problem = Problem(graph, among(1e9, 1e9), "d0", "throughput", search_budget_s=1.0)
    plan = choose_plan(problem, strategy)[0]
    assert len(plan.parts) == (2 if strategy == "auto" else 1)
    check(source, plan, graph, tmp_path / "out")


def test_constant_outputs_scalars_and_what_has_no_elements(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["s"], ["t"])]
    shapes: Infos = {"x": (1, (0, 3)), "s": (1, ())}
    outputs: Infos = {"y": (1, (0, 3)), "t": (1, ()), "w": (1, (2,)), "s": (1, ())}
    source = small(nodes, shapes, outputs, {"w": np.array([1, 2], np.float32)})
    graph = load_graph(source)
    check(source, divided(graph, None), graph, tmp_path / "out")


def branching(*, counts: bool) -> bytes:
    """A branch; if it `counts`, then values whose shapes are known at run time only."""

    def branch(op: str) -> onnx.GraphProto:
        made = helper.make_tensor_value_info("b", 1, None)
        return helper.make_graph([helper.make_node(op, ["r"], ["b"])], op, [], [made])

    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("If", ["c"], ["i"], then_branch=branch("Neg"), else_branch=branch("Exp")),
        helper.make_node("NonZero", ["i"], ["n"]),
        helper.make_node("Cast", ["n"], ["f"], to=1),
        helper.make_node("ReduceSum", ["f" if counts else "i"], ["y"], keepdims=0),
    ]
    return small(
        nodes if counts else [*nodes[:2], nodes[-1]], {"x": (1, (6, 4)), "c": (9, ())}, {"y": (1, ())}
    )


def test_branches_and_shapes_known_at_run_time_only(tmp_path: Path) -> None:
    source = branching(counts=True)
    graph = load_graph(source)
    check(source, divided(graph, None), graph, tmp_path / "out")


@pytest.mark.parametrize("source", [residual(rows=12, channels=4), quantised(), branching(counts=False)])
def test_each_file_is_a_model_that_the_checker_accepts(source: bytes, tmp_path: Path) -> None:
    graph = load_graph(source)
    plan = divided(graph, None)
    files = sorted(write(plan, graph, tmp_path / "out").glob("*/*.onnx"))
    assert len(files) == sum(len(program.segments) for program in plan.programs.values())
    for file in files:
        onnx.checker.check_model(str(file), full_check=True)
        assert not any(tensor.external_data for tensor in onnx.load(file).graph.initializer)


def test_weights_of_a_large_model_lie_beside_it(tmp_path: Path) -> None:
    source = residual(rows=12, channels=4)
    graph = load_graph(source)
    segments = [one for program in divided(graph, None).programs.values() for one in program.segments]
    segment = max(segments, key=lambda one: len(one.weights))
    assert segment.weights
    inside, beside = tmp_path / "inside.onnx", tmp_path / "beside.onnx"
    write_segment(segment, graph, inside)
    write_segment(segment, graph, beside, largest_bytes=100)
    assert (tmp_path / "beside.onnx.data").exists() and not (tmp_path / "inside.onnx.data").exists()
    onnx.checker.check_model(str(beside), full_check=True)
    for one, two in zip(
        onnx.load(inside).graph.initializer, onnx.load(beside).graph.initializer, strict=True
    ):
        assert np.array_equal(onnx.numpy_helper.to_array(one), onnx.numpy_helper.to_array(two))


def test_the_same_plan_gives_the_same_bytes(tmp_path: Path) -> None:
    graph = load_graph(residual(rows=12, channels=4))
    plan = divided(graph, "height")
    first, second = (write(plan, graph, tmp_path / name) for name in ("one", "two"))
    names = sorted(file.relative_to(first) for file in first.rglob("*") if file.is_file())
    assert names == sorted(file.relative_to(second) for file in second.rglob("*") if file.is_file())
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names)


# What is refused


def test_what_is_there_stays(tmp_path: Path) -> None:
    graph = load_graph(residual(rows=12, channels=4))
    plan = divided(graph, None)
    (tmp_path / "out").mkdir()
    write(plan, graph, tmp_path / "out")  # An empty folder is free.
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match="not empty"):
        write(plan, graph, tmp_path / "out")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        write(plan, graph, tmp_path / "file")
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "file"])


@contextmanager
def broken(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> Iterator[None]:
    """Writing the second segment fails."""
    written: list[Path] = []

    def write_one(segment: Any, graph: Graph, path: Path) -> None:
        if written:
            raise error
        written.append(path)
        write_segment(segment, graph, path)

    with monkeypatch.context() as patched:
        patched.setattr(standalone, "write_segment", write_one)
        yield


@pytest.mark.parametrize(
    ("error", "raised"), [(OSError(28, "No space left"), UsageError), (KeyboardInterrupt(),) * 2]
)
def test_nothing_is_left_of_what_was_not_finished(
    error: BaseException, raised: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = load_graph(residual(rows=12, channels=4))
    plan = divided(graph, None)
    kind = raised if isinstance(raised, type) else type(raised)
    with broken(monkeypatch, error), pytest.raises(kind):
        write(plan, graph, tmp_path / "deeper" / "out")
    assert not list((tmp_path / "deeper").iterdir())


def test_what_the_files_cannot_say_is_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", ["words"], ["same"])]
    strings = load_graph(small(nodes, {"words": (8, (2,))}, {"same": (8, (2,))}))
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=16)]
    bfloat = load_graph(small(nodes, {"x": (1, (3, 5))}, {"y": (16, (3, 5))}))
    said: list[tuple[Graph, type[EdgepartError], str]] = [
        (strings, ModelError, "'words' is of type string.*edgepart deploy"),
        (bfloat, ModelError, "'y' is of type bfloat16"),
    ]
    plain = load_graph(residual(rows=12, channels=4))
    plan = divided(plain, "height")
    keeping = replace(plan, states=(KeptState(plan.inputs[0], plan.outputs[0].name),))
    travels = next(one for one in plan.transfers if GATEWAY not in (one.source, one.target))
    half = replace(travels, dtypes=("float16",) * len(travels.pieces))
    rounded = replace(plan, transfers=tuple(half if one == travels else one for one in plan.transfers))
    for graph, error, text in said:
        with pytest.raises(error, match=text):
            write(divided(graph, None), graph, tmp_path / "out")
    with pytest.raises(ModelError, match="keeps states between requests"):
        write(keeping, plain, tmp_path / "out")
    with pytest.raises(UsageError, match="to float16"):
        write(rounded, plain, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_addresses_are_checked_and_written_down(tmp_path: Path) -> None:
    graph = load_graph(residual(rows=12, channels=4))
    plan = divided(graph, None)
    first = next(iter(plan.programs))
    for wrong in ({"nobody": "h:1"}, {first: "7440"}, {first: "h:0"}, {first: "h:x"}):
        with pytest.raises(UsageError, match="address of"):
            write_folder(
                plan, graph, tmp_path / "out", addresses=wrong, threads=dict.fromkeys(plan.programs, 1)
            )
    given = {first: "192.168.1.10:99"}
    write_folder(plan, graph, tmp_path / "out", addresses=given, threads=dict.fromkeys(plan.programs, 2))
    devices = program_of(tmp_path / "out").PLAN["devices"]
    assert devices[first]["address"] == given[first] and devices[first]["threads"] == 2
    assert all(one["address"] == f"{name}:7440" for name, one in devices.items() if name != first)
    assert given[first] in (tmp_path / "out/README.txt").read_text()
