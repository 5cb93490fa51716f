"""Fuzz targets for the disk: every file of the state directory, torn, outdated, or written by another program."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path

from edgepart import __version__
from edgepart.agent.cluster.membership.election import MAX_TERM
from edgepart.agent.cluster.state import deployments, drains, kept_plans, profiles
from edgepart.agent.cluster.state.deployments import DeploymentMap
from edgepart.agent.cluster.state.profiles import ProfileBook
from edgepart.agent.execution.compile.cache import Compiled, CompiledEntry
from edgepart.agent.security import charter, identity, issued, tokens
from edgepart.agent.security.charter import Charter, Credential, Revocation
from edgepart.agent.state_files import StateFiles
from edgepart.agent.storage.store import Manifest, ModelFile, Store, manifest_to_json
from edgepart.agent.wire.codec import message_to_frame
from edgepart.agent.wire.control import (
    Deployment,
    Deployments,
    Drain,
    Drains,
    Prepare,
    Profile,
    Timed,
    Version,
)
from edgepart.agent.wire.frames import encode
from edgepart.agent.wire.inference import DeployOptions, Epoch
from edgepart.client.target import target_of
from edgepart.planner.errors import NotAuthorised, PeerError, Unavailable, UsageError
from tests.fuzz.forms import Bytes, Form, Json, MessagePack
from tests.fuzz.target import Take, Target, expect

NOW = 1.8e9
LARGEST = 2**63
"""Messages can hold only numbers below this."""


def _file(
    name: str, read: Callable[[Path], None], before: Callable[[Path], None] = lambda state: None
) -> Callable[[], AbstractContextManager[Take]]:
    """Return a target's door that puts each case into the file `name` of a state directory, which `before`
    has filled."""

    @contextmanager
    def opened() -> Iterator[Take]:
        with tempfile.TemporaryDirectory(prefix="edgepart-fuzz-") as folder:
            state = Path(folder)
            before(state)
            path = state / name
            path.parent.mkdir(parents=True, exist_ok=True)

            def take(data: bytes) -> None:
                # The file is created again, because the reader may have deleted it.
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                os.write(descriptor, data)
                os.close(descriptor)
                read(state)

            yield take

    return opened


def _term(state: Path) -> None:
    files = StateFiles(state)
    for count in (files.term, files.incarnation):
        expect(type(count) is int and 0 <= count < LARGEST, f"{count} is no count that can be told")
    files.keep(term=min(files.term + 1, MAX_TERM - 1))
    expect(StateFiles(state).incarnation == files.incarnation, "a count is another after a round trip")


ENTRIES = (
    Deployment(
        "net",
        "0" * 64,
        5,
        DeployOptions(shapes={"x": (1, 3)}, devices=("a",), search_budget_s=2.0),
        Version(3, "n"),
    ),
    Deployment(
        "old", "1" * 64, 0, DeployOptions(axis="height", memory_limit_bytes=9), Version(4, "m"), deleted=True
    ),
)


CHARTER = Charter((Revocation("0" * 16, 5, b"s" * 64),), Credential(2, "s" * 43, ("0" * 16,), b"t" * 64))


def _deployments(state: Path) -> None:
    files = StateFiles(state)
    entries = DeploymentMap(files.deployments())
    told = Deployments(tuple(entries))
    encode(message_to_frame(told))
    files.keep_deployments(entries)
    expect(
        repr(tuple(files.deployments())) == repr(tuple(entries)), "deployments are others after a round trip"
    )


def _drains(state: Path) -> None:
    files = StateFiles(state)
    entries = files.drains()
    encode(message_to_frame(Drains(entries)))
    files.keep_drains(entries)
    expect(repr(files.drains()) == repr(entries), "drains are others after a round trip")


def _charter(state: Path) -> None:
    found = identity.read_charter(state / "identity")
    encode(message_to_frame(found))
    again = charter.from_json(json.loads(json.dumps(charter.to_json(found))))
    expect(again == found, "a charter is another after a round trip")


def _issued(state: Path) -> None:
    entries = issued.read(state / "identity")
    for entry in entries:
        expect(isinstance(entry.node, str) and isinstance(entry.name, str), "a device that has no name")
        expect(
            issued.find(entries, {entry.node: entry.name}, entry.node) == entry.node,
            "a device that is not found",
        )


def _profiles(state: Path) -> None:
    files = StateFiles(state)
    book = ProfileBook(files.profiles())
    encode(message_to_frame(Timed(book.profiles())))
    files.keep_profiles(book.profiles())
    expect(files.profiles() == book.profiles(), "profiles are others after a round trip")


def _kept_plans(state: Path) -> None:
    files = StateFiles(state)
    for order in files.plans():
        encode(message_to_frame(order))
        files.keep_plan(order.deployment, order)
        expect(repr(files.plans()) == repr((order,)), "a kept plan is another after a round trip")


def _members(state: Path) -> None:
    files = StateFiles(state)
    found = files.members()
    files.keep_members(found)
    expect(files.members() == found, "members are others after a round trip")


def _tokens(state: Path) -> None:
    cards = tokens.list_tokens(state)
    for card in cards:
        card.refusal(NOW)
    try:
        tokens.redeem(state, "a1" * 6, b"said", b"proof", NOW)
    except NotAuthorised:
        return
    expect(False, "a proof of nothing lets in")


def _tokens_seeds() -> list[bytes]:
    card = {"token_id": "a1" * 6, "key": "b2" * 32, "created_at": NOW - 9, "expires_at": NOW + 9, "uses": 2}
    return [
        json.dumps({"tokens": [card, card | {"token_id": "c3" * 6, "expires_at": NOW - 1}]}).encode(),
        b'{"tokens": []}',
    ]


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return a temporary folder that is removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="edgepart-fuzz-")


@cache
def _cluster() -> Path:
    """Return the state directory of a cluster's first member; it is made once."""
    state = Path(_folder().name) / "state"
    identity.create_cluster(state, NOW)
    tokens.create(state, ttl_s=60.0, uses=1, now=NOW)
    return state


