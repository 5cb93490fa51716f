"""A whole agent in this process: start and stop, also half-way; deployments that fail, and what is deleted afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgepart.agent import maintenance, service
from edgepart.agent.api import progress
from edgepart.agent.api.progress import ProgressLines
from edgepart.agent.chronicle.log_lines import LogKeeper
from edgepart.agent.host.core_sets import allowed_cpus
from edgepart.agent.net.endpoints import bind, own_addresses, reachable_text
from edgepart.agent.options import AgentOptions
from edgepart.agent.security import identity
from edgepart.agent.service import Agent
from edgepart.agent.state_files import StateFiles
from edgepart.agent.wire.inference import DeployOptions
from edgepart.agent.wire.trials import TrialShare
from edgepart.planner.devices.cluster import Device
from edgepart.planner.errors import Infeasible, ModelError, Unavailable, UnknownDeployment, UsageError
from edgepart.planner.model.digests import model_digest

BOUND_S = 60
X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a small box, at once."""

    def measure(name: str, threads: int, kept: Path, made_with: str) -> Device:
        return Device(name, "box", 1e10, 1e10, 1e9, threads)

    monkeypatch.setattr(service, "measure_device", measure)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    identity.create_cluster(tmp_path / "state", now=0.0)
    return tmp_path / "state"


def options(state: Path, **changes: Any) -> AgentOptions:
    here = ("127.0.0.1", 0)
    base = AgentOptions(state, "box", here, here, None, mdns=False, threads=1)
    return replace(base, **changes)


def run(state: Path, work: Callable[[Agent], Awaitable[None]], **changes: Any) -> None:
    """`work` with an agent that is then stopped, and has left nothing running."""

    async def main() -> None:
        before = set(threading.enumerate())
        agent = Agent(options(state, **changes), LogKeeper().lines)
        try:
            async with asyncio.timeout(BOUND_S):
                await agent.start()
                await work(agent)
        finally:
            await agent.stop()
        assert {task.get_name() for task in asyncio.all_tasks()} == {asyncio.current_task().get_name()}  # type: ignore[union-attr]
        await asyncio.get_running_loop().shutdown_default_executor()
        for thread in set(threading.enumerate()) - before:
            thread.join(BOUND_S)
            assert not thread.is_alive(), thread.name

    asyncio.run(main())


def model_in(folder: Path, op: str, rows: int = 3) -> Path:
    """y = op(x)."""
    folder.mkdir(exist_ok=True)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, 4]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"])], "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save_model(model, folder / f"{op}.onnx")
    return folder


def renamed(given: Path, folder: Path) -> Path:
    """The model with another name for its input."""
    (path,) = given.glob("*.onnx")
    model = onnx.load(path)
    model.graph.input[0].name = model.graph.node[0].input[0] = "z"
    folder.mkdir()
    onnx.save_model(model, folder / "renamed.onnx")
    return folder


async def deploy(agent: Agent, folder: Path, **wanted: Any) -> dict[str, Any]:
    lines = ProgressLines(60)
    return await agent._logic.clients.node.deploy("net", folder, DeployOptions(**wanted), lines.report)


async def answer(agent: Agent) -> Any:
    return (await agent._logic.clients.node.infer("net", {"x": X}, None, 30.0)).outputs["y"]


def test_from_start_to_stop(state: Path, tmp_path: Path) -> None:
    async def work(agent: Agent) -> None:
        with pytest.raises(UnknownDeployment, match="deployed: nothing"):
            await answer(agent)
        document = await deploy(agent, model_in(tmp_path / "m", "Neg"))
        assert document["devices"] == ["box"]
        assert np.array_equal(await answer(agent), -X)
        assert agent._logic.clients.node.status()["leader"] == "box"
        assert [device["name"] for device in agent._logic.clients.node.devices()["devices"]] == ["box"]
        standing = agent._logic.driver.core.standings["net"]
        agent._logic.driver.core.standings["net"] = replace(standing, note="one device is faster")
        assert agent._logic.clients.node.models()[0].note == "one device is faster"
        assert agent._logic.clients.node.plan("net")["shares"]["y"] == {"box": "whole"}
        assert agent._logic.clients.node.ready(None) == agent._logic.clients.node.ready("net") == (True, "")
        assert agent._is_progressing()
        assert (state / "agent.json").exists()

    run(state, work)
    assert not (state / "agent.json").exists()
    terms = StateFiles(state).term

    async def again(agent: Agent) -> None:
        while not agent._logic.clients.node.ready("net")[0]:
            await asyncio.sleep(0.02)
        assert np.array_equal(await answer(agent), -X)

    run(state, again)
    assert StateFiles(state).term > terms
    assert StateFiles(state).incarnation == 2


