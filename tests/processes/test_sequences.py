"""A model with states on real agents: one of its devices is killed in the middle of a sequence, and no step is lost."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepart.cli.local import LocalAgent, LocalCluster
from edgepart.planner.region import Array
from tests.agent.verify.test_states import recurrent
from tests.processes.asking import deploy_over

pytestmark = pytest.mark.processes

STEPS = 24


def ask(agent: LocalAgent, x: Array, **parameters: Any) -> Array:
    """One step of a sequence, as any client of Triton's protocol sends it."""
    tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
    document = {"inputs": [tensor], "parameters": parameters}
    request = urllib.request.Request(
        f"{agent.url}/v2/models/recurrent/infer",
        json.dumps(document).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=90) as answer:
        found = json.load(answer)
    assert found["parameters"]["sequence_id"] == str(parameters["sequence_id"])
    (y,) = [output for output in found["outputs"] if output["name"] == "y"]
    return np.array(y["data"], np.float32).reshape(y["shape"])


def test_a_device_is_killed_in_the_middle_of_a_sequence_and_no_step_is_lost(
    victims: LocalCluster, tmp_path: Path
) -> None:
    model = recurrent(tmp_path)
    steps = model.inputs(STEPS)
    expected = model.alone(steps)
    asked, others = victims.living[0], victims.living[1:]
    names = [agent.name for agent in others]
    options = ("--devices", ",".join(names), "--strategy", "bbgrap")
    deploy_over(victims, names, model.path, "recurrent", *options)

    for number, (inputs, answer) in enumerate(zip(steps, expected, strict=True)):
        if number == STEPS // 2:
            others[1].kill()
        for sequence in (7, "beside"):
            found = ask(asked, inputs["x"], sequence_id=sequence, sequence_start=number == 0)
            np.testing.assert_allclose(found, answer["y"], rtol=1e-4, atol=1e-5)

    ask(asked, steps[0]["x"], sequence_id=7, sequence_end=True)
    with pytest.raises(urllib.error.HTTPError, match="400"):
        ask(asked, steps[0]["x"], sequence_id=7)