def _copied(state: Path) -> None:
    shutil.copytree(_cluster() / "identity", state / "identity")


def _identity(state: Path) -> None:
    me = identity.load(state)
    expect(len(me.node_id) == 16 and len(me.admin) >= 32, "an identity without a name or a credential")
    for host, port in me.first_members:
        expect(isinstance(host, str) and 0 <= port <= 65535, f"{host}:{port} is no address")


def _revoked(state: Path) -> None:
    me = identity.load(_cluster())
    here = identity.Identity(state / "identity", me.node_id, me.fingerprint, me.ca, me.admin)
    out = here.revoked_nodes()
    expect(all(isinstance(node, str) for node in out), "a revoked node that is none")


def _of_identity(name: str, form: Form, share: float = 0.3) -> Target:
    def seeds() -> Sequence[bytes]:
        return [
            (_cluster() / "identity" / name).read_bytes(),
            b'[["10.0.0.1", 7433]]' if form == Json() else b"",
        ]

    return Target(
        f"identity/{name}", seeds, _file(f"identity/{name}", _identity, _copied), (UsageError,), form, share
    )


MANIFEST = Manifest((ModelFile("m.onnx", "1" * 64, 5), ModelFile("sub/w.bin", "2" * 64, 6)))


def _manifest(state: Path) -> None:
    found = Store(state / "store").manifest("3" * 64)
    again = json.loads(json.dumps(manifest_to_json(found)))
    expect([e["path"] for e in again] == [f.path for f in found.files], "files are others after a round trip")
    for file in found.files:
        place = (state / "files" / file.path).resolve()
        expect(place.is_relative_to((state / "files").resolve()), f"{file.path!r} leads out of the folder")
        expect(0 <= file.nbytes < LARGEST, f"{file.nbytes} is no size")


KEY = "4" * 64
ENTRY = CompiledEntry("x86 1.20", frozenset({"a"}), b"model", {})


def _compiled(state: Path) -> None:
    folder = Compiled(state / "compiled", 1 << 20)
    found = folder.get(KEY, ENTRY.environment)
    expect(found is None or isinstance(found.model, bytes), "an entry without a model")
    folder.make_room()


def _sealed(state: Path) -> None:
    """Read an entry with a correct digest, as a program that writes wrong entries would leave it."""
    path = state / "compiled" / "entries" / KEY
    packed = path.read_bytes()
    path.write_bytes(hashlib.sha256(packed).digest() + packed)
    _compiled(state)


def _agent(state: Path) -> None:
    target = target_of(None, state)
    expect(isinstance(target.url, str) and target.is_local in (True, False), "an address that is none")


