"""User requests: what users ask of the cluster, and how deployments are written for them. Rules, without I/O."""

from __future__ import annotations

from collections.abc import Iterable

from edgepart.agent.cluster.state.deployments import DeploymentMap
from edgepart.agent.cluster.state.events import (
    CandidateRequested,
    DeployRequested,
    DrainRequested,
    Member,
    PromoteRequested,
    RestoreRequested,
    RollbackRequested,
    ShareRequested,
    UndeployRequested,
)
from edgepart.agent.wire.control import CANDIDATES, Deployment
from edgepart.agent.wire.versions import bare, understands
from edgepart.planner.errors import UsageError

DeploymentRequest = (
    DeployRequested
    | RollbackRequested
    | CandidateRequested
    | ShareRequested
    | PromoteRequested
    | RestoreRequested
    | UndeployRequested
)
"""What users ask of deployments."""
UserRequest = DeploymentRequest | DrainRequested
"""What users ask for. It may be refused."""


def write_request(
    request: DeploymentRequest, deployments: DeploymentMap, node: str, members: Iterable[Member]
) -> tuple[Deployment, ...]:
    """Write what a user asks for into the map, as `node`; return the entries that were written. Raises UsageError if
    the request cannot be met; nothing has changed then."""
    match request:
        case DeployRequested(name, model, model_bytes, options, asked):
            return (deployments.put(node, name, model, model_bytes, options, asked),)
        case RollbackRequested(name, to):
            return (deployments.roll_back(node, name, to),)
        case CandidateRequested(parent, model, model_bytes, options, asked, share):
            _require_candidates_known(members)
            return (deployments.propose(node, parent, model, model_bytes, options, asked, share),)
        case ShareRequested(parent, share):
            return (deployments.set_share(node, parent, share),)
        case PromoteRequested(parent):
            return (deployments.promote(node, parent),)
        case RestoreRequested(before):
            return (deployments.restore(node, before),)
        case UndeployRequested(name, version):
            known = deployments.get(name)
            if version is None or (known is not None and known.version == version):
                return deployments.undeploy(node, name)
            return ()


def _require_candidates_known(members: Iterable[Member]) -> None:
    """Raises UsageError if a member is of an earlier release: its clients would get no answers of the candidate."""
    old = [m for m in members if not understands(m.version, CANDIDATES)]
    if old:
        said = ", ".join(f"{member.name} ({bare(member.version)})" for member in old)
        raise UsageError(
            f"{said}: no candidates are known there; update edgepart on all devices. Nothing was deployed"
        )
