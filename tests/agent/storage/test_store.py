"""The store: content addressing, models with external data, resuming, cutting weights, state files, damage."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepart.agent.storage.atomic_files import read_json, write_atomic
from edgepart.agent.storage.store import (
    Source,
    Store,
    manifest_from_json,
    manifest_to_json,
)
from edgepart.planner.errors import ModelError, PeerError, Unavailable, UsageError
from edgepart.planner.model.blobs import blob_digest
from edgepart.planner.model.digests import model_digest
from edgepart.planner.model.load import load_constants, load_graph
from edgepart.planner.model.model_file import model_files
from edgepart.planner.region import Region

DATA = bytes(range(256)) * 100
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def model_in(folder: Path, scale: float = 1.0, name: str = "m.onnx") -> Path:
    """y = concat(x @ W, zeros like x); W [300, 300] lies in sub/w.bin."""
    weight = scale * np.arange(90_000, dtype=np.float32).reshape(300, 300)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("ConstantOfShape", ["s"], ["z"]),
        helper.make_node("Concat", ["m", "z"], ["y"], axis=0),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 300]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "sub").mkdir(parents=True, exist_ok=True)
    onnx.save_model(model, folder / name, save_as_external_data=True, location="sub/w.bin")
    return folder / name


def modes(root: Path) -> set[str]:
    paths = [path for path in root.rglob("*") if not path.is_symlink()]
    return {("d" if path.is_dir() else "f") + oct(stat.S_IMODE(path.stat().st_mode)) for path in paths}


def test_bytes_come_back_by_their_digest(store: Store) -> None:
    assert not store.has(DIGEST)
    assert store.put_bytes(DATA) == DIGEST == store.put_bytes(DATA)
    assert store.size(DIGEST) == len(DATA)
    assert bytes(store.get(DIGEST)) == DATA
    assert not store.get(DIGEST).flags.writeable
    store.delete(DIGEST)
    store.delete(DIGEST)
    with pytest.raises(Unavailable, match="not on this device"):
        store.get(DIGEST)


def test_nothing_is_a_blob_too(store: Store) -> None:
    assert store.get(store.put_bytes(b"")).nbytes == 0


@pytest.mark.parametrize("digest", ["", "../" + "a" * 61, "A" * 64, "a" * 63, "/" * 64])
def test_what_is_no_digest_becomes_no_path(store: Store, digest: str) -> None:
    for use in (store.has, store.get, store.has_model, store.manifest, store.delete):
        with pytest.raises(PeerError, match="no SHA-256"):
            use(digest)


def test_everything_is_private(store: Store, tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        store.put_bytes(DATA)
        store.put_model(model_files(model_in(tmp_path / "m")))
        store.partial("0" * 64, 10).append(0, b"12345")
        write_atomic(tmp_path / "store/state.json", b"{}")
    finally:
        os.umask(old)
    assert modes(tmp_path / "store") == {"d0o700", "f0o600"}


def test_a_model_is_kept_with_its_layout_and_can_be_loaded(store: Store, tmp_path: Path) -> None:
    files = model_files(model_in(tmp_path / "m"))
    digest = store.put_model(files)
    assert digest == model_digest(files)
    assert store.put_model(files) == digest
    assert store.models() == (digest,)
    kept = store.model_path(digest)
    np.testing.assert_array_equal(
        load_graph(kept).constants["w"].load(), load_graph(files[0]).constants["w"].load()
    )
    session = ort.InferenceSession(kept, providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].name == "x"
    assert all(store.has(file.digest) for file in store.manifest(digest).files)


def test_a_model_travels_as_its_files(store: Store, tmp_path: Path) -> None:
    digest = store.put_model(model_files(model_in(tmp_path / "m")))
    other = Store(tmp_path / "other")
    manifest = manifest_from_json(manifest_to_json(store.manifest(digest)))
    first, *rest = manifest.files
    other.put_bytes(store.get(first.digest).data)
    with pytest.raises(Unavailable):
        other.adopt_model(manifest)
    assert not other.has_model(digest)
    for file in rest:
        other.put_bytes(store.get(file.digest).data)
    assert other.adopt_model(manifest) == digest
    assert load_graph(other.model_path(digest)).constants["w"].load()[0, 5] == 5
    assert other.nbytes() < store.nbytes() * 1.1  # blobs of the model are not kept twice


@pytest.mark.parametrize(
    "change",
    [{"path": "../x"}, {"path": "/x"}, {"path": ""}, {"nbytes": -1}, {"digest": "x"}, {"nbytes": "many"}],
)
def test_a_list_of_files_from_a_peer_is_checked(change: dict[str, object]) -> None:
    entry = {"path": "m.onnx", "digest": DIGEST, "nbytes": 3}
    assert manifest_from_json([entry]).digest == DIGEST
    several: list[object] = [[entry | change], [entry, entry], [], None, 5, [5], {}]
    for bad in several:
        with pytest.raises(PeerError):
            manifest_from_json(bad)


def test_models_with_a_file_in_common_do_not_take_it_from_each_other(store: Store, tmp_path: Path) -> None:
    one = store.put_model(model_files(model_in(tmp_path / "one")))
    path = model_in(tmp_path / "two")
    model = onnx.load(path, load_external_data=False)
    model.producer_name = "another"
    path.write_bytes(model.SerializeToString())
    two = store.put_model(model_files(path))
    weights = store.manifest(one).files[1].digest
    assert one != two and store.manifest(two).files[1].digest == weights
    store.prune((one,))
    store.empty_trash()
    assert store.has(weights)
    assert load_graph(store.model_path(one)).constants["w"].load()[0, 5] == 5
    store.prune(())
    store.empty_trash()
    assert not store.has(weights)
    assert store.nbytes() == 0


def test_a_weight_is_cut_from_its_model(store: Store, tmp_path: Path) -> None:
    path = model_in(tmp_path / "m")
    model = store.put_model(model_files(path))
    graph, region = load_graph(path, shapes={"x": (100, 300)}), Region.box((10, 20), (0, 300))
    digest = blob_digest(graph.constants["w"], region)
    blob = store.blob(digest, (model, "w", region))
    np.testing.assert_array_equal(blob.view(np.float32).reshape(10, 300), graph.constants["w"].load()[10:20])
    assert store.has(digest)


def test_a_constant_made_from_shapes_is_cut_with_the_shapes(store: Store, tmp_path: Path) -> None:
    path = model_in(tmp_path / "m")
    model = store.put_model(model_files(path))
    zeros = load_graph(path, shapes={"x": (100, 300)}).constants["z"]
    digest = blob_digest(zeros, zeros.region)
    with pytest.raises(PeerError, match="no such constant"):
        store.blob(digest, Source(model, "z", zeros.region))
    assert not store.blob(digest, Source(model, "z", zeros.region, {"x": (100, 300)})).any()


def test_so_is_one_of_a_model_that_cannot_be_loaded_without_shapes(store: Store, tmp_path: Path) -> None:
    blocks: dict[str, Any] = {"K": 32, "N": 2, "bits": 4, "block_size": 32, "domain": "com.microsoft"}
    nodes = [
        helper.make_node("MatMulNBits", ["x", "packed", "scales"], ["product"], name="product", **blocks),
        helper.make_node("Reshape", ["product", "form"], ["y"], name="y"),
        helper.make_node("Shape", ["x"], ["shape"], name="shape"),
        helper.make_node("ConstantOfShape", ["shape"], ["z"], name="z"),
        helper.make_node("Neg", ["z"], ["w"], name="w"),
    ]
    held: dict[str, Any] = {
        "packed": np.ones((2, 1, 16), np.uint8),
        "scales": np.ones(2, np.float32),
        "form": np.array([-1]),
    }
    graph = helper.make_graph(
        nodes,
        "blocks",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 32])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "yw"],
        [numpy_helper.from_array(value, name) for name, value in held.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    (tmp_path / "m").mkdir()
    path = tmp_path / "m" / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    with pytest.raises(ModelError):
        load_constants(path)
    model, shapes = store.put_model(model_files(path)), {"x": (100, 32)}
    zeros = load_graph(path, shapes=shapes).constants["w"]
    digest = blob_digest(zeros, zeros.region)
    assert not store.blob(digest, Source(model, "w", zeros.region, shapes)).view(np.float32).any()


@pytest.mark.parametrize(
    ("name", "region", "message"),
    [
        ("nothing", Region.box((0, 1), (0, 1)), "no such constant"),
        ("w", Region.box((0, 1)), "has no region"),
        ("w", Region.box((0, 1), (299, 301)), "has no region"),
        ("w", Region.box((0, 1), (0, 1)), "has digest"),
    ],
)
def test_a_weight_that_is_not_what_the_plan_says_is_refused(
    store: Store, tmp_path: Path, name: str, region: Region, message: str
) -> None:
    model = store.put_model(model_files(model_in(tmp_path / "m")))
    with pytest.raises(PeerError, match=message):
        store.blob("0" * 64, (model, name, region))
    assert not store.has("0" * 64)


def test_a_weight_of_a_model_that_is_not_here_is_unavailable(store: Store) -> None:
    for source in (None, ("1" * 64, "w", Region(()))):
        with pytest.raises(Unavailable):
            store.blob("0" * 64, source)


def test_arriving_goes_on_after_a_restart(store: Store, tmp_path: Path) -> None:
    partial = store.partial(DIGEST, len(DATA))
    assert not partial.append(0, DATA[:1000])
    again = Store(tmp_path / "store").partial(DIGEST, len(DATA))
    assert again.arrived == 1000
    assert not store.has(DIGEST)
    assert again.append(1000, memoryview(DATA)[1000:])
    assert bytes(store.get(DIGEST)) == DATA
    assert store.partial(DIGEST, len(DATA)).arrived == 0


@pytest.mark.parametrize(("offset", "data"), [(1, b"x"), (0, DATA + b"x"), (1 << 40, b"x")])
def test_what_does_not_go_on_is_refused(store: Store, offset: int, data: bytes) -> None:
    partial = store.partial(DIGEST, len(DATA))
    with pytest.raises(PeerError, match="go on from 0"):
        partial.append(offset, data)
    assert partial.arrived == 0


def test_what_arrived_wrong_is_thrown_away(store: Store) -> None:
    partial = store.partial(DIGEST, len(DATA))
    partial.append(0, DATA[:-1])
    with pytest.raises(PeerError, match="thrown away"):
        partial.append(len(DATA) - 1, b"?")
    assert partial.arrived == 0
    assert not store.has(DIGEST)
    partial.append(0, b"12")
    partial.discard()
    assert partial.arrived == 0


def test_more_on_disk_than_announced_starts_anew(store: Store) -> None:
    store.partial(DIGEST, len(DATA)).append(0, DATA[:1000])
    assert store.partial(DIGEST, 10).arrived == 0


def test_pruning_leaves_what_is_kept(store: Store, tmp_path: Path) -> None:
    one = store.put_model(model_files(model_in(tmp_path / "one")))
    two = store.put_model(model_files(model_in(tmp_path / "two", scale=2)))
    kept, gone = store.put_bytes(b"kept"), store.put_bytes(b"gone")
    store.partial("0" * 64, 100).append(0, b"abc")
    before = store.nbytes()
    assert store.prune({one, kept}) == 2
    assert store.partial("0" * 64, 100).arrived == 3  # the next try may come
    assert store.prune({one, kept}, partial_s=-1) == 1
    assert store.partial("0" * 64, 100).arrived == 0
    freed = store.empty_trash()
    assert freed == before - store.nbytes() > 300_000
    assert store.models() == (one,)
    assert not store.has_model(two)
    assert (store.has(kept), store.has(gone)) == (True, False)
    assert load_graph(store.model_path(one)).constants["w"].load()[0, 5] == 5


def test_what_a_crash_left_is_swept_away(store: Store, tmp_path: Path) -> None:
    (tmp_path / "store/models/.new-abc/files").mkdir(parents=True)
    (tmp_path / "store/models/.new-abc/files/m.onnx").write_bytes(b"half")
    (tmp_path / "store/sha256/ab").mkdir()
    (tmp_path / "store/sha256/ab/.new-xyz").write_bytes(b"half")
    (tmp_path / "store/models" / ("e" * 64)).mkdir()  # died before its manifest
    (tmp_path / "store/partial/upload-abc").mkdir()
    (tmp_path / "store/partial/upload-abc/m.onnx").write_bytes(b"half")
    (tmp_path / "store/trash/one").write_bytes(b"doomed")
    fresh = Store(tmp_path / "store")
    assert fresh.nbytes() == 0
    assert fresh.models() == ()


def test_another_process_sweeps_nothing_away(store: Store, tmp_path: Path) -> None:
    """The planning process reads models while the agent writes."""
    making = tmp_path / "store/models/.new-abc"
    (making / "files").mkdir(parents=True)
    (making / "manifest.json").write_text("[]")
    other = Store(tmp_path / "store", alone=False)
    assert making.exists()
    assert other.models() == store.models() == ()
    assert other.prune(()) == 0
    assert making.exists()


def test_a_failed_put_leaves_nothing(store: Store, tmp_path: Path) -> None:
    files = model_files(model_in(tmp_path / "m"))
    with pytest.raises(FileNotFoundError):
        store.put_model([*files, tmp_path / "m/none.bin"])
    with pytest.raises(UsageError, match="does not lie in"):
        store.put_model([files[0], tmp_path / "elsewhere.bin"])
    assert store.models() == ()
    assert store.nbytes() == 0


def test_state_files_are_whole_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "state" / "deployments.json"
    assert read_json(path) is None
    write_atomic(path, b'{"a": 1}')
    write_atomic(path, b'{"a": 2}')
    assert read_json(path) == {"a": 2}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["deployments.json"]
    path.write_bytes(b'{"a": ')
    with pytest.raises(UsageError, match=r"deployments\.json is damaged.*move it away"):
        read_json(path)
    assert path.read_bytes() == b'{"a": '