def test_whoever_deploys_is_told_for_how_long_the_same_has_been_done(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "STILL_S", 0.0)
    told: list[str] = []

    async def work(agent: Agent) -> None:
        folder = model_in(tmp_path / "m", "Neg")
        await agent._logic.clients.node.deploy(
            "net", folder, DeployOptions(), lambda text, done, total: told.append(text)
        )

    run(state, work)
    assert "computing a plan" in told
    assert any(text.startswith("computing a plan (") and text.endswith(" s so far)") for text in told)


def test_a_stored_model_is_deployed_again_with_other_options_and_under_another_name(
    state: Path, tmp_path: Path
) -> None:
    async def work(agent: Agent) -> None:
        node = agent._logic.clients.node
        await deploy(agent, model_in(tmp_path / "m", "Neg"))
        model = model_digest([tmp_path / "m" / "Neg.onnx"])
        shutil.rmtree(tmp_path / "m")
        told: list[str] = []
        options = DeployOptions(objective="throughput", keep=2)
        for name, version in (("net", "2"), ("other", "1")):
            found = await node.deploy_stored(name, model, options, lambda stage, *_: told.append(stage))
            assert found["version"] == version
        assert "storing" not in told
        assert {card.model_digest for card in node.models()} == {model}
        assert np.array_equal(await answer(agent), -X)
        with pytest.raises(Unavailable, match="no member holds it"):
            await node.deploy_stored("net", "0" * 64, options, lambda *_: None)
        assert node.intake.uploading == 0

    run(state, work)


def test_what_fails_leaves_what_was_deployed(state: Path, tmp_path: Path) -> None:
    async def work(agent: Agent) -> None:
        for folder, wanted, kind in (
            (model_in(tmp_path / "m", "Neg"), {"memory_limit_bytes": 1}, Infeasible),
            (tmp_path, {}, ModelError),
        ):
            with pytest.raises(kind):
                await deploy(agent, folder, **wanted)
            assert agent._logic.clients.node.models() == []
        await deploy(agent, tmp_path / "m")
        with pytest.raises(Infeasible):
            await deploy(agent, model_in(tmp_path / "n", "Abs"), memory_limit_bytes=1)
        assert np.array_equal(await answer(agent), -X)
        (card,) = agent._logic.clients.node.models()
        assert (card.version, card.kept_versions) == ("2", ()), "version 1 failed, and so did version 3"
        assert agent._logic.clients.node.intake.uploading == 0
        await agent._logic.maintenance.collect()
        while not agent._logic.clients.node.ready("net")[0]:
            await asyncio.sleep(0.02)
        assert np.array_equal(await answer(agent), -X)
        await deploy(agent, tmp_path / "n")
        assert np.array_equal(await answer(agent), np.abs(X))

    run(state, work)


def test_what_nothing_uses_is_deleted_and_nothing_else(state: Path, tmp_path: Path) -> None:
    async def work(agent: Agent) -> None:
        store = agent._base.store
        await deploy(agent, model_in(tmp_path / "m", "Neg"))
        junk = store.put_bytes(b"junk")
        assert agent._logic.clients.node.intake.uploading == 0
        await agent._logic.maintenance.collect()
        assert not store.has(junk)
        assert len(store.models()) == 1
        assert np.array_equal(await answer(agent), -X)
        await agent._logic.clients.node.undeploy("net")
        while agent._compute.plans.active("net"):
            await asyncio.sleep(0.02)
        await agent._logic.maintenance.collect()
        assert store.models() == agent._logic.driver.core.follower.models == ()
        assert store.nbytes() == 0

    run(state, work)


def test_models_of_kept_versions_stay_and_those_of_older_ones_go(state: Path, tmp_path: Path) -> None:
    async def work(agent: Agent) -> None:
        store, node = agent._base.store, agent._logic.clients.node
        folders = [model_in(tmp_path / operator, operator) for operator in ("Neg", "Abs", "Floor")]
        digests = [model_digest([*folder.glob("*.onnx")]) for folder in folders]
        for folder in folders:
            await deploy(agent, folder)
        await agent._logic.maintenance.collect()
        assert set(store.models()) == set(digests[1:])
        back = await node.rollback("net", None, lambda *_: None)
        assert back["version"] == "2" and np.array_equal(await answer(agent), np.abs(X))
        with pytest.raises(UsageError, match="no version before it is kept; kept: 3"):
            await node.rollback("net", None, lambda *_: None)
        await deploy(agent, folders[0], keep=0)
        await agent._logic.maintenance.collect()
        assert store.models() == (digests[0],)
        (deployed,) = node.deployments()
        assert (deployed.now.version, deployed.now.options["keep"], deployed.kept) == (4, 0, ())

    run(state, work)


