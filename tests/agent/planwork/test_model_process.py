"""The process that works on models: answers, fails, is killed, ends when it rests. Real processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from edgepart.agent.planwork import model_process
from edgepart.agent.planwork.model_process import ModelProcess, cut_weights, examine_model
from edgepart.agent.storage.store import Source, Store
from edgepart.agent.wire.inference import DeployOptions
from edgepart.planner.errors import InternalError, ModelError, PeerError, Unavailable
from edgepart.planner.model.blobs import blob_digest
from edgepart.planner.model.load import load_graph
from edgepart.planner.model.model_file import model_files
from tests.agent.host.children import running
from tests.agent.storage.test_store import model_in
from tests.processes.tiny_language import tiny_language


@pytest.fixture
def beside() -> Iterator[ModelProcess]:
    made = ModelProcess()
    yield made
    made.stop()


def test_models_are_examined_and_cut_there(beside: ModelProcess, tmp_path: Path) -> None:
    path = model_in(tmp_path / "m")
    graph = load_graph(path, shapes={"x": (1, 300)})
    options = DeployOptions(shapes={"x": (1, 300)})
    notes, files, found, (inputs, outputs) = beside.do(examine_model, path, options)
    assert (notes, files, found) == (graph.notes, model_files(path), options)
    assert [(one.name, one.dtype, one.open_shape) for one in (*inputs, *outputs)] == [
        ("x", "float", (-1, 300)),
        ("y", "float", (-1, 300)),
    ]
    none = replace(options, states=())
    assert beside.do(examine_model, path, none)[2] == options, "Agents of an earlier release cannot read it."
    store = Store(tmp_path / "store")
    model = store.put_model(model_files(path))
    name, constant = next(iter(graph.constants.items()))
    digest = blob_digest(constant, constant.region)
    beside.do(cut_weights, store.root, [(digest, Source(model, name, constant.region))])
    assert store.get(digest).nbytes == constant.nbytes
    with pytest.raises(PeerError, match="has digest"):
        beside.do(cut_weights, store.root, [("0" * 64, Source(model, name, constant.region))])


def test_errors_are_those_of_the_work(beside: ModelProcess, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError, match=r"m\.onnx"):
        beside.do(examine_model, tmp_path / "m.onnx", DeployOptions())
    with pytest.raises(InternalError, match="failing failed inside"):
        beside.do(failing)


def test_a_tokenizer_that_is_none_is_found_before_a_chat_needs_it(
    beside: ModelProcess, tmp_path: Path
) -> None:
    folder = tiny_language(tmp_path / "chat")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"^tokenizer\.json: it is not a tokenizer"):
        beside.do(examine_model, folder / "model.onnx", DeployOptions())


def failing() -> None:
    raise KeyError("nothing foreseen")


def test_it_is_started_again_when_it_ended(beside: ModelProcess) -> None:
    first = beside.do(os.getpid)
    assert beside.do(os.getpid) == first != os.getpid()
    psutil.Process(first).kill()
    psutil.wait_procs([psutil.Process(first)] if psutil.pid_exists(first) else [])
    assert beside.do(os.getpid) != first


def test_what_kills_it_twice_is_given_up(beside: ModelProcess) -> None:
    with pytest.raises(Unavailable, match="ended before it had an answer"):
        beside.do(os._exit, 3)


def test_it_rests(beside: ModelProcess) -> None:
    """The wait is set where it runs."""
    first = beside.do(os.getpid)
    beside.do(rest_at_once)
    child = beside._process
    assert child is not None and child.pid == first
    child.join(60)
    assert child.exitcode == 0
    assert beside.do(os.getpid) != first


def rest_at_once() -> None:
    model_process.IDLE_S = 0.0


def test_whoever_waits_is_told_when_the_agent_stops(beside: ModelProcess) -> None:
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(beside.do, signal.pause)
        while not running("edgepart-aside"):
            assert not future.done()
        beside.stop()
        with pytest.raises(Unavailable):
            future.result(60)
    with pytest.raises(Unavailable, match="stops"):
        beside.do(os.getpid)
