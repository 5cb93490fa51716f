"""Trials: how users try a candidate, a version of a model beside the one that serves, and what it is called. Facts and
rules: no door.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgepart.agent.wire.bounds import MOST_DEPLOYMENT_NAME
from edgepart.planner.errors import UsageError

SUFFIX = ".candidate"
"""Ends the name of each candidate's entry; users give no such names."""


@dataclass(frozen=True, slots=True)
class TrialShare:
    """How a user tries a candidate."""

    percent: int = 0
    """How many of a hundred requests for the parent the candidate answers."""
    shadow: bool = False
    """Whether it gets copies of requests, whose answers are compared with the parent's and given to nobody."""

    def __post_init__(self) -> None:
        if not 0 <= self.percent <= 100:
            raise UsageError(
                f"a share of {self.percent} %: give a whole number from 0 to 100. Nothing was changed"
            )
        if self.percent and self.shadow:
            raise UsageError(
                "a share and a shadow exclude each other: a candidate answers requests, or gets copies of them. Nothing "
                "was changed"
            )

    def __str__(self) -> str:
        return "a copy of each request" if self.shadow else f"{self.percent} % of the requests"


def candidate_name(parent: str) -> str:
    """The name of the entry of a deployment's candidate."""
    return parent + SUFFIX


def check_parent_name(name: str) -> None:
    """Raises UsageError if there can be no candidate of a deployment of that name."""
    if len(candidate_name(name)) > MOST_DEPLOYMENT_NAME:
        most = MOST_DEPLOYMENT_NAME - len(SUFFIX)
        raise UsageError(
            f"{name!r} has {len(name)} characters: a deployment with a candidate has {most} at most"
        )


def has_candidate(parent: str, number: object) -> UsageError:
    """The error of a deployment over a name that has a candidate."""
    return UsageError(
        f"{parent!r} has a candidate, version {number}. `edgepart promote {parent}` lets it serve, `edgepart undeploy "
        f"{parent} --candidate` gives it up, and deploying with --share or --shadow replaces it. Nothing was changed"
    )


def lacks_candidate(parent: str) -> UsageError:
    """The error of what needs a candidate, for a deployment that has none."""
    return UsageError(
        f"{parent!r} has no candidate; `edgepart deploy MODEL --name {parent} --share 10` makes one. Nothing was changed"
    )


def check_free_name(name: str) -> None:
    """Raises UsageError for a name that only candidates have."""
    if name.endswith(SUFFIX):
        raise UsageError(
            f"{name!r}: names that end in {SUFFIX!r} are those of candidates; `edgepart deploy MODEL --name "
            f"{name.removesuffix(SUFFIX)} --share 10` makes one. Nothing was changed"
        )
