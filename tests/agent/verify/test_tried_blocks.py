"""A plan's blocks of rows are tried: a language model in two parts reads a made-up text, and what comes after it is
compared with the model's own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepart.agent.cluster.state.events import RIGHT, WRONG, PlanTried, TryPlan
from edgepart.agent.execution.runtime.loaded_models import load_model
from edgepart.agent.serving.loaded_plans import HeldPlan
from edgepart.agent.text.sample_text import sample_blocks
from edgepart.agent.verify.local_run import LocalRun, SequenceStates
from edgepart.agent.verify.reference import answer_last
from edgepart.agent.verify.tryout import Tryout
from edgepart.agent.wire.inference import NO_EPOCH, Epoch, SequenceStep
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import RunError
from edgepart.planner.model.context_shapes import load_with_context
from edgepart.planner.model.graph import Graph
from edgepart.planner.plans.plan import KeptState, Plan
from tests.agent.verify.test_prefill import CONTEXT, ROWS, both, divided, study_of
from tests.processes.tiny_language import tiny_language

E1, E2 = Epoch(1, 1), Epoch(1, 2)
ORDER = TryPlan("tiny", E1, "m" * 64, 1000, None, NO_EPOCH)
MUCH = 1 << 40


class LocalDevices:
    """Implements what a tryout asks of a Requester, with the devices of the plan in this process."""

    def __init__(self, plans: Mapping[Epoch, Plan], graphs: tuple[Graph, Graph], spoil: str) -> None:
        self._runs = {
            epoch: (LocalRun(plan, graphs[0]), LocalRun(plan.prefill, graphs[1]))
            for epoch, plan in plans.items()
            if plan.prefill is not None
        }
        self._spoil = spoil
        self._at = E1
        self.states: dict[str, SequenceStates] = {}
        self.blocks: list[Epoch] = []

    def activate(self, name: str, epoch: Epoch, *_: Any) -> None:
        self._at = epoch

    def remove(self, name: str) -> None:
        assert not self.states, "What was tried is not kept."

    def name_sequence(self) -> str:
        return f"gateway/{len(self.states)}"

    def end_sequence(self, deployment: str, sequence: str) -> None:
        assert deployment == "tiny"
        del self.states[sequence]

    async def run(
        self,
        name: str,
        inputs: dict[str, Value],
        deadline_s: float,
        outputs: tuple[str, ...],
        *,
        exact: bool,
        again_s: float,
        step: SequenceStep | None = None,
        prefill: bool = False,
    ) -> tuple[dict[str, Value], None]:
        usual, block = self._runs[self._at]
        states = self.states.setdefault(step.sequence, usual.begin()) if step is not None else None
        found = (block if prefill else usual).run(inputs, sequence=states)
        if not prefill:
            return found, None
        self.blocks.append(self._at)
        assert states is not None and not outputs
        if self._at == E1 and self._spoil == "fail":
            raise RunError("a device could not compute it")
        if self._at == E1 and self._spoil:
            states[self._spoil][0] = np.roll(np.asarray(states[self._spoil][0]), 1, axis=2)
        return {}, None


class Model:
    """Answers as the reference process does, in this process."""

    def __init__(self, path: Path) -> None:
        self._session = load_model(path)
        self.asked: list[int] = []

    def answer(
        self,
        model: str,
        steps: Sequence[Mapping[str, Any]],
        memory_bytes: int,
        within_s: float,
        states: Sequence[KeptState],
    ) -> dict[str, Any]:
        self.asked.append(len(steps))
        return answer_last(self._session, steps, states)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_language(tmp_path_factory.mktemp("language") / "tiny") / "model.onnx"


def tried(
    tiny: Path, spoil: str = "", order: TryPlan = ORDER, way: str = "head"
) -> tuple[PlanTried, Model, LocalDevices]:
    graphs = tuple(load_with_context(tiny, {}, CONTEXT, rows)[0] for rows in (1, ROWS))
    study = study_of(graphs[0])
    plans = {E1: both(study, divided(study, way, (1.0, 1.0)), graphs[1])}
    if order.trusted != NO_EPOCH:
        plans[E2] = both(study, divided(study, "layers", (1.0, 1.0)), graphs[1])
    devices, model = LocalDevices(plans, (graphs[0], graphs[1]), spoil), Model(tiny)
    tryout = Tryout(
        devices,  # type: ignore[arg-type]
        lambda _, epoch: HeldPlan(plans[epoch], {}),
        model,
        lambda: MUCH,
        sample_blocks,
    )
    return asyncio.run(tryout(order)), model, devices


@pytest.mark.parametrize("way", ["head", "layers"])
def test_a_plan_whose_blocks_leave_the_right_states_is_right(tiny: Path, way: str) -> None:
    found, model, devices = tried(tiny, way=way)
    assert (found.verdict, found.text) == (RIGHT, "")
    assert model.asked == [1, 2] and devices.blocks == [E1]


@pytest.mark.parametrize("device", ["a", "b"])
def test_a_plan_whose_blocks_leave_other_states_is_wrong(tiny: Path, device: str) -> None:
    found, _, _ = tried(tiny, device)
    assert found.verdict == WRONG
    assert "with a block of tokens: its answers are not the model's: logits" in found.text


def test_a_plan_whose_devices_cannot_compute_blocks_is_wrong(tiny: Path) -> None:
    found, _, _ = tried(tiny, "fail")
    assert found == PlanTried("tiny", E1, WRONG, "with a block of tokens: a device could not compute it")


def test_blocks_are_compared_with_those_of_the_plan_that_serves(tiny: Path) -> None:
    order = replace(ORDER, trusted=E2)
    found, model, devices = tried(tiny, order=order)
    assert found.verdict == RIGHT and model.asked == [] and devices.blocks == [E2, E1]
    assert tried(tiny, "b", order)[0].verdict == WRONG
