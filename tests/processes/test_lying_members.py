"""Three real agents and a member that lies to them: each lie once stopped all of them, or lost what was deployed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks.models import light, sample_inputs

from edgepart.agent.wire.codec import message_to_frame
from edgepart.agent.wire.control import (
    ALIVE,
    REMOVED,
    Activate,
    Card,
    Deployment,
    Deployments,
    Drain,
    Drains,
    Heartbeat,
    Prepare,
    Sighting,
    Version,
    View,
)
from edgepart.agent.wire.inference import DeployOptions, Epoch
from edgepart.cli.local import LocalAgent, LocalCluster
from edgepart.planner.errors import ClusterError
from edgepart.planner.model.load import load_graph
from tests.processes.asking import deploy, differences, infer, run_alone
from tests.processes.conftest import OPTIONS
from tests.processes.liar import Liar, lying

pytestmark = [pytest.mark.processes, pytest.mark.nightly]
"""tests/agent/cluster/test_lying_members.py tells the same of simulated members."""

PATH = light("squeezenet")
INPUTS = sample_inputs(load_graph(PATH))
LARGEST = 2**53 - 1


@pytest.fixture(scope="module")
def lied_to(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, Liar]]:
    folder = tmp_path_factory.mktemp("lied")
    with LocalCluster(["a", "b", "c"], options=OPTIONS, folder=folder) as cluster:
        deploy(cluster, PATH, "squeezenet")
        with lying(cluster, folder / "liar") as liar:
            yield cluster, liar


def nodes(cluster: LocalCluster) -> dict[str, str]:
    return {name: cluster.status(agent)["node"] for name, agent in cluster.agents.items()}


def named(cluster: LocalCluster, text: str, *agents: LocalAgent) -> None:
    """Until the logs of these, or all, say so."""
    for agent in agents or cluster.living:
        cluster.wait(lambda agent=agent: text in agent.log.read_text(), f"{agent.name} to log {text!r}")


def all_is_well(cluster: LocalCluster) -> None:
    """All three run, agree on a leader, see each other, and answer right."""
    assert len(cluster.living) == 3
    names = set(cluster.agents)

    def agreed() -> bool:
        seen = [cluster.status(agent) for agent in cluster.living]
        return len({view["leader"] for view in seen}) == 1 and all(
            view["leader"] in names and names <= {m["name"] for m in view["members"] if m["state"] == "alive"}
            for view in seen
        )

    cluster.wait(agreed, "all to see each other and one leader")
    expected = run_alone(PATH, INPUTS)
    for agent in cluster.living:
        assert not differences(infer(agent, "squeezenet", INPUTS), expected)


def test_a_card_with_a_null_leaves_that_device_out_and_says_why(lied_to: tuple[LocalCluster, Liar]) -> None:
    cluster, liar = lied_to
    liar.meet()
    liar.say(Card(liar.node, b'{"device": {"name": "liar", "flops_per_s": null}, "links": {}}'))
    named(cluster, "plans are made without it: a card that cannot be read")
    assert "a card that cannot be read" in liar.row(cluster.first)["note"]
    deploy(cluster, PATH, "planned-anew")
    assert not differences(infer(cluster.agents["b"], "planned-anew", INPUTS), run_alone(PATH, INPUTS))
    cluster.first.type("undeploy", "planned-anew")
    all_is_well(cluster)


def test_nobody_is_removed_by_a_word_that_the_ca_did_not_sign(lied_to: tuple[LocalCluster, Liar]) -> None:
    cluster, liar = lied_to
    liar.meet()
    version = Version(9, liar.node)
    forged = [Drain(node, name, REMOVED, version, b"s" * 70) for name, node in nodes(cluster).items()]
    liar.say(Drains(tuple(forged)))
    named(cluster, "is removed, which the cluster's CA did not sign")
    all_is_well(cluster)


def test_an_entry_that_could_not_be_read_again_is_refused_as_it_comes(
    lied_to: tuple[LocalCluster, Liar],
) -> None:
    cluster, liar = lied_to
    liar.meet()
    entry = Deployment("poison", "1" * 64, 5, DeployOptions(), Version(1, liar.node))
    for bad in (2**63, 2**53):
        frame = message_to_frame(Deployments((entry,)))
        frame.header["entries"][0]["model_bytes"] = bad
        liar.say_frame(frame)
    named(cluster, "Deployments.entries: Deployment.model_bytes: ")
    with pytest.raises(ClusterError, match=r"--memory-limit|memory_limit_bytes"):
        deploy(cluster, PATH, "poison", "--memory-limit", str(2**63))
    deploy(cluster, PATH, "limited", "--memory-limit", str(LARGEST))
    assert all("poison" not in (a.state / "deployments.json").read_text() for a in cluster.living)
    all_is_well(cluster)


def test_incarnations_that_leap_are_refused(lied_to: tuple[LocalCluster, Liar]) -> None:
    cluster, liar = lied_to
    liar.meet()
    told = tuple(Sighting(node, LARGEST, ALIVE, name, ()) for name, node in nodes(cluster).items())
    liar.say(View(told))
    named(cluster, f"is not believed: it reports incarnation {LARGEST}", next(iter(cluster.living)))
    all_is_well(cluster)


def test_orders_of_a_member_that_does_not_lead_are_not_obeyed(lied_to: tuple[LocalCluster, Liar]) -> None:
    cluster, liar = lied_to
    liar.meet()
    entry: Any = cluster.wait(
        lambda: next((m["Deployments"] for m in liar.heard.values() if "Deployments" in m), None),
        "the liar to hear what is deployed",
    )
    deployed = next(e for e in entry.entries if e.name == "squeezenet")
    order: Any = cluster.wait(
        lambda: next((m["Prepare"] for m in liar.heard.values() if "Prepare" in m), None),
        "the leader to order something of the liar",
    )
    epoch = Epoch(order.term, LARGEST - 1)
    names = tuple((name, liar.node) for name, _ in order.names)
    liar.computed.clear()
    liar.say(
        Prepare(
            order.term,
            "squeezenet",
            deployed.version,
            epoch,
            order.plan,
            names,
            order.model,
            (liar.node,),
            0.1,
            {},
        )
    )
    liar.say(Activate(order.term, "squeezenet", epoch))
    all_is_well(cluster)
    liar.say(Activate(order.term, "squeezenet", epoch))
    all_is_well(cluster)
    assert liar.computed == []


def test_a_term_that_leaps_is_refused_and_all_serve_again_after_a_restart(
    lied_to: tuple[LocalCluster, Liar],
) -> None:
    """The last one: what the other lies might have left on the disks is read again here."""
    cluster, liar = lied_to
    liar.meet()
    liar.say(Heartbeat(liar.hello.boot, 1, LARGEST, liar.node, LARGEST))
    named(cluster, f"is not believed: it reports term {LARGEST}", next(iter(cluster.living)))
    all_is_well(cluster)
    liar.stop()  # Where all begin anew it may be its turn to lead, which it never does.
    for agent in cluster.agents.values():
        agent.kill()
    for agent in cluster.agents.values():
        agent.start()
    for agent in cluster.agents.values():
        cluster.wait(lambda agent=agent: agent.addresses, f"{agent.name} to be up again", agent)
    all_is_well(cluster)
    assert all("is damaged" not in agent.log.read_text() for agent in cluster.living)
    for agent in cluster.living:
        assert {"squeezenet", "limited"} <= {d["name"] for d in cluster.status(agent)["deployments"]}


def test_half_of_the_devices_are_drained_from_any_box_and_the_rest_where_the_ca_s_key_is(
    lied_to: tuple[LocalCluster, Liar],
) -> None:
    cluster, liar = lied_to
    a, b, c = cluster.agents.values()
    cluster.wait(
        lambda: liar.state(a) == liar.state(b) == liar.state(c) == "no member", "the liar to be gone"
    )
    assert c.type("drain", "b")["state"] == "drained"
    with pytest.raises(ClusterError, match="more than half of the devices"):
        c.type("drain", "c")
    with pytest.raises(ClusterError, match="a holds the CA's key"):
        c.type("remove", "a")
    assert a.type("drain", "c")["state"] == "drained"
    assert c.type("undrain", "b")["state"] == "in"
    a.kill()
    cluster.wait(lambda: len(cluster.status(c)["members"]) == 2, "a to be gone")
    with pytest.raises(ClusterError, match="takes the CA's key"):
        c.type("undrain", "c")
