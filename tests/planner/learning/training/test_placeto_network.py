"""Placeto's network: as large as the authors' code makes it, and the same in ONNX Runtime as in torch."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

from edgepart.planner.learning.training.placeto_network import PlacetoNetwork, export


@pytest.mark.parametrize(("machines", "parameters"), [(2, 15_962), (4, 26_338), (8, 54_842)])
def test_it_has_as_many_parameters_as_the_authors_code(machines: int, parameters: int) -> None:
    network = PlacetoNetwork(5 + machines, machines, 0)
    assert sum(one.numel() for one in network.parameters()) == parameters


def drawn(groups: int, width: int, seed: int) -> dict[str, np.ndarray]:
    """Inputs of a random graph."""
    random = np.random.default_rng(seed)
    return {
        "state": random.normal(size=(groups, width)).astype(np.float32),
        "parents": np.tril(random.random((groups, groups)) < 0.2, -1).astype(np.float32),
        "pools": (random.random((3, groups)) < 0.4).astype(np.float32),
        "current": np.eye(1, groups, int(random.integers(groups)), dtype=np.float32),
    }


@pytest.mark.parametrize("machines", [1, 4])
def test_onnx_runtime_answers_as_torch(machines: int) -> None:
    network = PlacetoNetwork(6 + machines, machines, seed=3)
    data = export(network)
    onnx.checker.check_model(onnx.load_from_string(data), full_check=True)
    session = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    for groups in (1, 2, 7, 60):
        inputs = drawn(groups, 6 + machines, groups)
        (found,) = session.run(None, inputs)
        state, parents, pools, current = (torch.from_numpy(inputs[name]) for name in inputs)
        with torch.no_grad():
            expected = network(state[None], parents, pools[None], current[None])
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-5)


def test_many_states_at_once_are_each_as_if_alone() -> None:
    network = PlacetoNetwork(8, 2, seed=1)
    inputs = [drawn(5, 8, seed) for seed in range(4)]
    parents = torch.from_numpy(inputs[0]["parents"])
    rows = [[torch.from_numpy(one[name]) for one in inputs] for name in ("state", "pools", "current")]
    with torch.no_grad():
        together = network(torch.stack(rows[0]), parents, *map(torch.stack, rows[1:]))
        for number, answer in enumerate(together):
            state, pools, current = (row[number][None] for row in rows)
            torch.testing.assert_close(network(state, parents, pools, current)[0], answer)


@pytest.mark.parametrize(("far", "heard"), [(8, True), (9, False)])
def test_messages_go_as_far_as_there_are_rounds(far: int, heard: bool) -> None:
    network = PlacetoNetwork(8, 2, seed=1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.abs_()  # so that no unit is silent
        state = torch.rand(far + 1, 8)
        chain = torch.diag(torch.ones(far), -1)
        other = state.clone()
        other[0] += 1.0
        pools, current = torch.zeros(1, 3, far + 1), torch.eye(far + 1)[far][None, None]
        one, two = (network(each[None], chain, pools, current) for each in (state, other))
        assert torch.equal(one, two) != heard


def test_the_seed_makes_the_network() -> None:
    state = torch.random.get_rng_state()
    assert (
        export(PlacetoNetwork(8, 2, 5)) == export(PlacetoNetwork(8, 2, 5)) != export(PlacetoNetwork(8, 2, 6))
    )
    assert torch.equal(torch.random.get_rng_state(), state), "others' chance is left alone"
