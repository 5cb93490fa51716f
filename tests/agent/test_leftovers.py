"""What an agent keeps of models that were deployed, asked and undeployed: nothing but what is listed here."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pytest
from onnx import TensorProto, helper, save_model

from edgepart.agent.api.progress import ProgressLines
from edgepart.agent.security import identity
from edgepart.agent.service import Agent
from edgepart.agent.wire.inference import DeployOptions
from tests.agent.test_service import measured, run

__all__ = ["measured"]  # a fixture

MODELS = 3
LOOKS = 200

KEPT = {
    "_base.events._entries": "the event log, of which MOST_EVENTS are kept",
    "_base.log_lines._entries": "the lines of the log, of which some are kept",
    "_compute.starving._starvation._waits": "the last looks at how long threads waited for a CPU",
    "_compute.executor._requests._ended": "requests that ended, of which QueueLimits.remembered are kept",
    "_logic.driver.core._kept": "the versions on disk, tombstones included",
    "_logic.driver.core.deployments._entries": "tombstones, up to MAX_ENTRIES",
}
"""What may grow, and how far, with all that it holds."""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    identity.create_cluster(tmp_path / "state", now=0.0)
    return tmp_path / "state"


def test_nothing_stays_of_models_that_were_undeployed(state: Path, tmp_path: Path) -> None:
    async def work(agent: Agent) -> None:
        await use(agent, tmp_path, "first")
        before = entries(agent)
        for number in range(MODELS):
            await use(agent, tmp_path, f"net-{number}")
        for _ in range(LOOKS):  # Some is dropped at a part's next look.
            if not (left := grown(before, entries(agent))):
                break
            await asyncio.sleep(0.1)
        assert not left

    run(state, work)


async def use(agent: Agent, folder: Path, name: str) -> None:
    """Deploy a model that has weights and shapes of its own, ask it, and undeploy it."""
    rows = 1 + sum(map(ord, name)) % 97
    path = folder / name / "model.onnx"
    path.parent.mkdir()
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 4], np.full(16, rows, np.float32))
    ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, [rows, 4]) for end in ("x", "y")]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [weight]
    )
    save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    node, x = agent._logic.clients.node, np.ones((rows, 4), np.float32)
    await node.deploy(name, path.parent, DeployOptions(), ProgressLines(60).report)
    answer = await node.infer(name, {"x": x}, None, 60.0)
    assert np.array_equal(answer.outputs["y"], np.full((rows, 4), 4 * rows, np.float32))
    await node.undeploy(name)
    await agent._logic.maintenance.collect()


def grown(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """How many entries came to each place, without those that may."""
    return {
        place: more
        for place, count in after.items()
        if (more := count - before.get(place, 0)) > 0 and not place.startswith(tuple(KEPT))
    }


def entries(agent: Agent) -> Counter[str]:
    """The number of entries in the containers that the agent's objects hold, by the attributes that lead there."""
    found: Counter[str] = Counter()
    todo: deque[tuple[str, Any]] = deque([("", agent)])
    seen: set[int] = set()
    while todo:
        place, value = todo.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, (dict, list, tuple, set, frozenset, deque, OrderedDict, WeakValueDictionary)):
            found[place] += len(value)
        todo.extend((f"{place}{step}".removeprefix("."), held) for step, held in inside(value))
    return found


def inside(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object of ours or a container holds, and how that is reached. Locals of functions are not seen."""
    if isinstance(value, (dict, WeakValueDictionary)):
        yield from (("[]", held) for pair in list(value.items()) for held in pair)
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        yield from (("[]", held) for held in list(value))
    elif (bound := getattr(value, "__self__", None)) is not None:
        yield ".__self__", bound
    elif type(value).__module__.startswith("edgepart."):
        slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        yield from ((f".{name}", getattr(value, name)) for name in slots if hasattr(value, name))
        yield from ((f".{name}", held) for name, held in getattr(value, "__dict__", {}).items())
