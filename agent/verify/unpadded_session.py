"""One session over a model that puts its past before new rows, which is asked like the model that is served of it, whose
states are written in place (planner/model/rewrites). Each sequence is computed by itself, with a past of the rows that it
has: nothing is padded or masked, so that the answer is the model's own. A door: it runs a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgepart.agent.execution.runtime.loaded_models import LoadedModel
from edgepart.planner.model.model_file import read_model
from edgepart.planner.model.rewrites.masked_positions import MASK
from edgepart.planner.model.rewrites.merged_decoder import ALWAYS, CACHE_BRANCH, decide, is_merged
from edgepart.planner.model.rewrites.past_before_rows import Growing, find_growing, open_decided
from edgepart.planner.region import Array

Values = Mapping[str, Any]


def growing_of(path: Path | bytes, shapes: Mapping[str, tuple[int, ...]]) -> Growing | None:
    """The states of a model that puts its past before new rows, if it is asked with these shapes as if it wrote them in
    place; None otherwise. Raises ModelError."""
    model = read_model(path)
    if is_merged(model) and CACHE_BRANCH not in shapes:
        decide(model, ALWAYS)
    return find_growing(open_decided(model), shapes)


@dataclass(frozen=True)
class UnpaddedSession:
    """Runs like a LoadedModel."""

    session: LoadedModel
    growing: Growing

    @property
    def input_names(self) -> tuple[str, ...]:
        return self.session.input_names

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.session.output_names

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs in their order. Raises RequestError."""
        feeds = dict(zip(self.input_names, inputs, strict=True))
        one_by_one = [
            self._run_one({name: value[place : place + 1] for name, value in feeds.items()})
            for place in range(len(feeds[MASK]))
        ]
        return [np.concatenate([found[name] for found in one_by_one]) for name in self.output_names]

    def _run_one(self, feeds: Values) -> dict[str, Array]:
        counted, axis = self.growing.counted
        rows, columns = feeds[counted].shape[axis], feeds[MASK].shape[1]
        before = min(max(int(feeds[MASK].sum()) - rows, 0), columns - rows)
        own = {**feeds, MASK: np.ones((1, before + rows), feeds[MASK].dtype)}
        for state in self.growing.states:
            own[state.past] = np.ascontiguousarray(_rows(feeds[state.past], state.axis, 0, before))
        outputs = self.session.run([own[name] for name in self.input_names])
        found = dict(zip(self.output_names, outputs, strict=True))
        for state in self.growing.states:
            buffer = feeds[state.past].copy()
            new = _rows(found[state.present], state.axis, before, before + rows)
            _rows(buffer, state.axis, before, before + rows)[...] = new
            found[state.present] = buffer
        return found


def _rows(value: Array, axis: int, begin: int, end: int) -> Array:
    found: Array = value[(*(slice(None),) * axis, slice(begin, end))]
    return found
