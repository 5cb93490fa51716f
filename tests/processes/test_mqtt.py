"""Agents that reach each other through a broker alone, as processes with a real mosquitto."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.models import light, sample_inputs
from benchmarks.mosquitto import Mosquitto, program

from edgepart.cli.local import LocalCluster
from edgepart.planner.model.load import load_graph
from tests.processes.asking import deploy_over, differences, infer, requests_during, run_alone

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(program() is None, reason="mosquitto is not installed"),
]

PATH = light("squeezenet")
INPUTS = sample_inputs(load_graph(PATH))
LOGIN = ("pi", "correct horse")


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path) as broker:
        yield broker


@pytest.fixture
def pair(mosquitto: Mosquitto, tmp_path: Path) -> Iterator[LocalCluster]:
    """Two members without a port for each other; the second joined through the broker as well."""
    options = ("--threads", "1", "--no-mdns", "--mqtt", mosquitto.url, "--transport", "mqtt")
    with LocalCluster(["a", "b"], options=options, folder=tmp_path) as cluster:
        yield cluster


def test_a_split_model_answers_right_and_again_after_the_broker_was_gone(
    pair: LocalCluster, mosquitto: Mosquitto
) -> None:
    expected = run_alone(PATH, INPUTS)
    deploy_over(pair, ["a", "b"], PATH, "squeezenet", "--strategy", "bbgrap", "--axis", "height")
    for agent in pair.living:
        assert agent.addresses["listen"].startswith("mqtt:")
        assert not differences(infer(agent, "squeezenet", INPUTS), expected)

    def restart() -> None:
        mosquitto.kill()
        mosquitto.start()

    tally = requests_during(pair.first, "squeezenet", INPUTS, expected, 80, restart)
    assert tally.sent == 80 and tally.wrong == 0
    assert tally.answered + len(tally.lost) == tally.sent
    assert all(tally.lost)  # each says why
    pair.wait_for_members(2)

    def serves() -> bool:
        return not differences(infer(pair.first, "squeezenet", INPUTS), expected)

    assert pair.wait(serves, "the deployment to serve again")


@pytest.mark.nightly
def test_agents_with_ports_find_each_other_at_the_broker(mosquitto: Mosquitto, tmp_path: Path) -> None:
    options = ("--threads", "1", "--no-mdns", "--mqtt", mosquitto.url)
    with LocalCluster(["a", "b"], options=options, folder=tmp_path) as cluster:
        assert all(not agent.addresses["listen"].startswith("mqtt:") for agent in cluster.living)


def test_who_lists_processes_sees_no_password(mosquitto: Mosquitto, tmp_path: Path) -> None:
    url = mosquitto.url.replace("//", "//pi:correct%20horse@")
    options = ("--threads", "1", "--no-mdns", "--mqtt", url, "--transport", "mqtt")
    with LocalCluster(["a"], options=options, folder=tmp_path) as cluster:
        process = cluster.first.process
        assert process is not None
        arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert b"--mqtt" not in arguments and b"mqtt" in arguments  # it has become the agent
        assert b"correct" not in arguments
