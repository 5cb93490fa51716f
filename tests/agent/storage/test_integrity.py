"""What an earlier life left in the store: found damaged, named, set aside, and had again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from edgepart.agent.storage.integrity import StoreIntegrity
from edgepart.agent.storage.store import Store
from edgepart.planner.model.load import load_graph
from edgepart.planner.model.model_file import model_files
from tests.agent.replication.test_blobs import Wire, run
from tests.agent.storage.test_store import DATA, DIGEST, model_in


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def model(store: Store, tmp_path: Path) -> str:
    return store.put_model(model_files(model_in(tmp_path / "m")))


@pytest.mark.parametrize("damage", [flip, cut, lambda path: path.write_bytes(b"")])
def test_a_damaged_weight_does_not_count_as_here(store: Store, damage: Callable[[Path], None]) -> None:
    store.put_bytes(DATA)
    assert StoreIntegrity(store).here(DIGEST)
    damage(store.path(DIGEST))
    told: list[str] = []
    again = StoreIntegrity(store, told.append)
    assert not again.here(DIGEST) and not store.has(DIGEST)
    assert DIGEST[:12] in told[0] and str(store.root / "damaged" / DIGEST) in told[0]
    store.put_bytes(DATA)
    assert again.here(DIGEST)
    store.prune({DIGEST})
    assert not list((store.root / "damaged").iterdir())


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
def test_a_damaged_model_is_set_aside_and_fetched_again(
    store: Store, model: str, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    other = Store(tmp_path / "other")
    other.put_model(model_files(model_in(tmp_path / "n")))
    damage(store.root / "models" / model / "files" / "sub" / "w.bin")
    told: list[str] = []
    again = StoreIntegrity(Store(store.root), told.append)
    again.look()
    again.scrub()
    assert store.models() == () and len(told) == 1

    async def work(wire: Wire) -> None:
        wire.add("a", other)
        await wire.fetching.model(model, ["a"])

    run(work, store)
    assert load_graph(store.model_path(model)).constants["w"].load()[0, 5] == 5


def test_what_is_sound_stays_and_is_read_slowly_and_once(store: Store, model: str) -> None:
    read: list[int] = []
    integrity = StoreIntegrity(store)
    integrity.look()
    for _ in range(2):
        integrity.scrub(read.append)
    assert store.models() == (model,)
    assert sum(read) == sum(file.nbytes for file in store.manifest(model).files)


def test_what_is_stored_no_longer_is_trusted_no_longer(store: Store) -> None:
    store.put_bytes(DATA)
    integrity = StoreIntegrity(store)
    assert integrity.here(DIGEST)
    integrity.forget_deleted()
    assert integrity._sound == {DIGEST}
    store.prune(set())
    integrity.forget_deleted()
    assert not integrity._sound


def test_names_that_a_crash_has_lost_are_there_again(store: Store, model: str) -> None:
    """The folder of a model's files is whole before their other names are."""
    for file in store.manifest(model).files:
        store.path(file.digest).unlink()
    StoreIntegrity(Store(store.root)).look()
    assert all(store.has(file.digest) for file in store.manifest(model).files)


def test_half_a_model_takes_no_room_after_a_crash(store: Store, model: str) -> None:
    (store.root / "models" / model / "manifest.json").unlink()
    assert Store(store.root).models() == ()
    assert not (store.root / "models" / model).exists()


def test_a_weight_that_is_damaged_is_cut_again_where_its_model_is(store: Store, model: str) -> None:
    from tests.agent.replication.test_blobs import plan_and_ref

    plan, ref = plan_and_ref(model, store)

    async def work(wire: Wire) -> None:
        await wire.fetching.weights(plan, [ref], [])
        flip(store.path(ref.digest))
        anew = Wire(store)
        await anew.fetching.weights(plan, [ref], [])
        await asyncio.sleep(0)

    run(work, store)
    assert StoreIntegrity(store).here(ref.digest)
