"""An agent that is told to stop goes when others have taken over, and a loss finds a plan ready."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from benchmarks.comparing import Values
from benchmarks.models import light, sample_inputs

from edgepart.cli.local import LocalAgent, LocalCluster
from edgepart.planner.model.load import load_graph
from tests.processes.asking import deploy, requests_during, run_alone

pytestmark = pytest.mark.processes

PATH = light("squeezenet")
INPUTS = sample_inputs(load_graph(PATH))
REQUESTS = 100
LOADED = "a program of "
DIVIDED = re.compile(LOADED + r"(?!1 )\d+ segments")
SERVED = "net is served on epoch"


def said(agent: LocalAgent, *texts: str) -> list[str]:
    """In which order the agent's log says these."""
    lines = agent.log.read_text().splitlines()
    return [text for line in lines for text in texts if text in line]


def ready(agents: Sequence[LocalAgent]) -> bool:
    """Whether each has loaded the plan that serves, and one for the loss of each of the two others. These have many
    segments on each device; plans on one device alone, of one segment, may be loaded before."""
    return all(len(DIVIDED.findall(agent.log.read_text())) >= 3 for agent in agents)


def stands_by(alone: LocalAgent, leader: LocalAgent) -> bool:
    """Whether `alone` has loaded the plan that `leader` made for it alone. Lines of logs begin with their time."""
    planned = [
        line for line in leader.log.read_text().splitlines() if f"a plan for net on {alone.name}:" in line
    ]
    loaded = [line for line in alone.log.read_text().splitlines() if LOADED in line]
    return bool(planned) and bool(loaded) and loaded[-1][:23] > planned[-1][:23]


def check_stopping(leaver: LocalAgent, asked: LocalAgent, expected: Values) -> None:
    """`leaver` stops while `asked` gets requests: all are answered, and it goes when another plan serves."""

    def stop() -> None:
        assert leaver.stop() == 0

    tally = requests_during(asked, "net", INPUTS, expected, REQUESTS, stop)

    assert (tally.answered, tally.lost, tally.wrong) == (REQUESTS, [], 0)
    leaving, gone = f"{leaver.name} is leaving", f"{leaver.name} is gone"
    assert "though plans that serve need this device" not in leaver.log.read_text()
    story = said(asked, leaving, gone, SERVED)
    assert SERVED in story[story.index(leaving) : story.index(gone)]


@pytest.mark.nightly
@pytest.mark.parametrize("role", ["the leader", "a follower"])
def test_whoever_stops_goes_when_others_have_taken_over(victims: LocalCluster, role: str) -> None:
    deploy(victims, PATH, "net", "--strategy", "bbgrap")
    leader = victims.agents[victims.status()["leader"]]
    followers = [agent for agent in victims.living if agent is not leader]
    leaver, asked = (leader, followers[0]) if role == "the leader" else (followers[0], leader)
    check_stopping(leaver, asked, run_alone(PATH, INPUTS))


def test_the_loss_of_the_leader_finds_a_plan_ready_and_the_next_one_stops_when_another_has_taken_over(
    victims: LocalCluster,
) -> None:
    expected = run_alone(PATH, INPUTS)
    deploy(victims, PATH, "net", "--strategy", "bbgrap")
    killed = victims.agents[victims.status()["leader"]]
    left = [agent for agent in victims.living if agent is not killed]
    victims.wait(lambda: ready(victims.living), "plans for each loss to be loaded")
    before = {agent.name: len(said(agent, SERVED, LOADED)) for agent in left}

    tally = requests_during(left[0], "net", INPUTS, expected, REQUESTS, killed.kill)

    assert (tally.answered, tally.lost, tally.wrong) == (REQUESTS, [], 0)
    for agent in left:
        after = said(agent, SERVED, LOADED)[before[agent.name] :]
        assert after[0] == SERVED, "it had to be loaded first"
    leader = victims.agents[victims.status(left[0])["leader"]]
    (asked,) = (agent for agent in left if agent is not leader)
    # Without a plan that is ready, an agent that stops may end before the others have one: it waits for 8 s at most.
    victims.wait(lambda: stands_by(asked, leader), "a plan for the loss of the new leader to be loaded")
    check_stopping(leader, asked, expected)
