"""One session over a file whose model puts its past before new rows is asked like the model that writes them in place, and
answers like it; it is given pasts without padding."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgepart.agent.execution.runtime.loaded_models import LoadedModel
from edgepart.agent.verify.local_run import LocalRun
from edgepart.agent.verify.reference import load_served, make_references, shapes_of
from edgepart.agent.verify.unpadded_session import UnpaddedSession
from edgepart.planner.model.context_shapes import load_with_context
from tests.agent.verify.test_prefill import DIGEST, divided, study_of
from tests.planner.model.rewrites.test_in_place import (
    BATCH,
    BLOCK,
    CONTEXT,
    buffers_of,
    in_place,
    loaded,
    model_of,
    run,
    step,
)
from tests.planner.model.test_context_shapes import buffered
from tests.processes.tiny_language import VOCABULARY, kept_apart, optimum_decoder

close = partial(np.testing.assert_allclose, atol=1e-3)


@pytest.mark.parametrize("kind", ["plain", "counting"])
@pytest.mark.parametrize("rows", [1, BLOCK])
def test_it_answers_like_the_model_that_writes_in_place(kind: str, rows: int) -> None:
    random, before = np.random.default_rng(rows), [0, 7, CONTEXT - rows]
    graph = loaded(kind, rows, BATCH)
    feeds = {
        **step(random.integers(3, VOCABULARY, (BATCH, rows)), before),
        **buffers_of(graph, random),
    }
    session = load_served(model_of(kind), shapes_of(feeds))
    assert isinstance(session, UnpaddedSession)
    outputs = session.run([feeds[name] for name in session.input_names])
    found = dict(zip(session.output_names, outputs, strict=True))
    for name, expected in run(in_place(kind), feeds).items():
        close(found[name], expected)


def test_the_steps_of_a_divided_plan_have_references(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(optimum_decoder(), path)
    graph, _ = load_with_context(path, {}, CONTEXT)
    steps = [step(np.array([[5 + place]]), [place]) for place in range(CONTEXT)]
    references = make_references(path, graph, steps)
    assert len(references) == CONTEXT
    study = study_of(graph)
    plan = study.memo.lowering.plan(divided(study, "head", (1.0, 1.0)), model_digest=DIGEST, digests={})
    assert len(plan.programs) == 2
    devices = LocalRun(plan, graph)
    states = devices.begin()
    for inputs, reference in zip(steps, references, strict=True):
        close(devices.run(inputs, sequence=states)["logits"], reference.outputs["logits"])


def test_other_models_and_other_shapes_are_asked_as_they_are() -> None:
    for data in (buffered(), kept_apart(optimum_decoder()).SerializeToString()):
        graph, _ = load_with_context(data, {}, CONTEXT)
        shapes = {name: graph.shape_of(name) or () for name in graph.inputs}
        assert isinstance(load_served(data, shapes), LoadedModel)
    data = optimum_decoder().SerializeToString()
    graph, _ = load_with_context(data, {}, CONTEXT, CONTEXT)
    assert isinstance(load_served(data, {n: graph.shape_of(n) or () for n in graph.inputs}), LoadedModel)
