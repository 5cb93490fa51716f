"""The planning process: answers, is killed in the middle, is given up, and never outlives the agent. Real processes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from benchmarks.models import light

from edgepart.agent.cluster.state import cards
from edgepart.agent.cluster.state.events import ComputePlan, PlanComputed, PlanFailed, PlanKey
from edgepart.agent.host.child_process import start_child
from edgepart.agent.planwork import plan_process
from edgepart.agent.planwork.plan_process import Answer, PlanProcess
from edgepart.agent.storage.store import Store
from edgepart.agent.wire.control import Card, Deployment, Version
from edgepart.agent.wire.inference import DeployOptions
from edgepart.planner.devices.cluster import Device, Link
from edgepart.planner.errors import Unavailable
from edgepart.planner.model.model_file import model_files
from edgepart.planner.plans.check import broken_plan_rules
from edgepart.planner.plans.plan_bytes import plan_from_bytes
from tests.agent.host.children import running
from tests.agent.storage.test_store import model_in

BOUND_S = 60


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def planwork(store: Store) -> Iterator[PlanProcess]:
    made = PlanProcess(store.root, "node-0")
    yield made
    made.stop()
    assert processes() == []


def processes() -> list[int]:
    return [child.pid for child in running("edgepart-plan")]


def order(model: str, devices: int = 2, *, quick: bool = True, **options: object) -> ComputePlan:
    nodes = [f"node-{n}" for n in range(devices)]
    link = Link(1e9, 1e-4)
    made = [
        Card(
            node,
            cards.write_card(
                cards.MeasuredDevice(
                    Device(node, "box", 1e10, 1e10, 1e9), {other: link for other in nodes if other != node}
                )
            ),
        )
        for node in nodes
    ]
    deployment = Deployment("net", model, 1, replace(DeployOptions(), **options), Version(1, "node-0"))  # type: ignore[arg-type]
    key = PlanKey("net", deployment.version, tuple((n, f"d{n[-1]}", "digest") for n in nodes))
    return ComputePlan(key, deployment, tuple(made), b"", urgent=False, quick=quick)


def searches() -> list[psutil.Process]:
    """The processes that search, which the planning process has forked."""
    return [
        one
        for pid in processes()
        for one in psutil.Process(pid).children()
        if one.status() != psutil.STATUS_ZOMBIE
    ]


def under_way(
    pool: ThreadPoolExecutor, planwork: PlanProcess, long: ComputePlan
) -> tuple[Future[Answer], psutil.Process]:
    """A search that has begun: its process is there and busy."""
    future = pool.submit(planwork.compute, long)
    deadline = threading.Event()
    for _ in range(BOUND_S * 20):
        if (found := searches()) and found[0].cpu_times().user > 0.2:
            break
        deadline.wait(0.05)
    assert not future.done()
    (search,) = searches()
    return future, search


def is_gone(process: psutil.Process) -> bool:
    """Whether it ends within the bound; whoever has to bury it may be slower."""
    for _ in range(BOUND_S * 20):
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            return True
        threading.Event().wait(0.05)
    return False


def test_plans_are_computed_compared_and_refused(planwork: PlanProcess, store: Store, tmp_path: Path) -> None:
    model = store.put_model(model_files(model_in(tmp_path / "m")))
    shapes = {"x": (1, 300)}
    answer = planwork.compute(order(model, shapes=shapes))
    assert isinstance(answer, PlanComputed)
    assert not list(broken_plan_rules(plan_from_bytes(answer.plan)))
    again = planwork.compute(replace(order(model, shapes=shapes), current=answer.plan))
    assert isinstance(again, PlanComputed)
    assert again.plan == answer.plan
    assert again.current_latency_s == pytest.approx(answer.latency_s)

    for options, kind in (
        ({"shapes": {"nothing": (1,)}}, "UsageError"),
        ({"strategy": "magic"}, "UsageError"),
        ({"memory_limit_bytes": 1, "shapes": shapes}, "Infeasible"),
    ):
        failed = planwork.compute(order(model, **options))
        assert isinstance(failed, PlanFailed)
        assert (failed.kind, failed.final) == (kind, True)
    absent = planwork.compute(order("0" * 64))
    assert isinstance(absent, PlanFailed)
    assert not absent.final
    broken = replace(order(model), cards=(Card("node-0", b"no card"), Card("node-1", b"{}")))
    assert isinstance(planwork.compute(broken), PlanFailed)
    assert len(processes()) == 1


@pytest.mark.parametrize(
    ("urgent", "quick", "current", "lower"),
    [
        (True, True, b"", 0),
        (False, True, b"", plan_process.NICENESS),
        (False, False, b"serves", plan_process.NICENESS),
        (False, True, b"serves", plan_process.HASTY_NICENESS),
    ],
)
def test_only_plans_that_nothing_waits_for_have_low_priority(
    urgent: bool, quick: bool, current: bytes, lower: int
) -> None:
    asked = replace(order("0" * 64), urgent=urgent, quick=quick, current=current)
    assert plan_process.niceness(asked) == lower


def test_what_takes_no_search_is_answered_while_others_search(
    planwork: PlanProcess, store: Store, tmp_path: Path
) -> None:
    """The search has a low priority, and the next one that is urgent has not."""
    long = order(store.put_model(model_files(light("resnet50"))), 3, quick=False)
    small = order(store.put_model(model_files(model_in(tmp_path / "m"))), shapes={"x": (1, 300)})
    with ThreadPoolExecutor(2) as pool:
        future, search = under_way(pool, planwork, long)
        (process,) = processes()
        assert search.nice() == min(psutil.Process(process).nice() + plan_process.NICENESS, 19)
        assert psutil.Process(process).nice() == psutil.Process().nice()
        refuge = replace(small, key=replace(small.key, alone=True))
        for prompt in (replace(small, awaited=True, urgent=True), refuge):
            answer = planwork.compute(prompt)
            assert isinstance(answer, PlanComputed)
            assert len(plan_from_bytes(answer.plan).programs) == 1
        assert not future.done()
        assert (processes(), searches()) == ([process], [search])

        planwork.abort(long)
        with pytest.raises(Unavailable, match="ended before it had a plan"):
            future.result(BOUND_S)
        assert is_gone(search)
        future, search = under_way(pool, planwork, replace(long, urgent=True))
        assert search.nice() == psutil.Process().nice()
        assert processes() == [process], "To give a search up costs no new planning process."
        assert isinstance(planwork.compute(small), PlanComputed), "Two may search at a time."
        assert not future.done()
        planwork.stop()
        with pytest.raises(Unavailable):
            future.result(BOUND_S)
    assert is_gone(search)


def test_requests_that_no_device_answers_alone_wait_for_a_search(
    planwork: PlanProcess, store: Store, tmp_path: Path
) -> None:
    """The planning process forks in the middle of such an order, when it knows that none has room."""
    asked = order(store.put_model(model_files(model_in(tmp_path / "m"))), shapes={"x": (1, 300)})
    whole = planwork.compute(replace(asked, awaited=True, urgent=True))
    assert isinstance(whole, PlanComputed)
    limit = dict(whole.memory_bytes)[whole.names[0]] - 1
    options = replace(asked.deployment.options, memory_limit_bytes=limit)
    small = replace(asked, deployment=replace(asked.deployment, options=options))
    divided = planwork.compute(replace(small, awaited=True, urgent=True))
    assert isinstance(divided, PlanComputed)
    assert len(plan_from_bytes(divided.plan).programs) == 2
    alone = planwork.compute(replace(small, key=replace(small.key, alone=True)))
    assert isinstance(alone, PlanFailed)
    assert alone.kind == "Infeasible"
    assert isinstance(planwork.compute(asked), PlanComputed)


def test_killed_in_the_middle_given_up_and_stopped(
    planwork: PlanProcess, store: Store, tmp_path: Path
) -> None:
    long = order(store.put_model(model_files(light("resnet50"))), 3, quick=False)
    short = order(store.put_model(model_files(model_in(tmp_path / "m"))), shapes={"x": (1, 300)})
    with ThreadPoolExecutor(1) as pool:
        future, search = under_way(pool, planwork, long)
        search.kill()
        with pytest.raises(Unavailable, match="ended before it had a plan"):
            future.result(BOUND_S)
        assert isinstance(planwork.compute(short), PlanComputed)
        assert planwork._process is not None
        planwork._process.kill()
        planwork._process.join(BOUND_S)
        assert isinstance(planwork.compute(short), PlanComputed)

        future, search = under_way(pool, planwork, long)
        planwork.abort(short)  # not what is being computed
        assert not future.done()
        assert search.is_running()
        planwork.abort(long)
        with pytest.raises(Unavailable):
            future.result(BOUND_S)
        with pytest.raises(Unavailable, match="before it began"):
            planwork.compute(long)
        assert isinstance(planwork.compute(short), PlanComputed)

        future, search = under_way(pool, planwork, replace(long))
        planwork.stop()
        with pytest.raises(Unavailable):
            future.result(BOUND_S)
        with pytest.raises(Unavailable, match="before it began"):
            planwork.compute(short)
    assert processes() == []
    assert is_gone(search)


def test_a_search_outlives_the_planning_process(planwork: PlanProcess, store: Store, tmp_path: Path) -> None:
    long = order(store.put_model(model_files(light("resnet50"))), 3, quick=True)
    with ThreadPoolExecutor(1) as pool:
        future, search = under_way(pool, planwork, long)
        os.kill(processes()[0], signal.SIGKILL)
        assert isinstance(future.result(BOUND_S), PlanComputed)
        assert is_gone(search)


def agent(_: object, store: Path, long: ComputePlan) -> None:
    PlanProcess(store, "node-0").compute(long)


def test_neither_the_process_nor_its_searches_outlive_the_agent(store: Store) -> None:
    long = order(store.put_model(model_files(light("resnet50"))), 3, quick=False)
    child, _pipe = start_child(agent, store.root, long, name="edgepart-agent")
    try:
        for _ in range(BOUND_S * 20):
            both = psutil.Process(child.pid).children(recursive=True)
            if len(both) == 2:
                break
            threading.Event().wait(0.05)
        assert len(both) == 2
    finally:
        child.kill()
    assert all(is_gone(one) for one in both)


def hurried(*arguments: Any) -> None:
    """Run the planning process so that it ends after a short rest."""
    plan_process.IDLE_S = 0.01
    plan_process.run_plan_process(*arguments)


def test_it_rests_when_there_is_nothing_to_search_and_is_started_again(
    monkeypatch: pytest.MonkeyPatch, planwork: PlanProcess, store: Store, tmp_path: Path
) -> None:
    monkeypatch.setattr(plan_process, "run_plan_process", hurried)
    long = order(store.put_model(model_files(light("resnet50"))), 3, quick=True)
    short = order(store.put_model(model_files(model_in(tmp_path / "m"))), shapes={"x": (1, 300)})
    with ThreadPoolExecutor(1) as pool:
        future, _ = under_way(pool, planwork, long)
        (process,) = processes()
        assert isinstance(future.result(BOUND_S), PlanComputed)
    assert is_gone(psutil.Process(process))
    assert isinstance(planwork.compute(short), PlanComputed)
    assert processes() != [process]


def test_it_can_be_started_before_there_is_an_order(
    planwork: PlanProcess, store: Store, tmp_path: Path
) -> None:
    planwork.get_ready()
    (process,) = processes()
    planwork.get_ready()
    model = store.put_model(model_files(model_in(tmp_path / "m")))
    assert isinstance(planwork.compute(order(model, shapes={"x": (1, 300)})), PlanComputed)
    assert processes() == [process]
    planwork.stop()
    planwork.get_ready()
    assert processes() == []


def test_ctrl_c_in_the_terminal_is_the_agents_to_answer(
    planwork: PlanProcess, store: Store, tmp_path: Path
) -> None:
    model = store.put_model(model_files(model_in(tmp_path / "m")))
    planwork.compute(order(model, shapes={"x": (1, 300)}))
    (process,) = processes()
    os.kill(process, signal.SIGINT)
    assert isinstance(planwork.compute(order(model, shapes={"x": (2, 300)})), PlanComputed)
    assert processes() == [process]
