"""Tryout: runs a plan once before it gets requests of users, and checks its answers. Door: the event loop.

Made-up inputs go through all devices of the plan as a request does. The answers are compared with the model's own: those of
the plan that serves, if that is known to be right, else those of one session over the file, if this device has the memory
for it. Otherwise only shapes are checked, and that numbers are finite. The model's answers are kept for the next trial
(known_answers.py). Before a plan is called wrong, they are asked for anew, and the model is asked how much of the
difference a rounding of the inputs makes (input_rounding.py). The same is done with sequences of steps, where a plan has
programs for other steps than the usual one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, Protocol

import numpy as np

from edgepart.agent.cluster.state.bindings import VARIANT_SEPARATOR, parent_of
from edgepart.agent.cluster.state.events import RIGHT, SUSPECT, UNTRIED, WRONG, PlanTried, TryPlan
from edgepart.agent.serving.loaded_plans import HeldPlan
from edgepart.agent.serving.requester import Requester
from edgepart.agent.verify import input_rounding
from edgepart.agent.verify.known_answers import KnownAnswers, Question
from edgepart.agent.verify.rounding_error import sample_inputs_for
from edgepart.agent.verify.same_answer import differences, is_float, random_outputs
from edgepart.agent.verify.tried_steps import MakeSequences, TriedStep, make_none
from edgepart.agent.wire.dtypes import element_dtype
from edgepart.agent.wire.inference import NO_EPOCH, Epoch, SequenceStep
from edgepart.planner.errors import (
    ClusterError,
    CrashError,
    EdgepartError,
    FrameError,
    InternalError,
    RequestError,
    RunError,
    Unavailable,
)
from edgepart.planner.plans.plan import KeptState, Plan

log = logging.getLogger(__name__)

DEADLINE_S = 60.0
"""Seconds for each answer that is compared. With a longer time slower models can be tried; with a shorter one a deployment
that could not be tried serves sooner."""
LOST_S = 2.0
"""Seconds for an answer after a device of its plan is lost or does not hold it any more. With a longer time more broken
connections are bridged; with a shorter one the deployment moves to another plan sooner, since only one plan is tried at a
time."""
SESSION_BYTES_PER_MODEL_BYTE = 2.5
"""The approximate memory of one session over a model, in multiples of the model's size: its weights as they are in the file
and packed, and something for the tensors."""
LEAST_BYTES = 200_000_000
"""The least memory that a session takes beyond the model's size, in bytes: ONNX Runtime, and small models."""
TRYOUT_SUFFIX = "tried"
"""Part of the deployment name of the requests that try a plan; no user can give such a name."""


class ReferenceRunner(Protocol):
    """The interface of ReferenceProcess."""

    def answer(
        self,
        model: str,
        steps: Sequence[Mapping[str, Any]],
        memory_bytes: int,
        within_s: float,
        states: Sequence[KeptState],
    ) -> dict[str, Any]: ...


Ask = Callable[[Sequence[TriedStep]], Awaitable[Mapping[str, Any]]]
"""Returns the answer to the last of these steps."""


@dataclass(frozen=True)
class _Expected:
    """The model's own answer, with which the plan's is compared."""

    outputs: Mapping[str, Any]
    """The outputs by name, without random ones."""
    ask: Ask
    """Asks the same source."""


