"""A process that falls silent is gone until it speaks again; one that comes and goes is a member that plans do without."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from edgepart.cli.local import LocalAgent, LocalCluster

pytestmark = pytest.mark.processes


def member(cluster: LocalCluster, agent: LocalAgent, of: LocalAgent) -> dict[str, Any]:
    """How `of` sees `agent`; {} where it does not."""
    seen: list[dict[str, Any]] = cluster.status(of)["members"]
    return next((row for row in seen if row["name"] == agent.name), {})


@pytest.mark.nightly
def test_a_frozen_process_is_out_and_comes_back(victims: LocalCluster) -> None:
    leader = victims.agents[victims.status()["leader"]]
    others = [agent for agent in victims.living if agent is not leader]
    leader.signal(signal.SIGSTOP)
    try:
        for agent in others:
            victims.wait(lambda agent=agent: not member(victims, leader, agent), f"{agent.name} to miss it")
        victims.wait(
            lambda: len({victims.status(agent)["leader"] for agent in others} - {None, leader.name}) == 1,
            "another leader",
        )
    finally:
        leader.signal(signal.SIGCONT)
    victims.wait_for_members(3)


@pytest.mark.nightly
def test_one_that_dies_again_and_again_stays_a_member_that_is_not_planned_with(victims: LocalCluster) -> None:
    flapping, watching = victims.agents["c"], victims.agents["b"]

    def seen(state: str) -> bool:
        return member(victims, flapping, watching).get("state") == state

    for state in ("alive", "alive", "flapping"):
        flapping.kill()
        victims.wait(lambda: not member(victims, flapping, watching), "it to be missed")
        flapping.start()
        # From its return on, which is looked for at once: a busy machine takes longer than 10 s to measure it again.
        victims.wait(lambda state=state: seen(state), f"it to be {state}", timeout_s=150)
    assert "lost 3 times lately: plans do without it for 10 s" in member(victims, flapping, watching)["note"]
    victims.wait(lambda: seen("alive"), "the wait to be over")
