"""What users have deployed under a name: the model, its options, the versions before it, and its candidate. Facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
