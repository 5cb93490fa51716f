"""Versions of a deployment's model: the numbers that users see, and which earlier versions are kept for a rollback. Rules,
without I/O.

The number of a version never changes and never stands for two models of one name. It is not `Deployment.version`, by which
members merge their maps and which also grows when a deployment is rolled back, set aside or undeployed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from edgepart.agent.wire.control import Deployment, ModelVersion, Version
from edgepart.agent.wire.inference import DeployOptions
from edgepart.planner.errors import UsageError

FIRST = 1
"""The number of a version that a member of an earlier release deployed."""


def number_of(entry: Deployment) -> int:
    """The number of the version that serves."""
    return entry.number or FIRST


def asked_options(entry: Deployment | ModelVersion) -> DeployOptions:
    """The options as the user gave them. If that is not known, they are the options in force, without those that only the
    agent that takes a model gives."""
    if entry.asked is not None:
        return entry.asked
    return replace(entry.options, prefill=None, batch=None, text=False, batch_tolerance=None)


def succeed(
    before: Deployment | None,
    model: str,
    model_bytes: int,
    options: DeployOptions,
    asked: DeployOptions | None,
    version: Version,
    name: str,
    used: int = 0,
) -> Deployment:
    """The entry of a new version, which follows `before`: the entry or tombstone of that name, None if there is none.
    `used` is a number up to which all are given, whatever `before` says."""
    newest = max(used, 0 if before is None else newest_of(before))
    kept = () if before is None or before.deleted else _keep(_served(before), before.kept, options.keep)
    return Deployment(
        name,
        model,
        model_bytes,
        options,
        version,
        number=newest + 1,
        newest=newest + 1,
        kept=kept,
        asked=None if asked == options else asked,
    )


def roll_back(entry: Deployment, to: int | None, version: Version) -> Deployment:
    """The entry with which the version numbered `to` serves again; None stands for the last version before the one that
    serves. Raises UsageError if that version is not kept."""
    kept = {one.number: one for one in entry.kept}
    number = max((n for n in kept if n < number_of(entry)), default=None) if to is None else to
    if number is None or number not in kept:
        wanted = "no version before it is kept" if to is None else f"version {to} is not kept"
        if to == number_of(entry):
            wanted = "that is the version asked for"
        others = ", ".join(map(str, sorted(kept))) or "none (--keep of `edgepart deploy` says how many)"
        raise UsageError(
            f"{entry.name!r} serves version {number_of(entry)}, and {wanted}; kept: {others}. Nothing was changed"
        )
    back = kept.pop(number)
    return replace(
        entry,
        model=back.model,
        model_bytes=back.model_bytes,
        options=back.options,
        asked=back.asked,
        number=back.number,
        newest=newest_of(entry),
        kept=_keep(_served(entry), kept.values(), back.options.keep),
        version=version,
        fault="",
    )


def restore(current: Deployment, before: Deployment, version: Version) -> Deployment:
    """The entry with which `before` serves again, because the version in `current` failed. That version's number is not
    given again."""
    return replace(before, version=version, newest=newest_of(current))


def bury(entry: Deployment, version: Version) -> Deployment:
    """The tombstone of an entry."""
    return Deployment(
        entry.name, entry.model, 0, DeployOptions(), version, deleted=True, newest=newest_of(entry)
    )


def newest_of(entry: Deployment) -> int:
    """The largest number that was given under the entry's name, as far as the entry says."""
    return max(entry.newest, entry.number, FIRST)


def _served(entry: Deployment) -> tuple[ModelVersion, ...]:
    """The serving version as one that is kept; nothing if its model is set aside."""
    if entry.fault:
        return ()
    return (ModelVersion(number_of(entry), entry.model, entry.model_bytes, entry.options, entry.asked),)


def _keep(
    last: tuple[ModelVersion, ...], others: Iterable[ModelVersion], most: int
) -> tuple[ModelVersion, ...]:
    """Those that stay, of the version that served last and the others, which come in the order in which they served."""
    return (*last, *others)[:most]
