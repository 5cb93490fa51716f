"""The laws of a description: applied twice it changes nothing more, and what is exported differs in nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.agent.cluster.state.deployments import DeploymentMap
from edgepart.agent.cluster.state.model_versions import asked_options, number_of
from edgepart.agent.wire.codec import json_record
from edgepart.agent.wire.inference import DeployOptions, QuantisedWeights
from edgepart.agent.wire.trials import TrialShare, candidate_name
from edgepart.cli.describe.changes import (
    DEPLOY,
    DISCARD,
    PROMOTE,
    PROPOSE,
    ROLL_BACK,
    SHARE,
    UNDEPLOY,
    Change,
    DeployedState,
    DescribedVersion,
    TriedVersion,
    find_changes,
    read_deployed,
)
from edgepart.cli.describe.description import read_description, write_description
from edgepart.planner.errors import ClusterError

NAMES = ("photos", "chat", "old")
options = st.builds(
    DeployOptions,
    bindings=st.integers(0, 2),
    keep=st.integers(0, 2),
    weights=st.sampled_from([None, None, "int8"]),
)
versions = st.builds(DescribedVersion, st.sampled_from(["a" * 64, "b" * 64, "c" * 64]), options)
tries = st.builds(
    TriedVersion, versions, st.builds(TrialShare, st.integers(0, 100)) | st.just(TrialShare(shadow=True))
)
descriptions = st.dictionaries(st.sampled_from(NAMES), st.tuples(versions, st.none() | tries))
Described = dict[str, tuple[DescribedVersion, TriedVersion | None]]
"""The version and the candidate of each deployment."""


def parted(described: Described) -> tuple[dict[str, DescribedVersion], dict[str, TriedVersion]]:
    trials = {name: trial for name, (_, trial) in described.items() if trial is not None}
    return {name: version for name, (version, _) in described.items()}, trials


class FakeCluster:
    """What a cluster writes down, by the cluster's own rules, and with options that its agents complete."""

    def __init__(self) -> None:
        self.map = DeploymentMap()

    def carry_out(self, changes: list[Change], wanted: Described) -> None:
        for change in changes:
            name = change.name
            if change.kind == DEPLOY:
                version = wanted[name][0]
                sent, asked = made_of(version)
                self.map.put("a", name, sent, 1, completed(asked), asked)
            elif change.kind == ROLL_BACK:
                self.map.roll_back("a", name, change.to)
            elif change.kind == UNDEPLOY:
                self.map.undeploy("a", name)
            else:
                self.change_candidate(change, wanted[name][1])

    def change_candidate(self, change: Change, trial: TriedVersion | None) -> None:
        if change.kind == PROMOTE:
            self.map.promote("a", change.name)
        if change.kind in (PROMOTE, DISCARD):
            self.map.delete("a", candidate_name(change.name))
            return
        assert trial is not None
        if change.kind == SHARE:
            self.map.set_share("a", change.name, trial.share)
            return
        assert change.kind == PROPOSE
        sent, asked = made_of(trial.version)
        self.map.propose("a", change.name, sent, 1, completed(asked), asked, trial.share)

    def there(self) -> dict[str, DeployedState]:
        """As an agent tells it."""

        def told(number: int, one: Any) -> dict[str, Any]:
            return {"version": number, "model": one.model, "options": json_record(asked_options(one))}

        def trial(parent: str) -> dict[str, Any] | None:
            entry = self.map.candidate(parent)
            if entry is None or entry.candidacy is None:
                return None
            share = {"share": entry.candidacy.share, "shadow": entry.candidacy.shadow}
            return told(number_of(entry), entry) | share

        return read_deployed(
            {
                "deployments": [
                    {
                        "name": entry.name,
                        "now": told(number_of(entry), entry),
                        "kept": [told(one.number, one) for one in entry.kept],
                        "candidate": trial(entry.name),
                    }
                    for entry in self.map.list_live()
                    if entry.candidacy is None
                ]
            }
        )


def made_of(version: DescribedVersion) -> tuple[str, DeployOptions]:
    """The digest of what a client sends, and the options that it sends."""
    if version.options.weights is None:
        return version.digest, version.options
    told = QuantisedWeights(version.digest, "ONNX Runtime", 0.01, "4 made-up inputs")
    return version.digest[::-1][1:] + "0", replace(version.options, quantised=told)


def completed(given_options: DeployOptions) -> DeployOptions:
    """As an agent completes them."""
    return DeployOptions(**(vars_of(given_options) | {"text": True, "context": 99}))


def vars_of(given_options: DeployOptions) -> dict[str, Any]:
    return {name: getattr(given_options, name) for name in DeployOptions.__dataclass_fields__}