class Tryout:
    """Carries out the `TryPlan` orders."""

    def __init__(
        self,
        requester: Requester,
        held: Callable[[str, Epoch], HeldPlan | None],
        referee: ReferenceRunner,
        room_bytes: Callable[[], int],
        make_sequences: MakeSequences = make_none,
    ) -> None:
        """`held` returns a plan that is loaded on this device; `room_bytes` the memory that one more process may take;
        `make_sequences` what is tried beside the usual step."""
        self._requester = requester
        self._held = held
        self._referee = referee
        self._room_bytes = room_bytes
        self._make_sequences = make_sequences
        self._known = KnownAnswers()
        self._count = 0

    async def __call__(self, order: TryPlan) -> PlanTried:
        """Try the plan, and return the verdict. Never raises."""
        try:
            verdict, text = await self._judge(order)
        except EdgepartError as error:
            verdict, text = UNTRIED, str(error)
        except Exception as error:
            log.exception("trying a plan of %s failed inside", order.deployment)
            verdict, text = UNTRIED, f"trying it failed inside: {error!r}"
        return PlanTried(order.deployment, order.epoch, verdict, text)

    async def _judge(self, order: TryPlan) -> tuple[str, str]:
        """The verdict and its reason. Raises an EdgepartError, which says why, if the plan could not be tried."""
        held = self._held(order.deployment, order.epoch)
        if held is None:
            raise Unavailable("the plan is not here any more")
        steps = (TriedStep(dict(sample_inputs_for(held.plan))),)
        question = _question(order.model, held.plan)
        was_known = self._known.find(question) is not None
        verdict, text = await self._compare(order, held, steps, question)
        if verdict == WRONG and was_known:
            # The plan that gave the answers may have been wrong itself.
            self._known.forget(order.model)
            verdict, text = await self._compare(order, held, steps, question)
        return verdict, text

    async def _compare(
        self, order: TryPlan, held: HeldPlan, steps: Sequence[TriedStep], question: Question
    ) -> tuple[str, str]:
        expected = await self._compute_expected(order, held.plan, steps, question)
        if found := await self._try_steps(order, held, steps, expected):
            return (WRONG if expected else SUSPECT), found
        # Without the model's answers, no more could be said of sequences.
        for sequence in self._make_sequences(held.plan) if expected else ():
            one = replace(question, asked=(question.asked, sequence.what))
            asked = expected and await self._recall(one, sequence.steps, expected.ask)
            if found := await self._try_steps(order, held, sequence.steps, asked):
                return WRONG, f"with {sequence.what}: {found}"
        return RIGHT, ""

    async def _recall(
        self, question: Question, steps: Sequence[TriedStep], ask: Ask, *, twice: bool = False
    ) -> _Expected:
        """The model's answer, which `ask` is asked for if it is not known; `twice` where outputs may be random."""
        outputs = self._known.find(question)
        if outputs is None:
            outputs = await ask(steps)
            if twice:
                outputs = _steady(outputs, await ask(steps))
            self._known.keep(question, outputs)
        return _Expected(outputs, ask)

    async def _try_steps(
        self, order: TryPlan, held: HeldPlan, steps: Sequence[TriedStep], expected: _Expected | None
    ) -> str:
        """What is wrong with the plan's answer to the last of these steps; "" if nothing is."""
        try:
            answers = await self._answers(order, held, steps)
        except (RunError, CrashError, InternalError, FrameError, RequestError) as error:
            return str(error)
        for answer in answers:
            if found := await _faults(answer, expected, held.plan, order.tolerance, steps):
                return f"its answers are not the model's: {'; '.join(found)}"
        return ""

    async def _compute_expected(
        self, order: TryPlan, plan: Plan, steps: Sequence[TriedStep], question: Question
    ) -> _Expected | None:
        """The model's own answer; None if this device cannot compute it. Raises RequestError if the model does not take
        these inputs."""
        if order.trusted != NO_EPOCH:
            trusted = self._held(order.deployment, order.trusted)
            if trusted is not None and _asked_alike(trusted.plan, plan):
                served = partial(self._once, order, trusted, order.trusted)
                try:
                    return await self._recall(question, steps, served, twice=True)
                except (ClusterError, RunError) as error:
                    log.info(
                        "the plan of %s that serves gave no answer to compare a new plan's with: %s",
                        order.deployment,
                        error,
                    )
        session_bytes = max(SESSION_BYTES_PER_MODEL_BYTE * order.model_bytes, order.model_bytes + LEAST_BYTES)
        # A step reads the states and writes others.
        wanted = int(session_bytes + 2 * _states_bytes(plan))
        room = self._room_bytes()
        if wanted > room:
            log.info(
                "a plan of %s is tried without the model's own answers: that takes %.0f MB, and %.0f MB are free here",
                order.deployment,
                wanted / 1e6,
                room / 1e6,
            )
            return None

        async def ask(steps: Sequence[TriedStep]) -> Mapping[str, Any]:
            inputs = [step.inputs for step in steps]
            return await asyncio.to_thread(
                self._referee.answer, order.model, inputs, room, DEADLINE_S, plan.states
            )

        return await self._recall(question, steps, ask)

    async def _once(
        self, order: TryPlan, held: HeldPlan, epoch: Epoch, steps: Sequence[TriedStep]
    ) -> dict[str, Any]:
        return (await self._answers(order, held, steps, epoch))[0]

    async def _answers(
        self, order: TryPlan, held: HeldPlan, steps: Sequence[TriedStep], epoch: Epoch | None = None
    ) -> list[dict[str, Any]]:
        """The answer of each of the plan's replicas to the last of these steps. Nothing is rounded, as rounding_error.py
        measures that."""
        at, plan = epoch or order.epoch, held.plan
        # The trial of an older version may still be under way, and requests follow the newest plan of a name.
        self._count += 1
        name = f"{order.deployment}{VARIANT_SEPARATOR}{TRYOUT_SUFFIX}{self._count}"
        self._requester.activate(name, at, plan, held.nodes, held.constants, order.deployment)
        names = tuple(info.name for info in plan.outputs)
        try:
            return await asyncio.gather(*(self._run(name, steps, names) for _ in plan.parts))
        finally:
            self._requester.remove(name)

    async def _run(self, name: str, steps: Sequence[TriedStep], names: tuple[str, ...]) -> dict[str, Any]:
        """The answer to the last of these steps. A step that is alone needs no states that devices would keep."""
        *before, last = steps
        run = partial(self._requester.run, name, deadline_s=DEADLINE_S, exact=True, again_s=LOST_S)
        if not before:
            return (await run(dict(last.inputs), outputs=names))[0]
        sequence, position = self._requester.name_sequence(), 0
        try:
            for one in before:
                step, many = SequenceStep(sequence, position, position + one.rows), one.rows > 1
                await run(dict(one.inputs), outputs=() if many else names, step=step, prefill=many)
                position = step.after
            step = SequenceStep(sequence, position, position + last.rows)
            return (await run(dict(last.inputs), outputs=names, step=step))[0]
        finally:
            self._requester.end_sequence(parent_of(name), sequence)


