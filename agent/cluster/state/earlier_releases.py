"""Earlier releases: messages as members of them can read them. Rules, without I/O.

A member of an earlier release says in its version which features it understands. What it does not understand is
left out of the messages that it gets; nothing is lost by that when it tells entries back.
"""

from __future__ import annotations

from dataclasses import replace

from edgepart.agent.cluster.state.events import SendMessage
from edgepart.agent.wire.control import (
    ARRIVALS,
    CANDIDATES,
    SPARES,
    VERSIONS,
    Deployment,
    Deployments,
    Prepare,
    Report,
    Standing,
)
from edgepart.agent.wire.inference import DeployOptions
from edgepart.agent.wire.versions import understands


def make_readable(effect: SendMessage, version: str) -> SendMessage:
    """The message as its receiver can read it, which is of this version."""
    match effect.message:
        case Prepare(spare=True) as message if not understands(version, SPARES):
            return make_readable(replace(effect, message=replace(message, spare=False)), version)
        case Deployments() | Prepare() as message if not understands(version, VERSIONS):
            return replace(effect, message=without_versions(message))
        case Deployments() as message if not understands(version, CANDIDATES):
            return replace(effect, message=without_candidates(message))
        case Report() | Standing() as message if not understands(version, ARRIVALS):
            return replace(effect, message=without_arrivals(message))
    return effect


def without_versions(message: Deployments | Prepare) -> Deployments | Prepare:
    """The message as members read it that do not know versions."""
    if isinstance(message, Prepare):
        return replace(message, number=0)
    return Deployments(tuple(map(_without, message.entries)))


def _without(entry: Deployment) -> Deployment:
    options = replace(entry.options, keep=DeployOptions().keep)
    return replace(entry, options=options, number=0, newest=0, kept=(), asked=None, candidacy=None)


def without_candidates(message: Deployments) -> Deployments:
    """The message as members read it that know versions, and no candidates: those are deployments like any other."""
    return Deployments(tuple(replace(entry, candidacy=None) for entry in message.entries))


def without_arrivals(message: Report | Standing) -> Report | Standing:
    """The message as members read it that do not know how far the weights of a plan's devices have come."""
    if isinstance(message, Standing):
        return replace(message, weights=())
    holdings = (replace(one, here_bytes=0, needed_bytes=0) for one in message.holdings)
    return replace(message, holdings=tuple(holdings))
