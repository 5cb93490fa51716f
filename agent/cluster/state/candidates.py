"""Candidate versions: a version of a model that a user tries beside the one that serves, with a share of its requests or
with copies of them. Rules, without I/O.

A candidate is an entry of its own in the map of deployments, under a derived name. So it is planned, loaded, counted and
recovered as any other. The entry of its parent, the deployment that it may replace, is not changed before the candidate is
promoted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from edgepart.agent.cluster.state import model_versions
from edgepart.agent.cluster.state.model_versions import newest_of, number_of
from edgepart.agent.wire.control import Candidacy, Deployment, Standing, Version
from edgepart.agent.wire.inference import DeployOptions
from edgepart.agent.wire.trials import TrialShare, candidate_name
from edgepart.planner.plans.plan import ValueInfo

# Entries


def propose(
    parent: Deployment,
    before: Deployment | None,
    model: str,
    model_bytes: int,
    options: DeployOptions,
    asked: DeployOptions | None,
    share: TrialShare,
    version: Version,
) -> Deployment:
    """The entry of a new candidate, whose number is the next one of its parent. `before` is the entry or tombstone of the
    candidate before it, None if there was none."""
    newest = newest_of(parent) if before is None else max(newest_of(parent), newest_of(before))
    return Deployment(
        candidate_name(parent.name),
        model,
        model_bytes,
        options,
        version,
        number=newest + 1,
        newest=newest + 1,
        asked=None if asked == options else asked,
        candidacy=Candidacy(parent.name, share.percent, share.shadow, version),
    )


def is_same_model(entry: Deployment, model: str, asked: DeployOptions) -> bool:
    """Whether a candidate is of this model and these options, so that only its share can be new."""
    return not entry.fault and entry.model == model and model_versions.asked_options(entry) == asked


def share_of(entry: Deployment) -> TrialShare | None:
    """How a candidate is tried; None for a deployment that is no candidate."""
    return None if entry.candidacy is None else TrialShare(entry.candidacy.share, entry.candidacy.shadow)


def with_share(entry: Deployment, share: TrialShare, node: str) -> Deployment:
    """The entry of a candidate with another share, which `node` writes. The entry's own version stays: the plan that serves
    serves on."""
    assert entry.candidacy is not None
    version = Version(entry.candidacy.version.counter + 1, node)
    changed = replace(entry.candidacy, share=share.percent, shadow=share.shadow, version=version)
    return replace(entry, candidacy=changed)


def promote(parent: Deployment, candidate: Deployment, version: Version) -> Deployment:
    """The parent's entry with which the candidate's model serves in its place. The version that served is kept as after any
    deploy. The candidate's number goes over to it, unless a member that knew nothing of the candidate has given that number
    to another model."""
    found = model_versions.succeed(
        parent,
        candidate.model,
        candidate.model_bytes,
        candidate.options,
        candidate.asked,
        version,
        parent.name,
    )
    taken = {number_of(parent), *(one.number for one in parent.kept)}
    number = number_of(candidate)
    if number in taken or number < newest_of(parent):
        number = max(newest_of(parent), number) + 1
    return replace(found, number=number, newest=number)


def is_promoted(parent: Deployment, candidate: Deployment) -> bool:
    """Whether the parent's entry is that of the promoted candidate."""
    return parent.model == candidate.model and number_of(parent) >= number_of(candidate)


def is_over(parent: Deployment | None, candidate: Deployment, standing: Standing | None) -> bool:
    """Whether a candidate is of no use any more. `parent` is the entry or tombstone of its parent, None if it is not known,
    and `standing` how the leader says that the parent stands."""
    if parent is None:
        return False
    if parent.deleted:
        return True
    told = standing is not None and standing.version == parent.version and standing.acknowledged
    return told and is_promoted(parent, candidate)


def over(entries: Iterable[Deployment], standings: Mapping[str, Standing]) -> list[Deployment]:
    """The candidates that are of no use any more: those that were promoted and serve as their parents, and those whose
    parents are gone. `entries` are all entries, tombstones included."""
    known = {entry.name: entry for entry in entries}
    return [
        entry
        for entry in known.values()
        if entry.candidacy is not None and not entry.deleted
        if is_over(known.get(entry.candidacy.parent), entry, standings.get(entry.candidacy.parent))
    ]


# Requests


def goes_to_candidate(percent: int, draw: float) -> bool:
    """Whether a request goes to the candidate. `draw` is a number from 0 to below 1, and any part of these numbers stands
    for as large a part of the requests.

    >>> [goes_to_candidate(25, draw) for draw in (0.0, 0.249, 0.25, 0.999)]
    [True, True, False, False]
    """
    return draw * 100 < percent


def draw_of_sequence(deployment: str, sequence: str) -> float:
    """The draw of a sequence, which is the same on every gateway and for every step."""
    digest = hashlib.sha256(f"{deployment}/{sequence}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / (1 << 48)


def find_misfits(parent: Sequence[ValueInfo], candidate: Sequence[ValueInfo], side: str) -> list[str]:
    """A few words on each input or output (`side`) that is not the same for the candidate as for its parent: its name, the
    type of its elements and, where both are known, its rank."""
    here, there = ({info.name: info for info in infos} for infos in (parent, candidate))
    found = [f"{side} {name!r} is missing" for name in here if name not in there]
    found += [f"{side} {name!r} is new" for name in there if name not in here]
    for name in here.keys() & there.keys():
        old, new = here[name], there[name]
        if old.dtype != new.dtype:
            found.append(f"{side} {name!r} is {new.dtype} and not {old.dtype}")
        elif None not in (old.shape, new.shape) and len(old.shape or ()) != len(new.shape or ()):
            axes = f"{len(new.shape or ())} axes and not {len(old.shape or ())}"
            found.append(f"{side} {name!r} has {axes}")
    return sorted(found)
