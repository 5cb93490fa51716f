"""Weights of few bits as a person asks for them, against a real server with a fake node."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

import edgepart as product
from edgepart.agent.api.deployed_model import DeployedModel, DeployedVersion
from edgepart.agent.quantise.work import DATA, MODEL
from edgepart.agent.wire.codec import json_record
from edgepart.agent.wire.inference import QuantisedWeights
from edgepart.planner.errors import ModelError, UsageError
from tests.agent.http.conftest import CREDENTIAL, Served, served
from tests.agent.quantise.models import mixed, saved
from tests.cli.test_cli import Edgepart, edgepart, member

__all__ = ["edgepart", "member", "served"]

SHAPE = ("--shape", "ids=4")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return saved(mixed(), tmp_path / "m.onnx")


def digest_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def deployed(served: Served) -> tuple[set[str], QuantisedWeights]:
    files, options = served.node.deployed["m"]
    assert options.quantised is not None and options.weights is not None
    return set(files), options.quantised


def test_deploy_and_apply_send_the_smaller_model_and_know_it_again(
    edgepart: Edgepart, member: Path, served: Served, model: Path, tmp_path: Path
) -> None:
    state = ("--state", str(member))
    status, _, err = edgepart("deploy", "m.onnx", "--weights", "int8", "--shape", "ids=4", *state)
    assert status == 0 and "int8 weights (made by ONNX Runtime" in err and " became " in err
    files, about = deployed(served)
    assert files == {MODEL, DATA} and about.source == digest_of(model)

    options = json_record(served.node.deployed["m"][1])
    served.node.described["m"] = DeployedModel("m", DeployedVersion(1, "b" * 64, options), ())
    served.node.sessions["m"] = served.node.sessions["add"]
    exported = edgepart("export", *state)[1]
    assert f"digest: sha256:{about.source}" in exported and "weights: int8" in exported
    file = tmp_path / "cluster.yaml"
    for text, changes in (
        ("model: m.onnx, weights: int8, shape: {ids: [4]}", []),
        (f"digest: 'sha256:{about.source}', weights: int8, shape: {{ids: [4]}}", []),
        ("model: m.onnx, weights: int4, shape: {ids: [4]}, max-error: 0.9", ["weights: int8 -> int4"]),
    ):
        file.write_text(f"deployments: {{m: {{{text}}}}}")
        found = json.loads(edgepart("diff", str(file), "--json", *state)[1])
        assert [why for change in found["changes"] for why in change["why"]][:1] == changes
    assert edgepart("apply", str(file), *state)[0] == 0
    assert served.node.deployed["m"][1].weights == "int4" and deployed(served)[0] == {MODEL, DATA}


def test_answers_that_are_too_far_off_are_refused_and_nothing_is_sent(
    edgepart: Edgepart, member: Path, served: Served, model: Path, tmp_path: Path
) -> None:
    state = ("--state", str(member))
    given = ("deploy", "m.onnx", "--weights", "int4", *SHAPE, *state)
    status, _, err = edgepart(*given, "--max-error", "0.001")
    assert status == 1 and "--max-error allows (0.1 %)" in err and not served.node.deployed
    np.save(tmp_path / "ids.npy", np.array([1, 2, 3]))
    assert edgepart(*given, "--max-error", "0.9", "--input", "ids.npy")[0] == 0
    assert deployed(served)[1].inputs == "the input that was given"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--weights", "int2"), "--weights"),
        (("--max-error", "0.2"), "--max-error goes with --weights"),
        (("--input", "ids=ids.npy"), "--input goes with --weights"),
        (("--weights", "int8", "--devices", "pi-z"), "pi-z"),
    ],
)
def test_wrong_options_are_refused_at_once(
    edgepart: Edgepart, member: Path, served: Served, model: Path, options: tuple[str, ...], says: str
) -> None:
    status, _, err = edgepart("deploy", "m.onnx", *options, "--state", str(member))
    assert status == 2 and says in err
    assert not served.node.deployed and not (model.parent / "cache").exists()


def test_plan_takes_the_smaller_model(edgepart: Edgepart, model: Path, tmp_path: Path) -> None:
    device = {"name": "a", "kind": "k", "flops_per_s": 1e10, "memory_bytes_per_s": 5e9, "memory_bytes": 1e9}
    cluster = {"devices": [device], "default_link": {"bytes_per_s": 1e8, "latency_s": 1e-4}}
    (tmp_path / "cluster.json").write_text(json.dumps(cluster))
    given = ("plan", "m.onnx", "--cluster", "cluster.json", *SHAPE, "--json")
    sizes = [
        json.loads(edgepart(*given, *more)[1])["devices"]["a"]["weight_bytes"]
        for more in ((), ("--weights", "int8"))
    ]
    assert 2.5 < sizes[0] / sizes[1] < 2.6, "Of the float model, one table is a matrix too."


def test_a_program_deploys_the_smaller_model(served: Served, model: Path, tmp_path: Path) -> None:
    with product.connect(served.url, credential=CREDENTIAL, state=tmp_path) as client:
        found = client.deploy(model, weights="int8", shapes={"ids": (4,)}, inputs={"ids": np.array([5])})
        assert "on the input that was given" in found.quantised
        assert deployed(served)[0] == {MODEL, DATA}
        served.node.deployed.clear()
        with pytest.raises(ModelError, match="Nothing was deployed"):
            client.deploy(model, weights="int8", max_error=1e-6)
        with pytest.raises(UsageError, match="`weights`, which is missing"):
            client.deploy(model, inputs={"ids": np.array([5])})
    assert not served.node.deployed
