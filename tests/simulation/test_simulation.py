"""Plays many seeds, and checks that they would reveal faults: rules of the product are broken on purpose, and
the simulation notices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgepart.agent.cluster.core.core import Core
from edgepart.agent.cluster.core.follower import Follower
from edgepart.agent.cluster.leader import status
from edgepart.agent.cluster.membership import election, suspects
from edgepart.agent.cluster.state.deployments import DeploymentMap
from edgepart.agent.cluster.state.events import Effect
from edgepart.agent.serving import request_state
from edgepart.agent.wire.control import ALIVE, SUSPECT, Deployment
from edgepart.agent.wire.inference import NO_EPOCH
from tests.nightly import nightly
from tests.simulation.__main__ import attempt, together
from tests.simulation.box import Box
from tests.simulation.branch import branch
from tests.simulation.cluster import SimNet, node_id
from tests.simulation.invariants import GHOST_S, is_unaware
from tests.simulation.play import play
from tests.simulation.schedule import LARGE
from tests.simulation.third import lose_a_third
from tests.simulation.trace import Broken, Trace

A, B, C = map(node_id, range(1, 4))
ROOT = Path(__file__).parents[2]


def play_all(seeds: range, agents: int) -> None:
    failures = [found for found in attempt(seeds, agents) if isinstance(found, str)]
    assert not failures, "\n\n".join(failures[:3])


@pytest.mark.parametrize("agents", [2, 3, *nightly(4, 5, 6, 8)])
@pytest.mark.parametrize("part", [0, *nightly(1, 2)])
def test_small_clusters_survive_anything(agents: int, part: int, tmp_path: Path) -> None:
    """Runs in a process of its own, because line coverage makes it four times as slow."""
    found = tmp_path / "found.json"
    seeds = SEEDS[agents]
    asked = [
        "--agents",
        str(agents),
        "--first",
        str(part * seeds),
        "--seeds",
        str(seeds),
        "--json",
        str(found),
    ]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    command = [sys.executable, "-m", "tests.simulation", *asked]
    played = subprocess.run(command, cwd=ROOT, env=plain, capture_output=True, text=True)
    assert played.returncode == 0, played.stderr[-10_000:]
    table = json.loads(found.read_text())
    assert (table["agents"], table["seeds"], table["failed_seeds"]) == (agents, seeds, 0)


def test_slices_of_a_run_are_added_up() -> None:
    one = {"agents": 50, "seeds": 250, "failed_seeds": 1, "settled_s_max": 9.5, "virtual_s": 0.1}
    other = {"agents": 50, "seeds": 250, "failed_seeds": 2, "settled_s_max": 7.0, "virtual_s": 0.2}
    assert together([one, other]) == one | {"seeds": 500, "failed_seeds": 3, "virtual_s": 0.3}
    with pytest.raises(SystemExit, match="not slices of one run"):
        together([one, other | {"agents": 5}])


SEEDS = {2: 150, 3: 150, 4: 130, 5: 120, 6: 80, 8: 70}
"""Seeds in each part, by number of agents; `make simulate` plays more."""


@pytest.mark.parametrize("seed", [0, *nightly(1, 2)])
def test_larger_clusters_survive_anything(seed: int) -> None:
    play_all(range(seed, seed + 1), 50)


def test_a_seed_is_the_same_every_time() -> None:
    traces = [Trace(), Trace()]
    first, again = (play(7, 5, trace) for trace in traces)
    assert first == again
    assert traces[0].lines == traces[1].lines
    assert play(8, 5) != first


def test_what_is_taken_at_once_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that change little are taken without the full check; the twin makes the full check each time."""
    quick, plain = Trace(), Trace()
    outcomes = [play(seed, 4, quick) for seed in range(20)]
    monkeypatch.setattr(Core, "_at_once", lambda self, event, now: None)
    assert [play(seed, 4, plain) for seed in range(20)] == outcomes
    assert quick.lines == plain.lines


def test_a_copy_of_the_process_gives_its_result_and_leaves_nothing_behind() -> None:
    changed = [1]
    assert branch(lambda: changed.append(2) or list(changed)) == [1, 2]  # type: ignore[func-returns-value]
    assert changed == [1]
    with pytest.raises(ChildProcessError):
        branch(lambda: 1 / 0)


def test_seeds_that_begin_alike_are_each_as_if_played_alone() -> None:
    together = attempt(range(21, 23), LARGE)
    assert together == [play(seed, LARGE) for seed in range(21, 23)]


def test_a_trace_shows_messages_only_to_those_who_ask() -> None:
    shown: list[str] = []
    quiet = Trace()
    play(3, 3, Trace(shown.append))
    play(3, 3, quiet)
    assert any("Heartbeat" in line for line in shown)
    assert [line for line in shown if " -> " not in line or "cut" in line] == quiet.lines


def noticed(what: str, seeds: int = 40, agents: int = 4, *, step: int = 1, first: int = 0) -> None:
    """Check that some seed from `first` to `seeds` fails with that text. With a `step` of WITH_TEXTS, and a `first` that
    is a multiple of it, all of them have texts."""
    said = []
    for seed in range(first + step - 1, seeds, step):
        try:
            play(seed, agents)
        except Broken as error:
            if what in str(error):
                return
            said.append(str(error))
    pytest.fail(f"{seeds} seeds, and none says {what!r} but {said[:3]}")


