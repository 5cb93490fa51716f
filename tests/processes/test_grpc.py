"""NVIDIA's gRPC client, as it is, against three real agents: what HTTP answers, gRPC answers too."""

from __future__ import annotations

import asyncio
import queue
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient import grpc as triton
from tritonclient.grpc import aio as triton_aio
from tritonclient.utils import InferenceServerException

from edgepart.cli.local import LocalAgent, LocalCluster, Place
from edgepart.planner.region import Array
from tests.agent.verify.test_states import Stateful, recurrent
from tests.processes.asking import deploy, infer, undeploy

pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]

STEPS = 8


@pytest.fixture(scope="module")
def model(trio: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stateful]:
    """A model with states, on two of three devices."""
    made = recurrent(tmp_path_factory.mktemp("model"))
    deploy(trio, made.path, "recurrent", "--devices", "a,b", "--strategy", "bbgrap")
    yield made
    undeploy(trio, "recurrent")


def tensor(array: Array, name: str = "x") -> Any:
    return triton.InferInput(name, list(array.shape), "FP32").set_data_from_numpy(array)


def test_every_agent_answers_as_over_http(trio: LocalCluster, model: Stateful) -> None:
    x = model.inputs(1)[0]["x"]
    expected = infer(trio.first, "recurrent", {"x": x})["y"]
    for agent in trio.living:
        with triton.InferenceServerClient(agent.grpc) as client:
            assert client.is_server_live() and client.is_server_ready()
            assert client.is_model_ready("recurrent")
            known = client.get_model_metadata("recurrent")
            assert [one.name for one in known.inputs] == ["x"]
            answer = client.infer("recurrent", [tensor(x)], request_id="r", client_timeout=60)
        np.testing.assert_array_equal(answer.as_numpy("y"), expected)
        assert answer.get_response().id == "r"


def test_a_stream_of_the_steps_of_two_sequences(trio: LocalCluster, model: Stateful) -> None:
    steps = model.inputs(STEPS)
    expected = model.alone(steps)
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton.InferenceServerClient(trio.living[1].grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number, inputs in enumerate(steps):
            for sequence in (7, "beside"):
                client.async_stream_infer(
                    "recurrent",
                    [tensor(inputs["x"])],
                    request_id=f"{sequence} {number}",
                    sequence_id=sequence,
                    sequence_start=number == 0,
                    sequence_end=number == STEPS - 1,
                )
        client.async_stream_infer("recurrent", [tensor(steps[0]["x"])], sequence_id=7)  # It has ended.
        for number, answer in enumerate(expected):
            for sequence in (7, "beside"):
                result, error = answers.get(timeout=90)
                assert error is None and result.get_response().id == f"{sequence} {number}"
                np.testing.assert_allclose(result.as_numpy("y"), answer["y"], rtol=1e-4, atol=1e-5)
        assert "sequence '7'" in answers.get(timeout=90)[1].message()


def test_errors_deadlines_and_clients_that_hang_up(trio: LocalCluster, model: Stateful) -> None:
    x = model.inputs(1)[0]["x"]

    async def main() -> None:
        async with triton_aio.InferenceServerClient(trio.living[2].grpc) as client:
            for ask, code in (
                (client.infer("nothing", [tensor(x)]), "NOT_FOUND"),
                (client.infer("recurrent", [tensor(x[:1])]), "INVALID_ARGUMENT"),
                (client.infer("recurrent", [tensor(x), tensor(x, "h")]), "INVALID_ARGUMENT"),
                (client.infer("recurrent", [tensor(x)], sequence_id=9), "INVALID_ARGUMENT"),
                (client.load_model("recurrent"), "UNIMPLEMENTED"),
                (client.infer("recurrent", [tensor(x)], client_timeout=1e-4), "DEADLINE_EXCEEDED"),
            ):
                with pytest.raises(InferenceServerException) as failed:
                    await ask
                assert failed.value.status() == f"StatusCode.{code}"
            hasty = [asyncio.create_task(client.infer("recurrent", [tensor(x)])) for _ in range(20)]
            await asyncio.sleep(0.01)
            for one in hasty:
                one.cancel()
            await asyncio.gather(*hasty, return_exceptions=True)
            answers = await asyncio.gather(*(client.infer("recurrent", [tensor(x)]) for _ in range(20)))
            assert all(np.array_equal(one.as_numpy("y"), answers[0].as_numpy("y")) for one in answers)

    asyncio.run(main())


def test_an_agent_whose_port_is_taken_serves_http_and_says_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        agent = LocalAgent("z", tmp_path / "z", ("--threads", "1", "--no-mdns"), Place(grpc=where))
        agent.type("init", "--name", "z")
        agent.start()
        try:
            while not agent.addresses:
                assert agent.alive, agent.log.read_text()
            status = agent.type("status")
            checks = {check["name"]: check for check in agent.type("doctor")["checks"]}
        finally:
            agent.stop()
    assert status["http"] == agent_url(agent) and status["grpc"] is None
    assert where in status["grpc_trouble"] and "Address already in use" in status["grpc_trouble"]
    assert checks["gRPC"]["level"] == "bad" and checks["gRPC"]["text"] == status["grpc_trouble"]
    assert "no gRPC, HTTP serves" in agent.log.read_text()


def agent_url(agent: LocalAgent) -> str:
    """The URL in the agent's log."""
    return agent.log.read_text().rpartition(" listens on ")[2].split(", ")[1]
