"""The map of deployments: versioned, with tombstones; merging gives the same result in any order. Rules,
without I/O.

Every member keeps the map (deployments.json) and tells the others of changes. For each name the entry with
the larger version wins. So both sides of a split may deploy, and after the split the later entry holds
everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from edgepart.agent.cluster.state import candidates, model_versions
from edgepart.agent.wire.bounds import LARGEST, MOST_ENTRIES
from edgepart.agent.wire.codec import json_record, read_json_record
from edgepart.agent.wire.control import MOST_FAULT, Deployment, Version
from edgepart.agent.wire.inference import DeployOptions
from edgepart.agent.wire.trials import (
    TrialShare,
    candidate_name,
    check_free_name,
    check_parent_name,
    has_candidate,
    lacks_candidate,
)
from edgepart.planner.errors import FrameError, UsageError

T = TypeVar("T")

MAX_ENTRIES = MOST_ENTRIES
MAX_COUNTER = LARGEST
"""Every version counter is smaller than this. No honest member reaches this limit, and no version could
follow one that did."""
FORMAT = 1


_CLASS = re.compile(r"^[A-Z][A-Za-z]*")


@dataclass(frozen=True, slots=True)
class ReadResult(Generic[T]):
    """The readable entries of a state file, and its faults."""

    entries: tuple[T, ...]
    faults: tuple[str, ...]
    """The place in the file of each entry that could not be read, and what is wrong with it."""


class TooNew(UsageError):
    """The file was written by a later version of edgepart, and this one must not overwrite it."""


def choose_winner(a: Deployment, b: Deployment) -> Deployment:
    """The entry that wins a merge. Any two honest writes have different versions, or are changes of a candidate's
    share, which have versions of their own. If all these are equal, one entry has come through a member of an
    earlier release, which does not know the numbers of models (model_versions.py) or candidates: the larger
    number wins, then the later candidacy, and after that the larger text, so that the choice never depends on
    the order."""
    return max(a, b, key=_rank)


def _rank(entry: Deployment) -> tuple[Version, bool, int, Version, str]:
    trial = Version(0, "") if entry.candidacy is None else entry.candidacy.version
    return entry.version, entry.deleted, entry.newest, trial, repr(_pack(entry))


class DeploymentMap:
    """Entries by name, tombstones included."""

    def __init__(self, entries: Iterable[Deployment] = ()) -> None:
        self._entries: dict[str, Deployment] = {}
        self.merge(entries)

    def __iter__(self) -> Iterator[Deployment]:
        """All entries, sorted by name."""
        return iter([self._entries[name] for name in sorted(self._entries)])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeploymentMap) and self._entries == other._entries

    __hash__ = None  # type: ignore[assignment]

    def get(self, name: str) -> Deployment | None:
        """The entry; None if there is none, or only a tombstone."""
        entry = self._entries.get(name)
        return None if entry is None or entry.deleted else entry

    def list_live(self) -> list[Deployment]:
        return [entry for entry in self if not entry.deleted]

    def usable(self, name: str) -> Deployment | None:
        """The entry; None if its plans must not be loaded, because it is not deployed or is set aside."""
        entry = self.get(name)
        return None if entry is None or entry.fault else entry

    def in_use(self) -> list[Deployment]:
        """The live entries that are not set aside."""
        return [entry for entry in self.list_live() if not entry.fault]

    def has(self, entries: Iterable[Deployment]) -> bool:
        """Whether the map contains each of these entries, exactly as given."""
        return all(self._entries.get(entry.name) == entry for entry in entries)

    def versions(self) -> tuple[tuple[str, Version], ...]:
        return tuple((entry.name, entry.version) for entry in self)

    def merge(self, entries: Iterable[Deployment]) -> tuple[Deployment, ...]:
        """Take over the entries that are newer than what is known; return those that were taken over."""
        changed = []
        for entry in entries:
            known = self._entries.get(entry.name)
            if not 0 < entry.version.counter < MAX_COUNTER or (known is None and self._full):
                continue
            if known is not None and (entry == known or entry.version < known.version):
                continue
            if known is None or choose_winner(known, entry) != known:
                self._entries[entry.name] = entry
                changed.append(entry)
        return tuple(changed)

    @property
    def _full(self) -> bool:
        return len(self._entries) >= MAX_ENTRIES

    def put(
        self,
        node: str,
        name: str,
        model: str,
        model_bytes: int,
        options: DeployOptions,
        asked: DeployOptions | None = None,
    ) -> Deployment:
        """Write the next version of a model as `node`, in place of any entry of that name. Raises UsageError if
        the map is full, if there is a candidate of that name, or if the name is one of candidates."""
        if (known := self.get(name)) is None or known.candidacy is not None:
            check_free_name(name)
        if (trial := self.candidate(name)) is not None:
            raise has_candidate(name, model_versions.number_of(trial))
        self._check_room(name)
        before, version = self._entries.get(name), self._next(name, node)
        tried = self._entries.get(candidate_name(name))
        used = 0 if tried is None or not tried.newest else tried.newest
        entry = model_versions.succeed(before, model, model_bytes, options, asked, version, name, used)
        self._entries[name] = entry
        return entry

    def _check_room(self, name: str) -> None:
        """Raises UsageError if there is no room for an entry of that name."""
        if self._full and name not in self._entries:
            raise UsageError(
                f"{MAX_ENTRIES} names were deployed so far, the most there can be; reuse an old one"
            )

    def candidate(self, parent: str) -> Deployment | None:
        """The candidate of a deployment; None if there is none."""
        entry = self.get(candidate_name(parent))
        return entry if entry is not None and entry.candidacy is not None else None

    def propose(
        self,
        node: str,
        parent: str,
        model: str,
        model_bytes: int,
        options: DeployOptions,
        asked: DeployOptions | None,
        share: TrialShare,
    ) -> Deployment:
        """Write a candidate of the deployment `parent` as `node`, in place of any candidate that it has; if that is of the
        same model and options, only its share changes. Raises UsageError if nothing is deployed as `parent`, if that is a
        candidate itself, or if another deployment has the candidate's name."""
        serving, name = self._living(parent), candidate_name(parent)
        check_parent_name(parent)
        if serving.candidacy is not None:
            raise UsageError(f"{parent!r} is a candidate itself. Nothing was changed")
        before = self._entries.get(name)
        if before is not None and not before.deleted and before.candidacy is None:
            raise UsageError(f"a deployment {name!r} is there, which is no candidate. Nothing was changed")
        if (known := self.candidate(parent)) is not None and candidates.is_same_model(
            known, model, asked or options
        ):
            return self.set_share(node, parent, share)
        self._check_room(name)
        self._entries[name] = candidates.propose(
            serving, before, model, model_bytes, options, asked, share, self._next(name, node)
        )
        return self._entries[name]

    def set_share(self, node: str, parent: str, share: TrialShare) -> Deployment:
        """Write another share of a deployment's candidate, and return its entry. Raises UsageError if it has none."""
        entry = self.trial(parent)
        self._entries[entry.name] = candidates.with_share(entry, share, node)
        return self._entries[entry.name]

    def promote(self, node: str, parent: str) -> Deployment:
        """Write the entry with which the candidate's model serves in place of the version that does, and return it. The
        candidate stays until that is so. Raises UsageError if there is no candidate, or if it is set aside."""
        candidate, serving = self.trial(parent), self._living(parent)
        if candidate.fault:
            raise UsageError(
                f"the candidate of {parent!r} is set aside: its model {candidate.fault}. Nothing was changed"
            )
        if not candidates.is_promoted(serving, candidate):
            serving = candidates.promote(serving, candidate, self._next(parent, node))
            self._entries[parent] = serving
        return serving

    def trial(self, parent: str) -> Deployment:
        """The candidate of a deployment. Raises UsageError if there is none."""
        self._living(parent)
        if (entry := self.candidate(parent)) is None:
            raise lacks_candidate(parent)
        return entry

    def undeploy(self, node: str, name: str) -> tuple[Deployment, ...]:
        """Write the tombstones of a deployment and its candidate, and return them. Raises UsageError as `delete`."""
        trial = self.candidate(name)
        first = self.delete(node, name)
        return (first,) if trial is None else (first, self.delete(node, trial.name))

    def roll_back(self, node: str, name: str, to: int | None = None) -> Deployment:
        """Write the entry with which an earlier version serves again (model_versions.roll_back), and return
        it. Raises UsageError if nothing of that name is deployed, or the version is not kept."""
        entry = self._living(name)
        self._entries[name] = model_versions.roll_back(entry, to, self._next(name, node))
        return self._entries[name]

    def restore(self, node: str, before: Deployment) -> Deployment:
        """Write the entry with which `before`, an earlier entry of its name, holds again, and return it. Raises
        UsageError if nothing of that name is deployed."""
        current = self._living(before.name)
        restored = model_versions.restore(current, before, self._next(before.name, node))
        self._entries[before.name] = restored
        return restored

    def delete(self, node: str, name: str) -> Deployment:
        """Write the tombstone of a deployment and return it. Raises UsageError if nothing of that name is
        deployed, or if its version cannot grow any more."""
        tombstone = model_versions.bury(self._living(name), self._next(name, node))
        self._entries[name] = tombstone
        return tombstone

    def _living(self, name: str) -> Deployment:
        """The entry. Raises UsageError if nothing of that name is deployed."""
        if (entry := self.get(name)) is None:
            names = ", ".join(e.name for e in self.list_live()) or "nothing"
            raise UsageError(f"no deployment {name!r}; deployed: {names}")
        return entry

    def set_aside(self, node: str, name: str, model: str, fault: str) -> Deployment | None:
        """Write down what is wrong with a deployment's model, and return the entry. Returns None if that is
        known already, or if another model is deployed by that name now."""
        entry = self.usable(name)
        if entry is None or entry.model != model:
            return None
        self._entries[name] = replace(entry, version=self._next(name, node), fault=fault[:MOST_FAULT])
        return self._entries[name]

    def _next(self, name: str, node: str) -> Version:
        counter = self._entries[name].version.counter if name in self._entries else 0
        if counter + 1 >= MAX_COUNTER:
            raise UsageError(
                f"{name!r} can be changed no more: a member has given it the largest version that there is. Nothing was "
                "changed; use another name, and look for that member in the logs"
            )
        return Version(counter + 1, node)