def test_two_leaders_of_one_term_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(election, "next_term", lambda seen, node: seen + 1)
    noticed("is led by")


def test_a_deployment_that_is_acknowledged_while_a_member_serves_the_version_before_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(status, "serves_everywhere", lambda placement, world: True)
    noticed("serves an earlier version")


def test_a_term_that_is_told_before_it_is_on_disk_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(self: election.Election, term: int) -> Iterator[Effect]:
        self._kept_term = max(self._kept_term, term)
        return persist(self, term)

    persist = election.Election._persist
    monkeypatch.setattr(election.Election, "_persist", hasty)
    noticed("which is not on its disk", seeds=1)


def test_a_deployment_that_is_reported_before_it_is_on_disk_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hasty(self: Core, changed: tuple[Deployment, ...]) -> Iterator[Effect]:
        self._kept = self.deployments.versions()
        return deployed(self, changed)

    deployed = Core._apply_deployments
    monkeypatch.setattr(Core, "_apply_deployments", hasty)
    net = SimNet(3)
    net.start()
    net.run(5)
    for node in net.boxes:
        net.slow_disk(node, 5.0)
    net.deploy(A)
    with pytest.raises(Broken, match="is acknowledged with 0 copies"):
        net.run(5)


def test_a_box_whose_disk_is_slow_is_suspected_by_nobody_and_leads_when_its_term_is_written() -> None:
    net = SimNet(4)
    net.start()
    net.until(lambda: not net.settled_faults(), 10)
    leader = net.core(A).leader
    for node in net.boxes:
        net.slow_disk(node, 5.0)
    before, began = len(net.log), net.now
    net.deploy(A)
    net.until(lambda: "net" in net.acknowledged, 20)
    assert net.now - began > 5.0
    assert not [line for line in net.log[before:] if "sees" in line or "follows" in line]
    net.crash(leader)
    net.until(lambda: not net.settled_faults(), 20)
    told = [line for line in net.log[before:] if "sees" in line]
    assert all(len(line.split("sees")[1].split()) == 3 for line in told), "nobody but the leader was missed"


def test_a_device_that_never_goes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects, "judge_suspect", lambda told, *, out_of_patience: SUSPECT)
    noticed("not calm", seeds=5)
    net = SimNet(3)
    net.start()
    net.run(2 * GHOST_S)
    net.crash(C, power=True)
    with pytest.raises(Broken, match="still lists 3"):
        net.run(2 * GHOST_S)


def test_a_lost_deployment_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    merge = DeploymentMap.merge
    monkeypatch.setattr(
        DeploymentMap,
        "merge",
        lambda self, entries: merge(self, [e for e in entries if e.version.counter < 2]),
    )
    noticed("maps of deployments")


def test_an_epoch_that_shrinks_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(self: Follower, name: str, epoch: object, now: float) -> object:
        self._active.pop(name, NO_EPOCH)
        return activate(self, name, epoch, now)  # type: ignore[arg-type]

    activate = Follower._activate
    monkeypatch.setattr(Follower, "_activate", forgetful)
    noticed("->", seeds=200, agents=2)


def test_a_request_that_nobody_replays_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_state.Requests, "_replay_broken", lambda self, node, error, now: iter(()))
    monkeypatch.setattr(request_state.Requests, "_put_off", lambda self, request, now: iter(()))
    noticed("of a calm cluster", first=20, seeds=30, agents=3)


def test_a_request_that_outlives_its_deadline_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_state.Requests, "_expire", lambda self, now: iter(()))
    noticed("again and again", seeds=200)


def test_a_member_that_hears_nobody_evicts_nobody() -> None:
    """Messages of others no longer reach it, but its own still reach them: only in its own view is it alone."""
    for seed in range(5):
        net = SimNet(4, seed)
        net.start()
        net.until(lambda net=net: not net.settled_faults(), 10)  # type: ignore[misc]
        for other in list(net.boxes)[1:]:
            net.cut(other, A, one_way=True)
        before = len(net.log)
        net.run(20)
        rest = {node for node in net.boxes if node != A}
        for node in rest:
            others = {m.node for m in net.core(node).membership.members() if m.status == ALIVE}
            assert others >= rest
        assert not [
            line
            for line in net.log[before:]
            for n in rest
            if "follows nobody" in line and line.split()[1] == n
        ]
        net.heal()
        net.until(lambda net=net: not net.settled_faults(), 20)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("lost_at", "now", "unaware"),
    [(5.0, 5.1, True), (5.0, 20.0, False), (12.0, 14.1, True), (9.9, 14.1, True), (12.0, 20.0, False)],
)
def test_a_leader_cannot_know_of_a_disk_that_was_lost_while_it_was_stalled(
    lost_at: float, now: float, unaware: bool
) -> None:
    assert is_unaware(Box(A, stalled_since=10.0, stalled_until=14.0), lost_at, now) == unaware


def test_a_third_at_once_is_noticed_by_all_in_little_time_and_few_messages() -> None:
    found = lose_a_third(40, 1)
    assert found["settled_after_the_loss_s"] < 2
    assert found["messages_each"] < 2_000
    found = lose_a_third(30, 1, power=True)
    assert found["settled_after_the_loss_s"] < 4