@given(st.lists(st.tuples(descriptions, st.booleans()), min_size=1, max_size=6))
@settings(max_examples=150)
def test_what_was_applied_is_what_is_described_and_nothing_else_changed(
    steps: list[tuple[Described, bool]],
) -> None:
    cluster = FakeCluster()
    for described, prune in steps:
        before = cluster.there()
        wanted, trials = parted(described)
        changes = find_changes(wanted, before, trials, prune=prune)
        cluster.carry_out(changes, described)
        there = cluster.there()
        assert {name: (there[name].now, there[name].candidate) for name in described} == described
        others = {name: state for name, state in before.items() if name not in wanted}
        assert {n: s for n, s in there.items() if n not in wanted} == ({} if prune else others)
        assert find_changes(wanted, there, trials, prune=prune) == []
        untouched = wanted.keys() - {change.name for change in changes}
        assert all(there[name] == before[name] for name in untouched)


@given(st.lists(descriptions, min_size=1, max_size=4))
@settings(max_examples=40)
def test_what_is_exported_differs_in_nothing(steps: list[Described]) -> None:
    cluster = FakeCluster()
    for described in steps:
        wanted, trials = parted(described)
        cluster.carry_out(find_changes(wanted, cluster.there(), trials), described)
    there = cluster.there()
    read = read_description(write_description(there), "exported.yaml")
    exported = {one.name: DescribedVersion(one.digest, one.options) for one in read}
    tried = {
        one.name: TriedVersion(DescribedVersion(trial.digest, trial.options), trial.share)
        for one in read
        if (trial := one.candidate) is not None and trial.share is not None
    }
    assert find_changes(exported, there, tried, prune=True) == []


def test_a_described_candidate_is_made_changed_promoted_and_given_up() -> None:
    a, b, c = (DescribedVersion(digit * 64, DeployOptions()) for digit in "abc")
    tried = DeployedState(1, a, {}, TriedVersion(b, TrialShare(10)))
    for there, wanted, trial, kinds in (
        (DeployedState(1, a), a, TriedVersion(b, TrialShare(10)), [PROPOSE]),
        (tried, a, TriedVersion(b, TrialShare(10)), []),
        (tried, a, TriedVersion(b, TrialShare(20)), [SHARE]),
        (tried, a, TriedVersion(c, TrialShare(10)), [PROPOSE]),
        (tried, a, None, [DISCARD]),
        (tried, b, None, [PROMOTE]),
        (tried, b, TriedVersion(c, TrialShare(10)), [PROMOTE, PROPOSE]),
        (tried, c, None, [DISCARD, DEPLOY]),
        (tried, c, TriedVersion(b, TrialShare(10)), [DISCARD, DEPLOY, PROPOSE]),
    ):
        trials = {} if trial is None else {"net": trial}
        found = find_changes({"net": wanted}, {"net": there}, trials)
        assert [change.kind for change in found] == kinds
    (change,) = find_changes({"net": a}, {"net": tried}, {"net": TriedVersion(b, TrialShare(shadow=True))})
    assert change.why == ("10 % of the requests -> a copy of each request",)


def test_changes_are_told_with_what_differs() -> None:
    a, b = (DescribedVersion(digit * 64, DeployOptions()) for digit in "ab")
    few = DescribedVersion("a" * 64, DeployOptions(bindings=2, devices=("pi",)))
    there = {
        "photos": DeployedState(4, b, {1: few, 2: few, 3: a}),
        "chat": DeployedState(1, a),
        "old": DeployedState(1, a),
        "older": DeployedState(1, a),
    }
    wanted = {"new": a, "photos": few, "chat": few, "old": a}
    assert find_changes(wanted, there, prune=True) == [
        Change("new", DEPLOY, ("it is not deployed",)),
        Change(
            "photos",
            ROLL_BACK,
            ("model: bbbbbbbbbbbb -> aaaaaaaaaaaa", "devices: as usual -> ['pi']", "bindings: as usual -> 2"),
            2,
        ),
        Change("chat", DEPLOY, ("devices: as usual -> ['pi']", "bindings: as usual -> 2")),
        Change("older", UNDEPLOY, ("it is not described",)),
    ]


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"deployments": [{}]},
        {
            "deployments": [
                {"name": "a", "now": {"version": 1, "model": "m", "options": {"new": 1}}, "kept": []}
            ]
        },
        {"deployments": [{"name": "a", "now": {"version": "x", "model": "m", "options": {}}, "kept": []}]},
    ],
)
def test_an_agent_of_another_release_is_not_guessed_at(document: dict[str, Any]) -> None:
    with pytest.raises(ClusterError, match="it is of another release"):
        read_deployed(document)