def to_json(entries: Iterable[Deployment]) -> dict[str, Any]:
    """The content of deployments.json."""
    return {"format": FORMAT, "deployments": [_pack(entry) for entry in entries]}


def from_json(document: Any) -> tuple[Deployment, ...]:
    """The entries of a document. Raises UsageError, which names the place and the fault, if one cannot be
    read."""
    return require_all_readable(read_deployments(document))


def read_deployments(document: Any) -> ReadResult[Deployment]:
    """The readable entries, and what is wrong with each of the others. Raises UsageError if the document has
    another form."""
    return read_entries(document, "deployments", FORMAT, _entry)


def require_all_readable(found: ReadResult[T]) -> tuple[T, ...]:
    """All entries. Raises UsageError if one of them could not be read."""
    if found.faults:
        raise UsageError(f"{found.faults[0]}; restore the file")
    return found.entries


def read_entries(document: Any, name: str, known: int, read: Callable[[Any], T]) -> ReadResult[T]:
    """Read the document of the state file `name`.json, which has a format number and a list `name` of
    entries. Returns the entries that `read` can read, and what is wrong with each of the others. Raises
    UsageError if the document has another form."""
    where = f"{name}.json"
    if not isinstance(document, dict):
        raise UsageError(f"{where}: expected dict, found {type(document).__name__}")
    check_format(document, known, where)
    listed = document.get(name)
    if not isinstance(listed, list):
        raise UsageError(f"{where}: {name}: expected list, found {type(listed).__name__}")
    return read_each(listed, f"{where}: {name}", read)


