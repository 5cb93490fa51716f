"""Known answers: what models answered to the made-up inputs of trials. Rules: no door.

The inputs of a trial are the same each time, and so is the model's answer. Whoever gave it need not give it again when the
next plan is tried, and computes for requests meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from edgepart.agent.wire.tensors import value_bytes

KEPT_BYTES = 8 << 20
"""The most bytes of answers that are kept. With more, models with larger answers are tried sooner; with fewer, the agent
takes less memory."""
KEPT_ANSWERS = 64
"""The most answers that are kept, as strings and what is no tensor count no bytes."""


@dataclass(frozen=True)
class Question:
    """What a model was asked."""

    model: str
    """The model's digest."""
    asked: Hashable
    """All that the made-up steps depend on besides."""


class KnownAnswers:
    """The answers that were given last. Only the event loop uses them."""

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._answers: OrderedDict[Question, Mapping[str, Any]] = OrderedDict()

    def find(self, question: Question) -> Mapping[str, Any] | None:
        """Return the outputs by name; None if they are not known."""
        found = self._answers.get(question)
        if found is not None:
            self._answers.move_to_end(question)
        return found

    def keep(self, question: Question, outputs: Mapping[str, Any]) -> None:
        """Keep an answer, as long as there is room."""
        self._answers[question] = outputs
        self._answers.move_to_end(question)
        while len(self._answers) > KEPT_ANSWERS or self._held_bytes() > self._most_bytes:
            self._answers.popitem(last=False)

    def forget(self, model: str) -> None:
        """Forget all answers of a model."""
        for one in [one for one in self._answers if one.model == model]:
            del self._answers[one]

    def _held_bytes(self) -> int:
        return sum(value_bytes(value) for one in self._answers.values() for value in one.values())
