"""Real agents that are drained, taken back, removed and refused; deployments whose leader dies as they are acknowledged."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from benchmarks.models import light, sample_inputs

from edgepart.cli.local import LocalAgent, LocalCluster
from edgepart.cli.output import GOES_ON
from edgepart.planner.errors import ClusterError, Removed
from edgepart.planner.model.load import load_graph
from tests.processes.asking import deploy, differences, infer, requests_during, run_alone
from tests.processes.conftest import OPTIONS

pytestmark = pytest.mark.processes

PATH = light("squeezenet")
INPUTS = sample_inputs(load_graph(PATH))
REQUESTS = 40


def member(cluster: LocalCluster, asked: LocalAgent, name: str) -> dict[str, Any]:
    found = [m for m in cluster.status(asked)["members"] if m["name"] == name]
    return found[0] if found else {"state": "unknown"}


def devices(cluster: LocalCluster, asked: LocalAgent) -> set[str]:
    return set(cluster.status(asked)["deployments"][0]["devices"])


def give_key(cluster: LocalCluster, agent: LocalAgent) -> None:
    """The CA's key to one more member: what it is asked for, it signs itself."""
    if agent is not cluster.first:
        sealed, secret = str(cluster.folder / "ca.sealed"), {"EDGEPART_PASSPHRASE": "correct horse battery"}
        cluster.first.type("ca", "export", sealed, env=secret)
        agent.type("ca", "import", sealed, env=secret)


@pytest.fixture
def counted(
    tmp_path: Path, counting: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[LocalCluster]:
    """Three members that count the lines that they run, as do the commands that the test gives."""
    for name, value in counting.items():
        monkeypatch.setenv(name, value)
    with LocalCluster(["a", "b", "c"], options=OPTIONS, folder=tmp_path) as cluster:
        yield cluster


def test_a_box_is_drained_taken_back_and_removed_and_nothing_is_lost(counted: LocalCluster) -> None:
    victims = counted
    expected = run_alone(PATH, INPUTS)
    deploy(victims, PATH, "squeezenet", "--strategy", "bbgrap")
    leader = victims.agents[victims.status()["leader"]]
    asked, other = (agent for agent in victims.living if agent is not leader)
    give_key(victims, asked)  # the leader, which may be who holds it, is going to be removed
    told: list[Any] = []

    def drain() -> None:
        told.append(asked.type("drain", leader.name))

    tally = requests_during(asked, "squeezenet", INPUTS, expected, REQUESTS, drain)

    assert (tally.answered, tally.lost, tally.wrong) == (REQUESTS, [], 0)
    assert told[0]["state"] == "drained"
    assert devices(victims, asked) == {asked.name, other.name}
    assert {member(victims, each, leader.name)["state"] for each in victims.living} == {"drained"}
    other.kill()
    other.start()
    victims.wait(lambda: other.addresses, "it to be up again", other)
    victims.wait(lambda: member(victims, other, leader.name)["state"] == "drained", "it to know of the drain")
    with pytest.raises(ClusterError, match="no device 'nobody'"):
        asked.type("drain", "nobody")

    def remove() -> None:
        told.append(asked.type("remove", leader.name))

    tally = requests_during(asked, "squeezenet", INPUTS, expected, REQUESTS, remove)

    assert (tally.answered, tally.lost, tally.wrong) == (REQUESTS, [], 0)
    assert told[1]["state"] == "removed"
    assert leader.process is not None and leader.process.wait(20) == Removed.exit_status
    assert "was removed from the cluster by a user" in leader.log.read_text()
    assert {m["name"] for m in victims.status(asked)["members"]} == {asked.name, other.name}
    leader.start()
    assert leader.process.wait(20) == Removed.exit_status
    assert "join with a new token" in leader.log.read_text()

    other.kill()
    victims.wait(lambda: member(victims, asked, other.name)["state"] == "unknown", "it to be gone")
    assert asked.type("remove", other.name)["state"] == "removed"
    assert not differences(infer(asked, "squeezenet", INPUTS), expected)
    with pytest.raises(ClusterError, match="the only device"):
        asked.type("drain", asked.name)


@pytest.mark.nightly
def test_whoever_waits_too_long_is_told_that_it_goes_on(victims: LocalCluster) -> None:
    """A plan that only one box may compute cannot do without it."""
    deploy(victims, PATH, "squeezenet", "--devices", "b")
    asked = victims.agents["a"]
    command = ["drain", "b", "--timeout", "5s", "--state", str(asked.state), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "edgepart", *command],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ,
    )
    assert done.returncode == GOES_ON, done.stderr
    assert "it goes on" in done.stdout and "squeezenet" in done.stdout
    drains = victims.status(asked)["drains"]
    assert [(d["name"], d["done"]) for d in drains] == [("b", False)]
    assert not differences(infer(asked, "squeezenet", INPUTS), run_alone(PATH, INPUTS))
    assert asked.type("undrain", "b")["state"] == "in"
    victims.wait(lambda: not victims.status(victims.agents["c"])["drains"], "all to know")


