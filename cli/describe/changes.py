"""Changes: what has to be done so that what is deployed becomes what is described. Rules: no door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edgepart.agent.wire.codec import read_json_record
from edgepart.agent.wire.inference import DeployOptions
from edgepart.agent.wire.trials import TrialShare
from edgepart.cli.describe.option_keys import write_options
from edgepart.planner.errors import ClusterError, FrameError

DEPLOY, ROLL_BACK, UNDEPLOY = "deploy", "roll back", "undeploy"
PROPOSE, SHARE, PROMOTE, DISCARD = "deploy candidate", "change share", "promote", "undeploy candidate"


@dataclass(frozen=True)
class DescribedVersion:
    """A model and its options, as a user wants them, or as they are deployed."""

    digest: str
    """The digest by which the cluster knows the model; of a model whose weights were quantised, the digest before that."""
    options: DeployOptions
    """The options as the user gave them."""


@dataclass(frozen=True)
class TriedVersion:
    """A candidate, as a user wants it, or as it is deployed."""

    version: DescribedVersion
    share: TrialShare


@dataclass(frozen=True)
class DeployedState:
    """What is deployed under a name."""

    version: int
    now: DescribedVersion
    kept: Mapping[int, DescribedVersion] = field(default_factory=dict)
    """The versions that a rollback can bring back, by number."""
    candidate: TriedVersion | None = None


@dataclass(frozen=True)
class Change:
    """One thing to do."""

    name: str
    kind: str
    """One of the words above."""
    why: tuple[str, ...]
    """What differs, for people."""
    to: int | None = None
    """The version to roll back to."""


def find_changes(
    wanted: Mapping[str, DescribedVersion],
    there: Mapping[str, DeployedState],
    trials: Mapping[str, TriedVersion] | None = None,
    *,
    prune: bool = False,
) -> list[Change]:
    """What has to be done, in this order. `trials` are the candidates that are described: a described deployment has no
    other. A deployment that is not described stays, unless `prune`; those that go come last, so that a deployment under a
    new name serves before the one under the old name ends."""
    changes = [
        change
        for name, version in wanted.items()
        for change in _with_candidate(
            _change(name, version, there.get(name)), name, version, there.get(name), (trials or {}).get(name)
        )
    ]
    gone = sorted(there.keys() - wanted.keys()) if prune else []
    return changes + [Change(name, UNDEPLOY, ("it is not described",)) for name in gone]


def _change(name: str, wanted: DescribedVersion, there: DeployedState | None) -> list[Change]:
    if there is None:
        return [Change(name, DEPLOY, ("it is not deployed",))]
    if there.now == wanted:
        return []
    why = tuple(find_differences(there.now, wanted))
    same = [number for number, kept in there.kept.items() if kept == wanted]
    return [Change(name, ROLL_BACK, why, max(same)) if same else Change(name, DEPLOY, why)]


def _with_candidate(
    changes: list[Change],
    name: str,
    wanted: DescribedVersion,
    there: DeployedState | None,
    trial: TriedVersion | None,
) -> list[Change]:
    """The changes of a deployment, and those of its candidate. What is deployed as the candidate and described as the
    deployment is promoted; another model can only be deployed once there is no candidate."""
    tried = there.candidate if there is not None else None
    if tried is not None and changes and tried.version == wanted:
        changes, tried = [Change(name, PROMOTE, changes[0].why)], None
    elif tried is not None and any(change.kind == DEPLOY for change in changes):
        changes, tried = [Change(name, DISCARD, ("another model replaces both",)), *changes], None
    if trial is None:
        gone = [] if tried is None else [Change(name, DISCARD, ("no candidate is described",))]
        return changes + gone
    if tried is None:
        return [*changes, Change(name, PROPOSE, (f"it gets {trial.share}",))]
    if tried.version != trial.version:
        return [*changes, Change(name, PROPOSE, tuple(find_differences(tried.version, trial.version)))]
    if tried.share != trial.share:
        return [*changes, Change(name, SHARE, (f"{tried.share} -> {trial.share}",))]
    return changes


def find_differences(there: DescribedVersion, wanted: DescribedVersion) -> list[str]:
    """A few words on each difference between a deployed version and the one that is wanted."""
    found = []
    if there.digest != wanted.digest:
        found.append(f"model: {_short(there.digest)} -> {_short(wanted.digest)}")
    before, after = write_options(there.options), write_options(wanted.options)
    usual = object()
    for key in dict.fromkeys((*before, *after)):
        old, new = before.get(key, usual), after.get(key, usual)
        if old != new:
            found.append(f"{key}: {_say(old, usual)} -> {_say(new, usual)}")
    return found


def _short(digest: str) -> str:
    return digest[:12]


def _say(value: object, usual: object) -> str:
    return "as usual" if value is usual else str(value)


def read_deployed(document: Mapping[str, Any]) -> dict[str, DeployedState]:
    """What an agent says is deployed (`GET /api/deployments`), by name. Raises ClusterError if that cannot be read."""
    try:
        return {
            str(one["name"]): DeployedState(
                int(one["now"]["version"]),
                _version(one["now"]),
                {int(kept["version"]): _version(kept) for kept in one["kept"]},
                _trial(one.get("candidate")),
            )
            for one in document["deployments"]
        }
    except (KeyError, TypeError, ValueError, FrameError) as error:
        raise ClusterError(
            f"what the agent says is deployed cannot be read ({error!r}): it is of another release. Nothing was changed"
        ) from error


def _trial(document: Mapping[str, Any] | None) -> TriedVersion | None:
    if document is None:
        return None
    share = TrialShare(int(document["share"]), bool(document["shadow"]))
    return TriedVersion(_version(document), share)


def _version(document: Mapping[str, Any]) -> DescribedVersion:
    options = read_json_record(DeployOptions, document["options"], DeployOptions())
    # Users name the model that they have, and not the one that was made of it.
    model = document["model"] if options.quantised is None else options.quantised.source
    return DescribedVersion(str(model), replace(options, quantised=None))


def names_of(changes: Sequence[Change]) -> str:
    return ", ".join(change.name for change in changes) or "nothing"
