"""All fuzz targets."""

from __future__ import annotations

from tests.fuzz.doors import (
    carried,
    grpc,
    http,
    identity,
    members,
    mqtt,
    openai,
    plans,
    state,
    text,
    wire,
    workloads,
)
from tests.fuzz.target import Target

TARGETS: tuple[Target, ...] = (
    *wire.TARGETS,
    *carried.TARGETS,
    *members.TARGETS,
    *identity.TARGETS,
    *mqtt.TARGETS,
    *http.TARGETS,
    *grpc.TARGETS,
    *openai.TARGETS,
    *state.TARGETS,
    *plans.TARGETS,
    *workloads.TARGETS,
    *text.TARGETS,
)


def named(name: str) -> Target:
    """Return the target of that name. Raises KeyError if there is none."""
    return {target.name: target for target in TARGETS}[name]