def read_each(listed: Iterable[Any], where: str, read: Callable[[Any], T]) -> ReadResult[T]:
    """The entries that `read` can read, and what is wrong with each of the others. A damaged entry does not
    affect the rest."""
    found: list[T] = []
    faults: list[str] = []
    for number, entry in enumerate(listed):
        try:
            if not isinstance(entry, dict):
                raise FrameError(f": expected dict, found {type(entry).__name__}")
            found.append(read(entry))
        except FrameError as error:
            # The record's name gives way to the place: "Deployment.name: ..." becomes "deployments[3].name: ..."
            faults.append(f"{where}[{number}]{_CLASS.sub('', str(error), count=1)}")
    return ReadResult(tuple(found), tuple(faults))


def check_format(root: Mapping[str, Any], known: int, where: str) -> None:
    """Check the document's format number. Raises TooNew if the number is larger than `known`, and UsageError
    if it is missing or anything else."""
    found = root.get("format")
    if type(found) is int and found > known:
        raise TooNew(f"{where}: format {found} is not {known}; update edgepart")
    if found != known:
        raise UsageError(f"{where}: format {found!r} is not {known}")


def _pack(entry: Deployment) -> dict[str, Any]:
    packed: dict[str, Any] = json_record(entry)
    packed["options"]["shapes"] = dict(sorted(packed["options"]["shapes"].items()))
    return packed


def _entry(document: Any) -> Deployment:
    """Read one entry. Options that earlier versions of edgepart did not have get their defaults, and `fault`
    is ""."""
    options = document.get("options") if isinstance(document, dict) else None
    if isinstance(options, dict):
        document = {"fault": ""} | document | {"options": json_record(DeployOptions()) | options}
    return read_json_record(Deployment, document)
