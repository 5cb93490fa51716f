"""Candidate requests: which version answers a request, the copies for a candidate in the shadow, and what they show. Door:
the event loop, the clock, chance.

Whatever a candidate does, a request of its share is answered: by the version that serves, if the candidate cannot.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from edgepart.agent.api.inference_request import AskedInference, InferResult, SequenceTurn
from edgepart.agent.api.model_card import CandidateCard
from edgepart.agent.chronicle.event_log import CANDIDATE, EventLog
from edgepart.agent.cluster.state.candidates import draw_of_sequence, goes_to_candidate
from edgepart.agent.cluster.state.deployments import DeploymentMap
from edgepart.agent.cluster.state.model_versions import number_of
from edgepart.agent.serving.candidate_figures import CandidateFigures, compare_answers
from edgepart.agent.serving.sequences import Sequences
from edgepart.agent.wire.control import Candidacy, Deployment
from edgepart.agent.wire.trials import SUFFIX, candidate_name
from edgepart.planner.errors import ClusterError, EdgepartError, StateLost, Unavailable, UnknownDeployment

log = logging.getLogger(__name__)

MOST_COPIES = 4
"""Copies under way at a time. With more, the comparison sees more of a crowd's requests; with fewer, it is less in their
way."""
MOST_COPY_BYTES = 64 << 20
"""The memory that the inputs and answers of these copies may hold on to."""
PATIENCE = 0.5
"""The part of a request's time that the candidate may take; the rest is for the version that serves, if it has to answer.
With a larger part, a slow candidate answers more of its share."""
TELL_S = 60.0
"""Seconds between two events that say that a candidate fails."""

Serve = Callable[[Deployment, AskedInference], Awaitable[InferResult]]
"""Answers a request with this deployment and no other."""


class CandidateRequests:
    """For the event loop's thread."""

    def __init__(
        self,
        deployments: Callable[[], DeploymentMap],
        serve: Serve,
        trouble: Callable[[Deployment], str],
        sequences: Sequences,
        events: EventLog,
        chance: random.Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`trouble` returns why a deployment cannot answer now; "" if it can."""
        self._clock = clock
        self._deployments = deployments
        self._serve = serve
        self._trouble = trouble
        self._sequences = sequences
        self._events = events
        self._chance = chance
        self._figures: dict[str, tuple[tuple[int, str], CandidateFigures]] = {}
        """By parent: the number and model of the candidate, and what was seen of it."""
        self._copies: set[asyncio.Task[None]] = set()
        self._copy_bytes = 0
        self._told_s: dict[str, float] = {}

    def figures(self, candidate: Deployment, parent: str) -> CandidateFigures:
        """What was seen of a candidate here. Figures of the candidates before it are forgotten."""
        key = number_of(candidate), candidate.model
        known = self._figures.get(parent)
        if known is None or known[0] != key:
            known = self._figures[parent] = key, CandidateFigures()
            self._told_s.pop(parent, None)
        return known[1]

    def card(self, parent: str) -> CandidateCard | None:
        """A deployment's candidate as people see it; None if it has none."""
        entry = self._deployments().candidate(parent)
        if entry is None or entry.candidacy is None:
            self._figures.pop(parent, None)
            return None
        seen = self.figures(entry, parent)
        return CandidateCard(
            name=entry.name,
            version=str(number_of(entry)),
            share=entry.candidacy.share,
            shadow=entry.candidacy.shadow,
            trouble=self._trouble(entry),
            serving_answers=seen.serving.count,
            serving_mean_s=seen.serving.mean_s,
            answers=seen.candidate.count,
            mean_s=seen.candidate.mean_s,
            fallbacks=seen.fallbacks,
            last_failure=seen.last_failure,
            compared=seen.compared,
            different=seen.different,
            largest_difference=seen.largest_difference,
            copy_errors=seen.copy_errors,
            copies_dropped=seen.copies_dropped,
        )

    async def infer(self, parent: Deployment, asked: AskedInference) -> InferResult:
        """Answer a request by the deployment or, where it is drawn, by its candidate."""
        candidate = self._deployments().candidate(parent.name)
        if candidate is None or candidate.candidacy is None:
            self._check_begun_elsewhere(parent, asked.sequence)
            return await self._serve(parent, asked)
        seen = self.figures(candidate, parent.name)
        if asked.sequence is not None and self._goes_on(candidate, asked.sequence):
            return _tally(seen, await self._serve(candidate, asked))
        failure, spent_s = "", 0.0
        if self._draws(parent.name, candidate.candidacy, asked.sequence):
            began_s = self._clock()
            try:
                return _tally(seen, await self._try(candidate, asked))
            except (EdgepartError, TimeoutError) as error:
                failure, spent_s = str(error) or type(error).__name__, self._clock() - began_s
                if asked.sequence is not None:
                    self._sequences.end(candidate.name, asked.sequence.id)
        result = await self._serve(parent, replace(asked, deadline_s=asked.deadline_s - spent_s))
        seen.serving.add(result.seconds)
        if failure:
            self._fell_back(parent.name, candidate, failure)
            return replace(result, seconds=result.seconds + spent_s, queue_s=result.queue_s + spent_s)
        if candidate.candidacy.shadow and asked.sequence is None:
            self._copy(candidate, seen, asked, result)
        return result

    async def infer_only(self, name: str, asked: AskedInference) -> InferResult:
        """Answer a request by this deployment, which may be a candidate, and by no other version. A candidate that was
        promoted meanwhile answers as its parent; the result says which version that is. Raises UnknownDeployment."""
        entry, until_s = self._deployments().get(name), self._clock() + asked.deadline_s
        if entry is not None:
            try:
                return await self._serve(entry, asked)
            except ClusterError:
                if entry.candidacy is None or self._deployments().get(name) is not None:
                    raise
        parent = self._deployments().get(name.removesuffix(SUFFIX)) if name.endswith(SUFFIX) else None
        if parent is None:
            raise UnknownDeployment(f"nothing is deployed as {name!r} any more")
        return await self._serve(parent, replace(asked, deadline_s=until_s - self._clock()))

    def choose_for_text(self, model: str) -> Deployment | None:
        """The candidate that a text for `model` is drawn for; None for the deployment itself."""
        candidate = self._deployments().candidate(model)
        if candidate is None or candidate.candidacy is None:
            return None
        return candidate if self._draws(model, candidate.candidacy, None) else None

    def text_fell_back(self, parent: str, candidate: Deployment, failure: str) -> None:
        self._fell_back(parent, candidate, failure)

    # Which version answers

    def _draws(self, parent: str, candidacy: Candidacy, sequence: SequenceTurn | None) -> bool:
        """Whether the candidate is to answer. Of a sequence this is asked at its first step."""
        if sequence is None:
            draw = self._chance.random()
        elif not sequence.start:
            return False
        else:
            draw = draw_of_sequence(parent, sequence.id)
            # Begun anew: what the same id began with the other version is over.
            self._sequences.end(parent, sequence.id)
            self._sequences.end(candidate_name(parent), sequence.id)
        return goes_to_candidate(candidacy.share, draw)

    def _goes_on(self, candidate: Deployment, sequence: SequenceTurn) -> bool:
        """Whether the request is a further step of a sequence that the candidate has begun."""
        return not sequence.start and self._sequences.has(candidate.name, sequence.id)

    def _check_begun_elsewhere(self, parent: Deployment, sequence: SequenceTurn | None) -> None:
        """Raises StateLost, and ends the sequence, if a candidate has begun it that is gone by now."""
        if sequence is None or parent.candidacy is not None:
            return
        name = candidate_name(parent.name)
        if not self._sequences.has(name, sequence.id):
            return
        self._sequences.end(name, sequence.id)
        if not sequence.start:
            raise StateLost(
                f"sequence {sequence.id[:80]!r} was begun by a candidate of {parent.name!r} that is gone: it was promoted, "
                "or given up. Begin the sequence again"
            )

    async def _try(self, candidate: Deployment, asked: AskedInference) -> InferResult:
        if why := self._trouble(candidate):
            raise Unavailable(why)
        return await self._serve(candidate, replace(asked, deadline_s=asked.deadline_s * PATIENCE))

    def _fell_back(self, parent: str, candidate: Deployment, failure: str) -> None:
        now = self._deployments().candidate(parent)
        if now is None or number_of(now) != number_of(candidate):
            return  # It was promoted or given up while the request was under way.
        seen = self.figures(candidate, parent)
        seen.fallbacks += 1
        self._failed(parent, candidate, seen, failure, "the version that serves answers in its place")

    def _failed(
        self, parent: str, candidate: Deployment, seen: CandidateFigures, failure: str, then: str
    ) -> None:
        seen.last_failure = failure
        now_s = self._clock()
        if now_s - self._told_s.get(parent, -TELL_S) < TELL_S:
            return
        self._told_s[parent] = now_s
        text = f"version {number_of(candidate)}, the candidate of {parent}, does not answer: {then}"
        self._events.tell(time.time(), CANDIDATE, parent, text, failure)
        log.warning("%s: %s", text, failure)

    # Copies

    def _copy(
        self, candidate: Deployment, seen: CandidateFigures, asked: AskedInference, result: InferResult
    ) -> None:
        """Ask the candidate the same, once the answer is on its way, unless too many copies are under way."""
        values = (*asked.inputs.values(), *result.outputs.values())
        nbytes = sum(int(getattr(value, "nbytes", 0)) for value in values)
        if len(self._copies) >= MOST_COPIES or self._copy_bytes + nbytes > MOST_COPY_BYTES:
            seen.copies_dropped += 1
            return
        self._copy_bytes += nbytes
        copy = asyncio.create_task(self._compare(candidate, seen, asked, result))
        self._copies.add(copy)

        def ended(task: asyncio.Task[None]) -> None:
            self._copies.discard(task)
            self._copy_bytes -= nbytes

        copy.add_done_callback(ended)

    async def _compare(
        self, candidate: Deployment, seen: CandidateFigures, asked: AskedInference, result: InferResult
    ) -> None:
        assert candidate.candidacy is not None
        try:
            answer = await self._try(candidate, replace(asked, outputs=list(result.outputs)))
        except (EdgepartError, TimeoutError) as error:
            seen.copy_errors += 1
            failure, then = str(error) or type(error).__name__, "its answers are not compared"
            self._failed(candidate.candidacy.parent, candidate, seen, failure, then)
            return
        found = await asyncio.to_thread(compare_answers, result.outputs, answer.outputs)
        seen.note_copy(found, answer.seconds)

    async def stop(self) -> None:
        """End the copies that are under way."""
        for copy in self._copies:
            copy.cancel()
        await asyncio.gather(*self._copies, return_exceptions=True)


def _tally(seen: CandidateFigures, result: InferResult) -> InferResult:
    seen.candidate.add(result.seconds)
    return result
