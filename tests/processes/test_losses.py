"""Nothing lost: whichever agent is killed, every request is answered, and rightly; deployments outlive a power cut."""

from __future__ import annotations

import signal

import pytest
from benchmarks.models import light, sample_inputs

from edgepart.cli.local import LocalAgent, LocalCluster
from edgepart.planner.model.load import load_graph
from tests.processes.asking import deploy, differences, infer, requests_during, run_alone

pytestmark = pytest.mark.processes

PATH = light("squeezenet")
INPUTS = sample_inputs(load_graph(PATH))
REQUESTS = 100


def leader(cluster: LocalCluster) -> LocalAgent:
    return cluster.agents[cluster.status()["leader"]]


@pytest.mark.nightly
@pytest.mark.parametrize("victim", ["the leader", "a follower", "the client's own agent"])
def test_100_requests_while_an_agent_is_killed(victims: LocalCluster, victim: str) -> None:
    expected = run_alone(PATH, INPUTS)
    deploy(victims, PATH, "squeezenet", "--strategy", "bbgrap")
    leads = leader(victims)
    followers = [agent for agent in victims.living if agent is not leads]
    asked, killed = {
        "the leader": (followers[0], leads),
        "a follower": (leads, followers[1]),
        "the client's own agent": (followers[0], followers[0]),
    }[victim]

    tally = requests_during(asked, "squeezenet", INPUTS, expected, REQUESTS, killed.kill)

    assert (tally.sent, tally.answered, tally.lost, tally.wrong) == (REQUESTS, REQUESTS, [], 0)
    assert not killed.alive
    victims.wait_for_members(2)


@pytest.mark.nightly
def test_all_agents_restart_at_once_and_serve_again(victims: LocalCluster) -> None:
    expected = run_alone(PATH, INPUTS)
    deploy(victims, PATH, "squeezenet")
    for agent in victims.agents.values():
        agent.signal(signal.SIGKILL)
    for agent in victims.agents.values():
        agent.kill()
    for agent in victims.agents.values():
        agent.start()
    victims.wait(lambda: all(agent.addresses for agent in victims.living), "all three to be up again")
    victims.wait_for_members(3)

    def serves() -> bool:
        return not differences(infer(victims.first, "squeezenet", INPUTS), expected)

    assert victims.wait(serves, "the deployment to serve again")


@pytest.mark.nightly
def test_an_agent_that_is_told_to_stop_leaves_and_nothing_is_lost(victims: LocalCluster) -> None:
    expected = run_alone(PATH, INPUTS)
    deploy(victims, PATH, "squeezenet", "--strategy", "bbgrap")
    leads = leader(victims)
    leaver = next(agent for agent in victims.living if agent is not leads)

    tally = requests_during(leads, "squeezenet", INPUTS, expected, REQUESTS, lambda: _stop(leaver))

    assert (tally.answered, tally.lost, tally.wrong) == (REQUESTS, [], 0)


def _stop(agent: LocalAgent) -> None:
    assert agent.stop() == 0
