"""Engine trials: a segment is compared on its engine with the CPU, and whatever the engine does is a verdict. Real
processes with an engine that is made up; its faults are real."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgepart.agent.engines.verdicts import (
    ADMITTED,
    CRASHES,
    FAILS,
    HANGS,
    LIES,
    SLOWER,
    EngineVerdict,
    VerdictBook,
)
from edgepart.agent.execution.prepared import LoadUrgency
from edgepart.agent.storage.store import Store
from edgepart.agent.verify.admitted_programs import AdmittedPrograms
from edgepart.agent.verify.engine_trial import tolerance_of_segment
from edgepart.agent.verify.engine_trials import EngineTrials
from edgepart.agent.verify.same_answer import TOLERANCE_FLOAT16, TOLERANCE_QUANTISED
from edgepart.planner.errors import Unavailable
from edgepart.planner.plans.plan import Piece, Port, Program, Segment
from edgepart.planner.region import Region
from tests.agent import handmade
from tests.lab_engine import LAB, give_lab_engine


@pytest.fixture
def trials(tmp_path: Path) -> Iterator[EngineTrials]:
    store = Store(tmp_path / "store")
    for name in ("w1", "w2."):
        store.put_bytes(handmade.weight(name).tobytes())
    made = EngineTrials(store.root, 1)
    yield made
    made.stop()


def on_lab(one: Segment) -> Segment:
    return replace(one, engine=LAB)


def convolution() -> Segment:
    return on_lab(handmade.split_plan().programs["a"].segments[0])


def operator(op_type: str, dtype: int = TensorProto.FLOAT, **how: Any) -> Segment:
    x, y = (Port(name, Piece(name, Region.full((2, 3)))) for name in "xy")
    return on_lab(handmade.segment([helper.make_node(op_type, ["x"], ["y"], **how)], [x], [y], dtype=dtype))


@pytest.mark.parametrize(
    ("engine", "outcome", "why"),
    [
        ("lab", ADMITTED, "off by 0 of the largest magnitude"),
        ("lab,crashes=Conv", CRASHES, "it ended its process with signal SIGABRT"),
        ("lab,hangs=Conv", HANGS, "it gave no answer within 8 s"),
        ("lab,lies=Conv", LIES, "of its largest magnitude"),
        ("lab,lies=Conv@2", LIES, "of its largest magnitude"),
        ("lab,fails=Conv", FAILS, "LabExecutionProvider failed on purpose"),
        ("lab,lacks=Conv", FAILS, "LabExecutionProvider does not take Conv"),
        ("other", FAILS, "the onnxruntime that is installed here has no LabExecutionProvider"),
    ],
)
def test_what_an_engine_does_is_its_verdict(
    tmp_path: Path, trials: EngineTrials, monkeypatch: pytest.MonkeyPatch, engine: str, outcome: str, why: str
) -> None:
    give_lab_engine(monkeypatch, engine)
    trials._limit_s = 8.0
    segment = convolution()
    found = trials.verdict(segment)
    assert (found.engine, found.segment, found.outcome) == (LAB, segment.digest, outcome)
    assert why in found.why
    healthy = trials.verdict(operator("Neg"))  # What one segment did to the process, it does to no other.
    assert healthy.outcome == (FAILS if engine == "other" else ADMITTED)


def test_the_operators_that_an_engine_leaves_to_the_cpu_are_named(
    trials: EngineTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_lab_engine(monkeypatch, "lab,lacks=Abs|Neg")
    found = trials.verdict(operator("Abs", name="Abs_0"))
    assert (found.outcome, found.lacks) == (FAILS, ("Abs_0",))
    assert trials.verdict(operator("Sqrt", name="Sqrt_0")).lacks == ()


def test_integers_can_be_made_up(trials: EngineTrials, monkeypatch: pytest.MonkeyPatch) -> None:
    give_lab_engine(monkeypatch, "lab")
    assert trials.verdict(operator("Abs", TensorProto.INT64)).outcome == ADMITTED


def test_a_segment_that_the_cpu_cannot_run_is_not_given_to_an_engine(
    trials: EngineTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_lab_engine(monkeypatch, "lab")
    found = trials.verdict(operator("Reshape"))
    assert found.outcome == FAILS and "it cannot be compared with the CPU" in found.why


def test_an_answer_that_is_random_cannot_be_compared(
    trials: EngineTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_lab_engine(monkeypatch, "lab")
    found = trials.verdict(operator("RandomNormalLike"))
    assert found.outcome == FAILS and "cannot be compared" in found.why


def test_trials_that_were_stopped_blame_nobody(trials: EngineTrials, monkeypatch: pytest.MonkeyPatch) -> None:
    trials.stop()
    with pytest.raises(Unavailable):
        trials.verdict(convolution())


@pytest.mark.parametrize(
    ("nodes", "precision", "tolerance"),
    [
        ([("Relu", {})], "float32", None),
        ([("Relu", {})], "tf32", TOLERANCE_FLOAT16),
        ([("Cast", {"to": TensorProto.FLOAT16})], "float32", TOLERANCE_FLOAT16),
        ([("DequantizeLinear", {}), ("Relu", {})], "float32", TOLERANCE_QUANTISED),
    ],
)
def test_what_a_segment_rounds_decides_how_far_it_may_be_off(
    nodes: list[tuple[str, dict[str, Any]]], precision: str, tolerance: float | None
) -> None:
    made = [helper.make_node(op_type, ["x"], ["y"], **how) for op_type, how in nodes]
    model = onnx.ModelProto(graph=helper.make_graph(made, "g", [], []))
    assert tolerance_of_segment(model, precision) == tolerance


class FakeLoader:
    """Remembers what it was to load."""

    def __init__(self) -> None:
        self.loaded: list[Program] = []

    def prepare(
        self,
        deployment: str,
        model: str,
        program: Program,
        transfers: Any,
        *,
        urgency: LoadUrgency = LoadUrgency.COMING,
    ) -> Any:
        self.loaded.append(program)

    def release(self, prepared: Any) -> None: ...

    def getting_ready(self, deployment: str, model: str) -> AbstractContextManager[None]:
        return nullcontext()

    def abandon(self, deployment: str, model: str) -> None: ...


class FakeTrials:
    def __init__(self, outcomes: dict[str, str], engine_s: float = 0.0) -> None:
        """`engine_s` are the seconds that the engine takes, of which the CPU takes 1; 0 if nothing was timed."""
        self.outcomes = outcomes
        self.engine_s = engine_s
        self.tried: list[str] = []

    def verdict(self, segment: Segment) -> EngineVerdict:
        self.tried.append(segment.digest)
        outcome, cpu_s = self.outcomes[segment.digest], min(self.engine_s, 1.0)
        return EngineVerdict(
            segment.engine,
            segment.digest,
            outcome,
            "seen",
            cpu_s=cpu_s,
            engine_s=self.engine_s,
            times_cpu=cpu_s,
        )


def test_a_program_is_loaded_with_the_engines_that_are_admitted_and_each_is_tried_once() -> None:
    first, second = map(on_lab, handmade.split_plan().programs["a"].segments)
    program = replace(handmade.split_plan().programs["a"], segments=(first, second, first))
    loader, book, told = FakeLoader(), VerdictBook(), list[EngineVerdict]()
    trials = FakeTrials({first.digest: ADMITTED, second.digest: LIES})
    admitted = AdmittedPrograms(loader, trials, book, told.append)
    for _ in range(2):
        admitted.prepare("net", "model", program, ())
    assert trials.tried == [first.digest, second.digest]
    assert [one.engine for one in loader.loaded[-1].segments] == [LAB, "", LAB]
    assert [(one.outcome, one.model) for one in told] == [(ADMITTED, "model"), (LIES, "model")]
    admitted.note(first, EngineVerdict(LAB, first.digest, CRASHES, "while it served"))
    admitted.prepare("net", "model", program, ())
    assert [one.engine for one in loader.loaded[-1].segments] == ["", "", ""]
    assert len(trials.tried) == 2 and len(told) == 3


@pytest.mark.parametrize(("engine_s", "loaded_on"), [(0.5, LAB), (1.5, "")])
def test_a_segment_that_the_engine_computes_more_slowly_is_loaded_on_the_cpu(
    engine_s: float, loaded_on: str
) -> None:
    segment = on_lab(handmade.split_plan().programs["a"].segments[0])
    program = replace(handmade.split_plan().programs["a"], segments=(segment,))
    loader, told = FakeLoader(), list[EngineVerdict]()
    trials = FakeTrials({segment.digest: ADMITTED}, engine_s)
    AdmittedPrograms(loader, trials, VerdictBook(), told.append).prepare("net", "model", program, ())
    assert [one.engine for one in loader.loaded[0].segments] == [loaded_on]
    assert [one.outcome for one in told] == [ADMITTED if loaded_on else SLOWER]


def test_a_program_without_engines_is_loaded_as_it_is() -> None:
    loader = FakeLoader()
    program = handmade.split_plan().programs["a"]
    AdmittedPrograms(loader, FakeTrials({}), VerdictBook(), print).prepare("net", "model", program, ())
    assert loader.loaded == [program]
    assert np.all([one.engine == "" for one in program.segments])