@pytest.mark.nightly
def test_a_deployment_outlives_its_leader_that_dies_as_it_is_acknowledged(victims: LocalCluster) -> None:
    leader = victims.agents[victims.status()["leader"]]
    leader.type("deploy", str(PATH), "--name", "squeezenet", timeout_s=180)
    leader.kill()
    expected = run_alone(PATH, INPUTS)

    def serves() -> bool:
        return all(not differences(infer(agent, "squeezenet", INPUTS), expected) for agent in victims.living)

    victims.wait(serves, "the others to serve it")


@pytest.mark.nightly
def test_a_box_of_a_version_too_far_off_is_refused_by_name_on_both_sides(tmp_path: Path) -> None:
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "sitecustomize.py").write_text(
        "import importlib.metadata as found\n"
        "real = found.version\n"
        "found.version = lambda name: '0.9.0' if name == 'edgepart' else real(name)\n"
    )
    path = os.pathsep.join(filter(None, [str(tmp_path / "later"), os.environ.get("PYTHONPATH", "")]))
    with LocalCluster(
        ["a", "b"], options=OPTIONS, folder=tmp_path / "states", env={"c": {"PYTHONPATH": path}}
    ) as two:
        late = two.add("c")
        for asked, refused, version in ((two.first, "c", "0.9.0"), (late, "a", "0.1.0")):

            def told(asked: LocalAgent = asked, refused: str = refused) -> Any:
                return [r for r in two.status(asked)["refused"] if r["name"] == refused]

            found = two.wait(told, f"{asked.name} to refuse {refused}")[0]
            assert found["version"] == version
            assert "one minor release apart" in found["why"]
        assert {m["name"] for m in two.status()["members"]} == {"a", "b"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, in memory."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=160m,mode=0700", "edgepart-test", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a disk of its own takes root, and a system that lets it mount one")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.nightly
def test_an_agent_with_a_full_disk_serves_says_so_and_recovers(small_disk: Path) -> None:
    expected = run_alone(PATH, INPUTS)
    with LocalCluster(["a"], options=(*OPTIONS, "--compiled", "0"), folder=small_disk) as one:
        deploy(one, PATH, "squeezenet")
        agent = one.first
        (agent.state / "ballast").unlink()
        filling = small_disk / "filling"
        with filling.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(1 << 16)):
                pass
        one.wait(lambda: one.status()["disk"]["trouble"], "it to notice")
        assert not differences(infer(agent, "squeezenet", INPUTS), expected)
        with pytest.raises(ClusterError, match=r"disk is full|No space left"):
            deploy(one, PATH, "again")
        agent.type("undeploy", "squeezenet")
        one.wait(lambda: "deployments.json" in one.status()["disk"]["trouble"], "a file to be behind")
        filling.unlink()
        one.wait(lambda: not one.status()["disk"]["trouble"], "it to have caught up")
        assert '"deleted": true' in (agent.state / "deployments.json").read_text()
        deploy(one, PATH, "again")
        assert not differences(infer(agent, "again", INPUTS), expected)
