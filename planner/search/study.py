"""Study: everything that a strategy gets to search one problem: its facts, a factory for candidates, and
their scores.

Nothing is computed twice when hundreds of candidates are compared, because all three parts remember. Rules
only."""

from __future__ import annotations

from edgepart.planner.cost.cost import Profiles
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.search.candidates import CandidateFactory
from edgepart.planner.search.memo import Memo
from edgepart.planner.search.scorer import Scorer


class Study:
    """The search of one problem."""

    def __init__(self, problem: Problem, profiles: Profiles | None = None, like: Memo | None = None) -> None:
        """`profiles` are measured seconds of segments. `like` is a memo of the same graph: its profiles are
        used, and everything that depends on the graph alone is shared with it.

        Raises UsageError for an unknown objective or gateway."""
        self.memo = Memo(problem, profiles) if like is None else like.on(problem)
        self.candidates = CandidateFactory(self.memo)
        self.scorer = Scorer(self.memo)

    def on(self, problem: Problem) -> Study:
        """A study of another problem about the same graph, for example with another cluster or other memory limits."""
        return Study(problem, like=self.memo)