def _asked_alike(one: Plan, other: Plan) -> bool:
    """Whether both plans take the same requests, of each kind of steps that is tried."""
    return _question("", one) == _question("", other)


def _question(model: str, plan: Plan) -> Question:
    """What the model is asked to try the plan: plans that take the same requests are tried with the same."""
    block = plan.prefill.inputs if plan.prefill is not None else ()
    return Question(model, (plan.inputs, plan.states, plan.outputs, block))


def _states_bytes(plan: Plan) -> int:
    """The size of the states of one sequence, in bytes."""
    infos = [state.input for state in plan.states]
    items = [(prod(info.shape or ()), element_dtype(info.dtype)) for info in infos]
    return sum(count * dtype.itemsize for count, dtype in items if dtype is not None)


def _steady(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs that are equal in two answers to the same inputs, so that they are not random."""
    random = random_outputs(first, second)
    return {name: value for name, value in first.items() if name not in random}


async def _faults(
    answer: Mapping[str, Any],
    expected: _Expected | None,
    plan: Plan,
    tolerance: float | None,
    steps: Sequence[TriedStep],
) -> list[str]:
    """A text for each fault of the answer to the last of these steps; empty if it is right. Raises RequestError if these
    inputs cannot tell."""
    if expected is not None:
        if not differences(answer, expected.outputs, tolerance):
            return []
        return input_rounding.find_unexplained(
            answer, expected.outputs, await expected.ask([_nudge(step) for step in steps]), tolerance
        )
    faults = []
    for info in plan.outputs:
        value = answer[info.name]
        if not isinstance(value, np.ndarray):
            continue
        if info.shape is not None and value.shape != info.shape:
            faults.append(f"{info.name} has shape {list(value.shape)}, not {list(info.shape)}")
        elif is_float(value.dtype) and not np.isfinite(value.astype(np.float64)).all():
            faults.append(f"{info.name} holds what is no number")
    return faults


def _nudge(step: TriedStep) -> TriedStep:
    return replace(step, inputs=input_rounding.nudge_inputs(step.inputs))
