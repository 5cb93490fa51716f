"""Deployment cards: the cards of models as this agent tells them to clients and people, made from the map of deployments,
from what is known here, and from the figures of the parts that serve requests. Door: these parts, which it only reads.
"""

from __future__ import annotations

from dataclasses import replace

from edgepart.agent.api.candidate_requests import CandidateRequests
from edgepart.agent.api.known_deployments import KnownDeployments
from edgepart.agent.api.model_card import BindingStatus, ModelCard, SequenceFigures
from edgepart.agent.api.node_parts import RequestServing
from edgepart.agent.cluster.membership.election import readable_epoch
from edgepart.agent.cluster.state.bindings import read_binding
from edgepart.agent.cluster.state.deployments import DeploymentMap
from edgepart.agent.cluster.state.model_versions import number_of
from edgepart.agent.serving.loaded_plans import HeldPlan
from edgepart.agent.wire.control import Deployment
from edgepart.agent.wire.inference import DeployOptions, Epoch
from edgepart.planner.plans.plan import Plan
from edgepart.planner.plans.reduced_precision import EXACT


class DeploymentCards:
    """For the event loop's thread."""

    def __init__(
        self,
        deployments: DeploymentMap,
        known: KnownDeployments,
        serving: RequestServing,
        trials: CandidateRequests,
    ) -> None:
        self._deployments = deployments
        self._known = known
        self._serving = serving
        self._trials = trials

    def list_all(self) -> list[ModelCard]:
        """The cards of all deployments, candidates among them, sorted by name."""
        return [self._card(entry) for entry in self._deployments.list_live()]

    def find(self, name: str) -> ModelCard | None:
        """The card of the deployment of that name; None if there is none."""
        entry = self._deployments.get(name)
        return None if entry is None else self._card(entry)

    def note(self, entry: Deployment) -> str:
        """The leader's note on the deployment's plan, and this gateway's on batches; "" if there is none."""
        standing = self._known.standing(entry)
        batches = self._serving.gatherer.note(entry.name), self._serving.tokens.note(entry.name)
        notes = (standing.note if standing else "", *batches)
        return "; ".join(filter(None, notes))

    def _card(self, entry: Deployment) -> ModelCard:
        active = self._known.active(entry.name)
        return self._coming_card(entry) if active is None else self._active_card(entry, active)

    def _coming_card(self, entry: Deployment) -> ModelCard:
        """The card of a deployment that has no active plan here: one is on its way, or the deployment is set aside."""
        text, standing = self._known.describe(entry), self._known.standing(entry)
        return ModelCard(
            entry.name,
            text,
            trouble=text,
            quantised=describe_quantised(entry.options),
            model_digest=entry.model,
            version=str(number_of(entry)),
            kept_versions=_list_kept(entry),
            set_aside=bool(entry.fault),
            weights=standing.weights if standing else (),
            candidate=self._trials.card(entry.name),
            candidate_of=_parent(entry),
        )

    def _active_card(self, entry: Deployment, active: tuple[Epoch, HeldPlan]) -> ModelCard:
        epoch, held = active
        plan, standing = held.plan, self._known.standing(entry)
        number = (held.order.number if held.order is not None else 0) or number_of(entry)
        return ModelCard(
            name=entry.name,
            state="set aside" if entry.fault else standing.state if standing else "serving",
            inputs=tuple(replace(info, shape=info.open_shape) for info in plan.inputs),
            outputs=tuple(replace(info, shape=info.open_shape) for info in plan.outputs),
            epoch=readable_epoch(epoch),
            strategy=plan.strategy,
            devices=tuple(plan.programs),
            why=plan.why,
            predicted_latency_s=plan.predicted_latency_s,
            trouble=self._known.trouble(entry),
            note=self.note(entry),
            transfer_dtype=plan.rounded_to or EXACT,
            rounding=standing.rounding if standing else "",
            quantised=describe_quantised(entry.options),
            model_digest=entry.model,
            version=str(number),
            next_version="" if number == number_of(entry) else str(number_of(entry)),
            kept_versions=_list_kept(entry),
            bindings=self._list_bindings(entry.name, active),
            states=tuple(state.input.name for state in plan.states),
            sequences=self._count_sequences(entry, plan) if plan.states else None,
            weights=standing.weights if standing else (),
            covered=tuple(name for name in plan.programs if standing and name in standing.covered),
            candidate=self._trials.card(entry.name),
            candidate_of=_parent(entry),
        )

    def _count_sequences(self, entry: Deployment, plan: Plan) -> SequenceFigures:
        serving = self._serving
        growing, idle = serving.tokens.count(entry.name)
        under_way = growing + serving.sequences.count(entry.name)
        state_bytes = {
            name: (under_way + idle) * program.sequence_bytes for name, program in plan.programs.items()
        }
        speed = serving.tokens.speed(entry.name)
        return SequenceFigures(under_way, idle, entry.options.sequences, state_bytes, speed)

    def _list_bindings(self, name: str, first: tuple[Epoch, HeldPlan]) -> tuple[BindingStatus, ...]:
        """The shapes that serve here and the shapes that requests wait for here, if the model has free dimensions."""
        if not read_binding(first[1].plan.inputs):
            return ()
        serving = [
            BindingStatus(
                read_binding(held.plan.inputs),
                "serving",
                readable_epoch(epoch),
                held.plan.strategy,
                tuple(held.plan.programs),
                held.plan.predicted_latency_s,
                held.plan.why,
            )
            for epoch, held in (first, *self._serving.plans.variants(name))
        ]
        return (
            *serving,
            *(
                BindingStatus(shapes, "waiting for a plan")
                for shapes in self._serving.router.waiting_shapes(name)
            ),
        )


def describe_quantised(options: DeployOptions) -> str:
    """What became of weights that were quantised; "" if none were."""
    return options.quantised.describe(options.weights or "") if options.quantised is not None else ""


def _list_kept(entry: Deployment) -> tuple[str, ...]:
    return tuple(str(one.number) for one in entry.kept)


def _parent(entry: Deployment) -> str:
    return "" if entry.candidacy is None else entry.candidacy.parent