def test_a_candidate_is_tried_in_the_shadow_and_promoted(state: Path, tmp_path: Path) -> None:
    async def work(agent: Agent) -> None:
        node, core = agent._logic.clients.node, agent._logic.driver.core
        quiet = lambda *_: None  # noqa: E731
        await deploy(agent, model_in(tmp_path / "Neg", "Neg"))
        other = model_in(tmp_path / "Abs", "Abs", rows=5)
        for folder, wanted, why in (
            (
                renamed(tmp_path / "Neg", tmp_path / "z"),
                DeployOptions(),
                "input 'x' is missing; input 'z' is new",
            ),
            (tmp_path / "Neg", DeployOptions(memory_limit_bytes=1), "box"),
        ):
            with pytest.raises((UsageError, Infeasible), match=why):
                await node.deploy_candidate("net", folder, wanted, TrialShare(10), quiet)
            assert [entry.name for entry in core.deployments.list_live()] == ["net"]
        found = await node.deploy_candidate("net", other, DeployOptions(), TrialShare(shadow=True), quiet)
        assert (found["name"], found["version"], found["candidate_of"]) == ("net.candidate", "3", "net")
        result = await node.infer("net", {"x": X}, None, 30.0)
        assert result.version == "1" and np.array_equal(result.outputs["y"], -X)
        while (card := node.model("net")) is None or card.candidate is None or not card.candidate.copy_errors:
            await asyncio.sleep(0.01)  # Other rows than the copy has.
        await node.deploy_candidate(
            "net", model_in(tmp_path / "Abs2", "Abs"), DeployOptions(), TrialShare(shadow=True), quiet
        )
        await node.infer("net", {"x": X}, None, 30.0)
        while (card := node.model("net")) is None or card.candidate is None or not card.candidate.compared:
            await asyncio.sleep(0.01)
        assert (card.candidate.different, card.candidate.largest_difference) == (1, 2.0)
        assert (await node.share("net", TrialShare(100))).share == 100
        assert np.array_equal(await answer(agent), np.abs(X))
        assert (await node.infer("net", {"x": X}, None, 30.0, drawn=False)).version == "1"
        await node.promote("net", quiet)
        assert [card.name for card in node.models()] == ["net"] and node.models()[0].kept_versions == ("1",)
        assert (await node.infer("net", {"x": X}, None, 30.0)).version == "4"
        told = [event.text for _, event in agent._base.events.after(0).entries if event.kind == "candidate"]
        assert told[-1] == "version 4, the candidate of net, is to get 100 % of the requests"

    run(state, work)


def test_deleting_that_fails_is_tried_again(
    state: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(agent: Agent) -> None:
        monkeypatch.setattr(maintenance, "GARBAGE_S", 0.001)
        tries = asyncio.Semaphore(0)

        def fail(_: Any) -> int:
            tries.release()
            raise PermissionError("a read-only disk")

        monkeypatch.setattr(agent._base.store, "prune", fail)
        agent._keep_doing("garbage", agent._logic.maintenance.collect_garbage)
        for _ in range(3):
            await tries.acquire()

    run(state, work)
    assert "could not be deleted" in caplog.text


def test_work_that_dies_is_in_the_log_at_once(state: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work(agent: Agent) -> None:
        async def die() -> None:
            raise RuntimeError("unforeseen")

        agent._keep_doing("measuring", die)
        await asyncio.sleep(0.01)
        assert "measuring has failed" in caplog.text

    run(state, work)


@pytest.mark.parametrize("which", ["listen", "http"])
def test_a_start_that_fails_half_way_is_undone(state: Path, which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises((UsageError, Unavailable), match=str(taken.getsockname()[1])):
            run(state, lambda _: asyncio.sleep(0), **{which: taken.getsockname()})
        assert not (state / "agent.json").exists()
    run(state, lambda _: asyncio.sleep(0))


def test_grpc_is_announced_and_leaves_nothing_behind(state: Path) -> None:
    async def work(agent: Agent) -> None:
        address = agent._logic.clients.grpc.address
        assert (
            agent._logic.clients.node.status()["grpc"]
            == address
            == json.loads((state / "agent.json").read_text())["grpc"]
        )
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port))).close()

    run(state, work, grpc=("127.0.0.1", 0))


