"""What users have deployed under a name: the model, its options, the versions before it, and its candidate. Facts, and the
rule that makes them from the map of deployments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgepart.agent.cluster.state.deployments import DeploymentMap
from edgepart.agent.cluster.state.model_versions import asked_options, number_of
from edgepart.agent.wire.codec import json_record


@dataclass(frozen=True)
class DeployedVersion:
    """A version of a model that a user deployed."""

    version: int
    model: str
    """The digest under which members store the model."""
    options: Mapping[str, Any]
    """The options as the user gave them: the fields of DeployOptions, without those that only the agent gives."""


@dataclass(frozen=True)
class DeployedCandidate:
    """A candidate that a user deployed."""

    version: int
    model: str
    options: Mapping[str, Any]
    """The model's digest and the options, as in DeployedVersion."""
    share: int
    shadow: bool


@dataclass(frozen=True)
class DeployedModel:
    """What is deployed under a name, as the map of deployments says it. It need not serve yet."""

    name: str
    now: DeployedVersion
    kept: tuple[DeployedVersion, ...]
    """The versions that a rollback can bring back, in the order in which they served, the last one first."""
    candidate: DeployedCandidate | None = None
    """The version that is tried beside it; None if there is none."""


def list_deployed(deployments: DeploymentMap) -> list[DeployedModel]:
    """What is deployed, sorted by name, each with its candidate."""
    return [
        DeployedModel(
            entry.name,
            DeployedVersion(number_of(entry), entry.model, json_record(asked_options(entry))),
            tuple(
                DeployedVersion(one.number, one.model, json_record(asked_options(one))) for one in entry.kept
            ),
            _find_candidate(deployments, entry.name),
        )
        for entry in deployments.list_live()
        if entry.candidacy is None
    ]


def _find_candidate(deployments: DeploymentMap, parent: str) -> DeployedCandidate | None:
    entry = deployments.candidate(parent)
    if entry is None or entry.candidacy is None:
        return None
    asked, trial = json_record(asked_options(entry)), entry.candidacy
    return DeployedCandidate(number_of(entry), entry.model, asked, trial.share, trial.shadow)
