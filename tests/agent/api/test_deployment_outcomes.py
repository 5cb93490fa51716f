"""What becomes of a deployment, with a leader for whom tests speak: it serves, or what was there before holds again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgepart.agent.api.deployment_cards import DeploymentCards
from edgepart.agent.api.deployment_outcomes import DeploymentOutcomes
from edgepart.agent.api.known_deployments import KnownDeployments
from edgepart.agent.cluster.core.core import Core
from edgepart.agent.cluster.state import events
from edgepart.agent.cluster.state.deployments import DeploymentMap
from edgepart.agent.serving.loaded_plans import HeldPlan, LoadedPlans
from edgepart.agent.wire.control import Deployment, Standing
from edgepart.agent.wire.inference import NO_EPOCH, NODE_BITS, DeployOptions, Epoch
from edgepart.planner.errors import ClusterError, CrashError, EdgepartError, Infeasible
from edgepart.planner.plans.plan import Plan
from edgepart.planner.plans.plan_bytes import plan_to_bytes

NODE = "93cba53489e02338"
EPOCH = Epoch((7 << NODE_BITS) + 5, 3)
PLAN = Plan("m2", "single", {}, (), (), ())


class Bench:
    """An agent with `net`, of which version 2 was just written down."""

    def __init__(self, *, earlier: bool = True) -> None:
        self.map = DeploymentMap()
        self.before = self.map.put("a", "net", "m1", 1, DeployOptions()) if earlier else None
        self.entry = self.map.put("a", "net", "m2", 1, DeployOptions())
        self.standings: dict[str, Standing] = {}
        self.serves: Epoch | None = None
        self.posted: list[events.Event] = []
        self.told: list[str] = []
        members = [SimpleNamespace(node=NODE, name="pi-b")]
        core = SimpleNamespace(
            deployments=self.map,
            standings=self.standings,
            membership=SimpleNamespace(members=lambda: members),
            follower=SimpleNamespace(active=lambda name: SimpleNamespace(plan=plan_to_bytes(PLAN))),
        )
        plans = SimpleNamespace(active=lambda name: self.serves and (self.serves, HeldPlan(PLAN, {})))
        self.outcomes = DeploymentOutcomes(
            self.map,
            KnownDeployments(cast(Core, core), cast(LoadedPlans, plans)),
            cast(DeploymentCards, SimpleNamespace(note=lambda entry: "")),
            self.posted.append,
            lambda: "http://here",
        )

    def say(self, **changes: Any) -> None:
        """The leader says this of the deployment."""
        said = Standing(1, "net", self.entry.version, "planning", "computing a plan", False, NO_EPOCH, ())
        self.standings["net"] = replace(said, **changes)
        self.outcomes.wake()

    async def wait(self) -> dict[str, Any]:
        return await self.outcomes.await_service(
            "net", self.before, ["a note"], lambda stage, *_: self.told.append(stage)
        )


def story(bench_of: Callable[[], Bench], happens: Callable[[Bench], None]) -> tuple[Bench, Any]:
    """The answer or the error of a deployment that waits while something happens."""

    async def run() -> tuple[Bench, Any]:
        bench = bench_of()
        waiting = asyncio.create_task(bench.wait())
        await asyncio.sleep(0)
        happens(bench)
        async with asyncio.timeout(10):
            await asyncio.wait([waiting])
        return bench, waiting.exception() or waiting.result()

    return asyncio.run(run())


def test_it_serves_once_the_leader_says_so_and_the_plan_is_active_here() -> None:
    def happens(bench: Bench) -> None:
        bench.say(text=f"{NODE} is still loading")
        asyncio.get_running_loop().call_later(0.02, lambda: bench.say(acknowledged=True, epoch=EPOCH))
        asyncio.get_running_loop().call_later(0.04, lambda: setattr(bench, "serves", EPOCH))

    bench, answer = story(Bench, happens)
    assert (answer["version"], answer["epoch"], answer["notes"]) == ("2", [7, 3], ["a note"])
    assert answer["url"] == "http://here/v2/models/net/infer"
    assert bench.told[0] == "pi-b is still loading" and bench.posted == []


@pytest.mark.parametrize("earlier", [False, True])
def test_what_cannot_serve_is_taken_back(earlier: bool) -> None:
    bench, error = story(
        lambda: Bench(earlier=earlier),
        lambda bench: bench.say(state="failed", error=f"{NODE} lacks memory.", error_kind="Infeasible"),
    )
    assert type(error) is Infeasible and str(error) == "pi-b lacks memory. Nothing was deployed."
    taken_back = (
        events.UndeployRequested("net", bench.entry.version)
        if bench.before is None
        else events.RestoreRequested(bench.before)
    )
    assert bench.posted == [taken_back]


def test_what_may_go_away_is_waited_for() -> None:
    def happens(bench: Bench) -> None:
        bench.say(state="waiting", error="nobody is here", error_kind="Unavailable")
        asyncio.get_running_loop().call_later(0.02, serve)

    def serve() -> None:
        waiting[0].serves = EPOCH
        waiting[0].say(acknowledged=True, epoch=EPOCH)

    def make() -> Bench:
        waiting.append(Bench())
        return waiting[0]

    waiting: list[Bench] = []
    _, answer = story(make, happens)
    assert answer["version"] == "2"


def set_aside(bench: Bench) -> None:
    bench.map.set_aside("a", "net", "m2", "ended its worker")
    bench.outcomes.wake()


def deploy_again(bench: Bench) -> None:
    bench.map.put("a", "net", "m3", 1, DeployOptions())
    bench.outcomes.wake()


def undeploy(bench: Bench) -> None:
    bench.map.undeploy("a", "net")
    bench.outcomes.wake()


@pytest.mark.parametrize(
    ("happens", "kind", "restored"),
    [(set_aside, CrashError, True), (deploy_again, ClusterError, False), (undeploy, ClusterError, False)],
)
def test_it_ends_when_the_entry_is_another(
    happens: Callable[[Bench], None], kind: type[EdgepartError], restored: bool
) -> None:
    bench, error = story(Bench, happens)
    assert type(error) is kind
    before = cast(Deployment, bench.before)
    assert bench.posted == ([events.RestoreRequested(before)] if restored else [])
