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
from edgepart.cli.describe.changes import (
    DEPLOY,
    ROLL_BACK,
    UNDEPLOY,
    Change,
    DeployedState,
    DescribedVersion,
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
descriptions = st.dictionaries(st.sampled_from(NAMES), versions)


class FakeCluster:
    """What a cluster writes down, by the cluster's own rules, and with options that its agents complete."""

    def __init__(self) -> None:
        self.map = DeploymentMap()

    def carry_out(self, changes: list[Change], wanted: dict[str, DescribedVersion]) -> None:
        for change in changes:
            if change.kind == DEPLOY:
                version = wanted[change.name]
                sent, asked = made_of(version)
                completed = replace(asked, text=True, context=99)
                self.map.put("a", change.name, sent, 1, completed, asked)
            elif change.kind == ROLL_BACK:
                self.map.roll_back("a", change.name, change.to)
            else:
                self.map.delete("a", change.name)

    def there(self) -> dict[str, DeployedState]:
        """As an agent tells it."""

        def told(number: int, one: Any) -> dict[str, Any]:
            return {"version": number, "model": one.model, "options": json_record(asked_options(one))}

        return read_deployed(
            {
                "deployments": [
                    {
                        "name": entry.name,
                        "now": told(number_of(entry), entry),
                        "kept": [told(one.number, one) for one in entry.kept],
                    }
                    for entry in self.map.list_live()
                ]
            }
        )


def made_of(version: DescribedVersion) -> tuple[str, DeployOptions]:
    """The digest of what a client sends, and the options that it sends."""
    if version.options.weights is None:
        return version.digest, version.options
    told = QuantisedWeights(version.digest, "ONNX Runtime", 0.01, "4 made-up inputs")
    return version.digest[::-1][1:] + "0", replace(version.options, quantised=told)


@given(st.lists(st.tuples(descriptions, st.booleans()), min_size=1, max_size=6))
@settings(max_examples=150)
def test_what_was_applied_is_what_is_described_and_nothing_else_changed(
    steps: list[tuple[dict[str, DescribedVersion], bool]],
) -> None:
    cluster = FakeCluster()
    for wanted, prune in steps:
        before = cluster.there()
        changes = find_changes(wanted, before, prune=prune)
        cluster.carry_out(changes, wanted)
        there = cluster.there()
        assert {name: there[name].now for name in wanted} == wanted
        others = {name: state for name, state in before.items() if name not in wanted}
        assert {n: s for n, s in there.items() if n not in wanted} == ({} if prune else others)
        assert find_changes(wanted, there, prune=prune) == []
        untouched = wanted.keys() - {change.name for change in changes}
        assert all(there[name] == before[name] for name in untouched)


@given(st.lists(descriptions, min_size=1, max_size=4))
@settings(max_examples=40)
def test_what_is_exported_differs_in_nothing(steps: list[dict[str, DescribedVersion]]) -> None:
    cluster = FakeCluster()
    for wanted in steps:
        cluster.carry_out(find_changes(wanted, cluster.there()), wanted)
    there = cluster.there()
    exported = {
        one.name: DescribedVersion(one.digest, one.options)
        for one in read_description(write_description(there), "exported.yaml")
    }
    assert find_changes(exported, there, prune=True) == []


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