def test_an_agent_serves_without_grpc_where_its_port_is_taken(state: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = taken.getsockname()

        async def work(agent: Agent) -> None:
            status = agent._logic.clients.node.status()
            assert status["grpc"] is None and str(where[1]) in status["grpc_trouble"] and status["http"]
            checks = {one["name"]: one for one in (await agent._logic.clients.node.doctor())["checks"]}
            assert checks["gRPC"]["level"] == "bad" and checks["gRPC"]["text"] == status["grpc_trouble"]

        run(state, work, grpc=where)


def test_one_agent_per_state_directory(state: Path) -> None:
    held = StateFiles(state).lock()
    with pytest.raises(UsageError, match="already"):
        run(state, lambda _: asyncio.sleep(0))
    os.close(held)
    run(state, lambda _: asyncio.sleep(0))


def test_no_cluster_no_agent(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="init"):
        run(tmp_path, lambda _: asyncio.sleep(0))


def test_news_of_links_waits_until_somebody_is_there_to_take_it(state: Path) -> None:
    """Members redial at once: a link may be up before the agent is put together."""

    async def main() -> None:
        agent = Agent(options(state), LogKeeper().lines)
        told = threading.Thread(target=agent.link, args=("b" * 16, True, ""))
        told.start()
        async with asyncio.timeout(BOUND_S):
            try:
                await agent.start()
                await asyncio.to_thread(told.join)
                await asyncio.sleep(0)
                assert "b" * 16 in agent._logic.driver.core.membership.peers
            finally:
                await agent.stop()

    asyncio.run(main())


def test_addresses_as_others_and_as_this_machine_reach_them() -> None:
    assert own_addresses(("127.0.0.1", 5)) == ("127.0.0.1:5",)
    everywhere = own_addresses(("0.0.0.0", 5))
    assert everywhere
    loopback = [address.startswith("127.") for address in everywhere]
    assert all(loopback) or not any(loopback)
    assert all(address.endswith(":5") for address in everywhere)
    assert reachable_text(("0.0.0.0", 5)) == "127.0.0.1:5"
    assert reachable_text(("::", 5)) == ("127.0.0.1:5" if socket.has_dualstack_ipv6() else "[::1]:5")
    assert reachable_text(("192.0.2.7", 5)) == "192.0.2.7:5"
    with pytest.raises(Unavailable, match=r"--http 203\.0\.113\.9:1: cannot listen there"):
        bind(("203.0.113.9", 1))


def test_the_number_of_threads_is_the_users_or_what_is_left_of_the_cores(state: Path) -> None:
    allowed = allowed_cpus()
    cpus = ",".join(map(str, sorted(allowed)))
    assert service.choose_threads(options(state, threads=3)) == 3
    assert service.choose_threads(options(state, threads=3, cpus=cpus)) == 3
    assert 1 <= service.choose_threads(options(state, threads=None)) <= len(allowed)
    with pytest.raises(UsageError, match="--leave-cores"):
        service.choose_threads(options(state, threads=None, leave_cores=len(allowed)))
    with pytest.raises(UsageError, match="CPU 4095 is not there"):
        service.choose_threads(options(state, cpus="4095"))
    assert allowed_cpus() == allowed


@pytest.mark.parametrize(
    "wrong",
    [
        {"cpus": "a"},
        {"leave_cores": -1},
        {"leave_cores": 1, "threads": 2},
        {"nice": 20},
        {"nice": -1},
        {"providers": ("auto", "cuda")},
        {"providers": ("",)},
    ],
)
def test_options_about_cores_and_engines_that_make_no_sense_are_refused(
    state: Path, wrong: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match="--"):
        options(state, **wrong)


def test_agents_that_share_the_measurement_of_a_device_share_that_of_its_engines(tmp_path: Path) -> None:
    shared = tmp_path / "measured.json"
    first, second = (AgentOptions(tmp_path / name, measured=shared) for name in "ab")
    assert first.engines_measured == second.engines_measured != shared
    assert AgentOptions(tmp_path / "c").engines_measured.parent == tmp_path / "c"