def _urls(state: Path) -> None:
    (state / "agent.json").write_text('{"http": "http://127.0.0.1:2"}')
    others = target_of(None, state).others
    expect(all(isinstance(url, str) and url for url in others), "an address that is none")


def _packed_entry() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        Compiled(Path(folder), 1 << 20).put(KEY, ENTRY)
        written = (Path(folder) / "entries" / KEY).read_bytes()
    return [written, written[32:]]


def _json(document: object) -> list[bytes]:
    return [json.dumps(document).encode()]


KEPT = Prepare(
    3,
    "net",
    Version(1, "n"),
    Epoch(3, 1),
    b"plan",
    (("a", "0" * 16),),
    "1" * 64,
    ("0" * 16,),
    0.1,
    {"x": (1, 3)},
)


def _deployed() -> object:
    return deployments.to_json(ENTRIES)


def _timed() -> object:
    return profiles.to_json([Profile("1" * 64, "x86~60", 2, 0.5), Profile("2" * 64, "arm~50", 1, 1e-6)])


TARGETS = (
    Target(
        "term.json",
        lambda: _json({"term": 7, "incarnation": 3}),
        _file("term.json", _term),
        (UsageError,),
        Json(),
        0.3,
    ),
    Target(
        "deployments.json",
        lambda: _json(_deployed()),
        _file("deployments.json", _deployments),
        (UsageError,),
        Json(),
        0.3,
    ),
    Target(
        "drains.json",
        lambda: _json(drains.to_json([Drain("0" * 16, "a", "drained", Version(1, "n"))])),
        _file("drains.json", _drains),
        (UsageError,),
        Json(),
        0.3,
    ),
    Target(
        "identity/charter.json",
        lambda: _json(charter.to_json(CHARTER)),
        _file("identity/charter.json", _charter),
        (UsageError,),
        Json(),
        0.3,
    ),
    Target(
        "identity/issued.json",
        lambda: _json({"issued": [asdict(issued.IssuedEntry("0" * 16, "a", "t", 1.5))]}),
        _file("identity/issued.json", _issued),
        (UsageError,),
        Json(),
        0.3,
    ),
    Target(
        "plans/net.json",
        lambda: _json(kept_plans.to_json(KEPT, __version__)),
        _file("plans/net.json", _kept_plans),
        (),
        Json(),
        0.3,
    ),
    Target("profiles.json", lambda: _json(_timed()), _file("profiles.json", _profiles), (), Json(), 0.3),
    Target(
        "cluster.json (members)",
        lambda: _json({"0" * 16: ["1.2.3.4:5"], "1" * 16: []}),
        _file("cluster.json", _members),
        (),
        Json(),
        0.3,
    ),
    Target(
        "agent.json",
        lambda: _json({"name": "a", "pid": 1, "listen": "127.0.0.1:1", "http": "http://127.0.0.1:2"}),
        _file("agent.json", _agent),
        (UsageError, Unavailable),
        Json(),
    ),
    Target(
        "http.json",
        lambda: _json({"members": ["http://127.0.0.1:3", "http://pi-b:8433"]}),
        _file("http.json", _urls),
        (),
        Json(),
    ),
    Target(
        "identity/tokens.json",
        _tokens_seeds,
        _file("identity/tokens.json", _tokens),
        (UsageError,),
        Json(),
        0.3,
    ),
    Target(
        "identity/revoked.json",
        lambda: _json({"nodes": ["0" * 16, "1" * 16]}),
        _file("identity/revoked.json", _revoked),
        (UsageError,),
        Json(),
    ),
    _of_identity("ca.pem", Bytes()),
    _of_identity("node.pem", Bytes()),
    _of_identity("node.key", Bytes()),
    _of_identity("admin", Bytes()),
    _of_identity("members.json", Json()),
    Target(
        "store: manifest.json",
        lambda: _json(manifest_to_json(MANIFEST)),
        _file(f"store/models/{'3' * 64}/manifest.json", _manifest),
        (UsageError, PeerError, Unavailable),
        Json(),
        0.1,
    ),
    Target("compiled entries", _packed_entry, _file(f"compiled/entries/{KEY}", _compiled), (), Bytes(), 0.3),
    Target(
        "compiled entries, sealed",
        _packed_entry,
        _file(f"compiled/entries/{KEY}", _sealed),
        (),
        MessagePack(),
        0.1,
    ),
)
