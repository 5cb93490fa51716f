"""Bad input against real agents, on both ports: each time the process stays, answers a normal request rightly, and has
grown by no more than a bound.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import onnx
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from edgepart.agent.net.links import LinkOpen
from edgepart.agent.net.stream import dial
from edgepart.agent.security import identity
from edgepart.agent.wire.address import Address, parse_address
from edgepart.agent.wire.codec import message_to_frame
from edgepart.agent.wire.frames import MAGIC, MEMBER, PREFIX, Frame
from edgepart.cli.local import LocalAgent, LocalCluster, edgepart
from tests.processes.asking import deploy, infer

pytestmark = pytest.mark.processes

GROWN_BYTES = 96 << 20
"""What one agent may have grown by in the whole module; the bodies that are refused are several times as large."""
DESCRIPTORS = 40
"""What may be open more than at the start: connections that wait to be cut off."""
BOUND_S = 30.0
INPUT = np.array([[1, 4, 9, 16]], np.float32)
ROOT_PATH = "/v2/models/root/infer"


@dataclass
class Scene:
    """Two members; `target` is talked to. `ghost` is the state of a third that has joined and runs no agent."""

    cluster: LocalCluster
    target: LocalAgent
    ghost: identity.Identity
    began: tuple[int, int]
    """Process id, and resident bytes after the first request."""
    descriptors: int

    @property
    def listen(self) -> Address:
        return parse_address(self.target.addresses["listen"])

    @property
    def http(self) -> Address:
        url = urlsplit(self.target.url)
        return str(url.hostname), int(url.port or 0)

    @property
    def node(self) -> str:
        return identity.load(self.target.state).node_id

    @property
    def admin(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {identity.load(self.target.state).admin}"}

    def is_well(self) -> None:
        """Alive, right, and no larger than it may be."""
        assert self.target.alive
        assert self.target.addresses["pid"] == self.began[0]
        assert np.array_equal(infer(self.target, "root", {"x": INPUT})["y"], np.sqrt(INPUT))
        process = psutil.Process(self.began[0])
        grown = process.memory_info().rss - self.began[1]
        assert grown < GROWN_BYTES, f"grown by {grown / 1e6:.0f} MB"
        deadline = time.monotonic() + BOUND_S
        while process.num_fds() > self.descriptors + DESCRIPTORS:
            assert time.monotonic() < deadline, f"{process.num_fds()} descriptors are open"
            time.sleep(0.1)

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and document (the last line of one that comes in lines)."""
        connection = http.client.HTTPConnection(*self.http, timeout=BOUND_S)
        try:
            if isinstance(body, dict | list):
                body = json.dumps(body)
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            text = reply.read()
        finally:
            connection.close()
        return reply.status, json.loads(text.splitlines()[-1]) if text else None


def root_model(path: Path) -> Path:
    """y = sqrt(x): of negative numbers it is NaN."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Sqrt", ["x"], ["y"])], "g", values[:1], values[1:])
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, counting: dict[str, str]) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("scene")
    options = ("--threads", "1", "--no-mdns")
    env = {"a": counting}
    with LocalCluster(["a", "b"], options=options, env=env, folder=folder, listen="127.0.0.1:0") as cluster:
        target = cluster.first
        deploy(cluster, root_model(folder / "root.onnx"), "root", "--strategy", "single")
        token = edgepart("token", "create", "--state", str(target.state))["token"]
        peer = target.addresses["listen"]
        edgepart("join", token, "--state", str(folder / "ghost"), "--name", "ghost", "--peer", peer)
        infer(target, "root", {"x": INPUT})
        process = psutil.Process(target.addresses["pid"])
        began = process.pid, process.memory_info().rss
        yield Scene(cluster, target, identity.load(folder / "ghost"), began, process.num_fds())


def closed(connection: socket.socket) -> bytes:
    """What came until the other side closed."""
    connection.settimeout(BOUND_S)
    came = b""
    try:
        while chunk := connection.recv(1 << 16):
            came += chunk
    except (ConnectionError, ssl.SSLError):
        return came
    return came


def say(address: Address, data: bytes, *, end: bool = True) -> bytes:
    """Sends it, and that no more follows (`end`), and gives what comes until the other side closes."""
    with socket.create_connection(address, BOUND_S) as connection:
        try:
            connection.sendall(data)
            if end:
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            return b""  # closed already
        return closed(connection)


def anybody() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


# The port for agents


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x16",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\xff\xff" + bytes(70_000),
        MAGIC + bytes(100),
        os.urandom(1 << 20),
    ],
    ids=["nothing", "one byte", "http", "a long hello", "a frame in the clear", "random"],
)
def test_what_is_no_tls_is_closed(scene: Scene, data: bytes) -> None:
    say(scene.listen, data)
    scene.is_well()


@settings(max_examples=25)
@given(st.lists(st.binary(min_size=1, max_size=3000), min_size=1, max_size=4))
def test_random_bytes_to_the_agents_port_in_tls_and_in_the_clear(scene: Scene, pieces: list[bytes]) -> None:
    with socket.create_connection(scene.listen, BOUND_S) as connection:
        connection.sendall(b"".join(pieces))
    for context in (anybody(), scene.ghost.client_context()):
        stream = dial(scene.listen, context, timeout_s=BOUND_S)
        try:
            for piece in pieces:
                stream.connection.sendall(piece)
        except OSError:
            continue  # closed at the first bytes that were none of a frame's
        finally:
            stream.close()


def test_after_random_bytes(scene: Scene) -> None:
    scene.is_well()


LYING = {
    "a header of 4 GiB": PREFIX.pack(MAGIC, 1, 0, 2**32 - 1, 0),
    "a payload of 9 EB": PREFIX.pack(MAGIC, 1, 0, 10, 2**63),
    "another version": PREFIX.pack(MAGIC, 9, 0, 10, 0),
    "a header that is cut": PREFIX.pack(MAGIC, 1, 0, 3, 0) + b"\x92\xa1a",
    "a deep header": PREFIX.pack(MAGIC, 1, 0, 60_000, 0) + b"\x91" * 60_000,
    "a kind that is none": PREFIX.pack(MAGIC, 1, 0, 5, 0) + b"\x92\xa2no\x80",
}


@pytest.mark.parametrize("data", LYING.values(), ids=LYING.keys())
def test_frames_that_lie_end_the_connection(scene: Scene, data: bytes) -> None:
    for context in (anybody(), scene.ghost.client_context()):
        stream = dial(scene.listen, context, timeout_s=BOUND_S)
        stream.connection.sendall(data)
        closed(stream.connection)
        stream.close()
    scene.is_well()


def test_a_member_that_announces_much_and_sends_little(scene: Scene) -> None:
    """Memory is taken as bytes come in, not as they are announced."""
    streams = []
    for attempt in range(8):
        stream = dial(scene.listen, scene.ghost.client_context(), timeout_s=BOUND_S)
        opening = LinkOpen("control", f"boot{attempt}", attempt, scene.node, (("", 1),))
        stream.write(message_to_frame(opening))
        largest = PREFIX.pack(MAGIC, 1, 0, MEMBER.header_bytes, MEMBER.payload_bytes)
        stream.connection.sendall(largest + bytes(1000))
        streams.append(stream)
    scene.is_well()
    for stream in streams:
        closed(stream.connection)
        stream.close()


def test_a_member_that_says_wrong_things(scene: Scene) -> None:
    for frame in (
        message_to_frame(LinkOpen("gossip", "boot", 1, scene.node, ())),
        message_to_frame(LinkOpen("control", "boot", 1, "0" * 16, ())),
        message_to_frame(LinkOpen("data", "boot", 1, scene.node, (("no host", 0),))),
        Frame("Heartbeat", {}),
        Frame("LinkOpen", {"channel": 5}),
    ):
        stream = dial(scene.listen, scene.ghost.client_context(), timeout_s=BOUND_S)
        stream.write(frame)
        closed(stream.connection)
        stream.close()
    scene.is_well()


def test_a_hundred_connections_that_say_nothing(scene: Scene) -> None:
    """Members' links and requests go on meanwhile; then each is cut off, and the port lets newcomers in again."""
    silent = [socket.create_connection(scene.listen, BOUND_S) for _ in range(100)]
    idle = [socket.create_connection(scene.http, BOUND_S) for _ in range(100)]
    try:
        assert np.array_equal(infer(scene.target, "root", {"x": INPUT})["y"], np.sqrt(INPUT))
        for connection in silent:
            closed(connection)
    finally:
        for connection in silent + idle:
            connection.close()
    token = edgepart("token", "create", "--state", str(scene.target.state))["token"]
    state = scene.cluster.folder / f"late-{time.monotonic_ns()}"
    edgepart("join", token, "--state", str(state), "--peer", scene.target.addresses["listen"])
    scene.is_well()


# HTTP: what is no request


@settings(max_examples=25)
@given(st.binary(min_size=1, max_size=4000))
def test_random_bytes_to_the_http_port(scene: Scene, data: bytes) -> None:
    answer = say(scene.http, data)
    assert not answer or answer.startswith(b"HTTP/1."), answer[:100]
    head = f"POST {ROOT_PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    answer = say(scene.http, head.encode() + data, end=False)
    assert answer.startswith(b"HTTP/1.1 400"), answer[:100]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 100_000 + b"\r\n", b"400"),
        (b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n" % ROOT_PATH.encode(), b"400"),
        (b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9x\r\n\r\n" % ROOT_PATH.encode(), b"400"),
        (
            b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n{"
            % (ROOT_PATH.encode(), 10**15),
            b"413",
        ),
        (
            b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}   "
            % ROOT_PATH.encode(),
            b"400",
        ),
        (
            b"POST %b HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n"
            % ROOT_PATH.encode(),
            b"400",
        ),
    ],
    ids=["path", "header", "headers", "negative", "no number", "enormous", "two lengths", "chunks"],
)
def test_heads_that_are_wrong(scene: Scene, data: bytes, status: bytes) -> None:
    answer = say(scene.http, data, end=False)
    assert answer.split(b" ", 2)[1:2] == [status], answer[:200]
    scene.is_well()


def test_a_body_that_ends_early_and_one_that_trickles(scene: Scene) -> None:
    head = f"POST {ROOT_PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n".encode()
    assert b" 200 " not in say(scene.http, head + b'{"inputs": [')
    with socket.create_connection(scene.http, BOUND_S) as trickling:
        trickling.sendall(head)
        for _ in range(3):
            trickling.sendall(b" ")
            scene.is_well()
    scene.is_well()


def test_a_body_over_the_limit_is_refused_before_it_is_held(scene: Scene) -> None:
    chunk = b"%x\r\n%b\r\n" % (1 << 20, bytes(1 << 20))
    with socket.create_connection(scene.http, BOUND_S) as connection:
        connection.sendall(
            f"POST {ROOT_PATH} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        sent = 0
        try:
            while sent < 400:
                connection.sendall(chunk)
                sent += 1
        except OSError:
            assert sent >= 250
        assert b"413" in closed(connection) or sent < 400
    scene.is_well()


# HTTP: requests that do not fit


def entry(**changes: Any) -> dict[str, Any]:
    good = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 4, 9, 16]}
    return {"inputs": [good | changes]}


DEEP = b'{"inputs": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[]", "object"),
        (DEEP, "lists"),
        (b'{"inputs": [NaN]}', "NaN"),
        ({"inputs": []}, "missing"),
        ({"inputs": [entry()["inputs"][0]] * 2}, "twice"),
        (entry(name="z"), "no input 'z'"),
        (entry(name=None), "name"),
        (entry(shape=[4, 1]), "shape"),
        (entry(shape=[1, 5]), "5"),
        (entry(shape=[2**40, 2**40]), "shape"),
        (entry(shape=[-1, 4]), "shape"),
        (entry(datatype="FP64"), "FP64"),
        (entry(datatype="FP99"), "FP99"),
        (entry(data=["a"] * 4), "data"),
        (entry(data=[1, [2, 3], 4]), "data"),
        (entry(data=[1e999, 1, 1, 1]), ""),
        (entry() | {"outputs": [{"name": "z"}]}, "no outputs"),
        (entry() | {"outputs": [{"name": "y", "parameters": {"binary_data": 1}}]}, "binary_data"),
        (entry() | {"parameters": {"timeout": -1}}, "timeout"),
    ],
)
def test_requests_that_do_not_fit(scene: Scene, body: Any, words: str) -> None:
    status, document = scene.ask("POST", ROOT_PATH, body)
    assert status == 400, document
    assert words in document["error"]
    scene.is_well()


def test_unknown_models_and_paths(scene: Scene) -> None:
    for method, path in (
        ("POST", "/v2/models/nobody/infer"),
        ("GET", "/v2/models/nobody"),
        ("GET", "/v2/models/root/versions/9"),
        ("GET", "/v2/models/..%2f..%2fetc%2fpasswd"),
        ("GET", "/../../etc/passwd"),
        ("GET", "/api/models/nobody/plan"),
    ):
        status, document = scene.ask(method, path, entry() if method == "POST" else None)
        assert (status, "error" in document) == (404, True), path
    assert scene.ask("DELETE", ROOT_PATH)[0] == 405
    scene.is_well()


def test_answers_have_no_nan_in_json(scene: Scene) -> None:
    negative = entry(data=[-1, -1, -1, -1])
    status, document = scene.ask("POST", ROOT_PATH, negative)
    assert status == 400
    assert "binary" in document["error"]
    assert np.isnan(infer(scene.target, "root", {"x": -INPUT})["y"]).all()
    scene.is_well()


# HTTP: management


def form(*parts: tuple[str, str | None, bytes]) -> tuple[bytes, dict[str, str]]:
    """A multipart body: (part, file name, content)."""
    body = b""
    for name, file, content in parts:
        given = "" if file is None else f'; filename="{file}"'
        body += (
            f'--cut\r\nContent-Disposition: form-data; name="{name}"{given}\r\n\r\n'.encode()
            + content
            + b"\r\n"
        )
    return body + b"--cut--\r\n", {"Content-Type": "multipart/form-data; boundary=cut"}


def bytes_of(model: onnx.ModelProto) -> bytes:
    return bytes(model.SerializeToString())


def leading_outside(location: str) -> bytes:
    """A model whose weight is in another file."""
    weight = TensorProto(name="w", data_type=1, dims=[1, 4], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value=location)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in ("x", "y")]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])], "g", values[:1], values[1:], [weight]
    )
    return bytes_of(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def with_a_cycle() -> bytes:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in ("x", "y")]
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Add", ["a", "x"], ["b"])]
    graph = helper.make_graph([*nodes, helper.make_node("Neg", ["b"], ["y"])], "g", values[:1], values[1:])
    return bytes_of(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


UPLOADS: dict[str, list[tuple[str, str | None, bytes]]] = {
    "no file": [],
    "no model": [("file", "m.onnx", b"this is no model")],
    "an empty one": [("file", "m.onnx", b"")],
    "random": [("file", "m.onnx", os.urandom(100_000))],
    "a model cut off": [("file", "m.onnx", with_a_cycle()[:-20])],
    "a cycle": [("file", "m.onnx", with_a_cycle())],
    "two models": [("file", "m.onnx", b"1"), ("file", "n.onnx", b"2")],
    "no .onnx": [("file", "m.bin", b"1")],
    "a path out": [("file", "../../m.onnx", b"1")],
    "a path out, encoded": [("file", "%2e%2e%2fm.onnx", b"1")],
    "an absolute path": [("file", "/etc/m.onnx", b"1")],
    "external data outside": [("file", "m.onnx", leading_outside("../../identity/admin"))],
    "external data anywhere": [("file", "m.onnx", leading_outside("/etc/passwd"))],
    "external data missing": [("file", "m.onnx", leading_outside("w.bin"))],
    "external data too short": [("file", "m.onnx", leading_outside("w.bin")), ("file", "w.bin", b"12")],
    "options": [("options", None, b'{"strategy": 5}'), ("file", "m.onnx", b"1")],
    "deep options": [("options", None, b"[" * 100_000), ("file", "m.onnx", b"1")],
}


def left_behind(scene: Scene) -> Sequence[str]:
    """Files of uploads, and models that nothing has deployed."""
    store = scene.target.state / "store"
    uploads = [path.name for path in (store / "partial").iterdir()]
    models = [path.name for path in (store / "models").iterdir()]
    return uploads + models[1:]


@pytest.mark.parametrize("parts", UPLOADS.values(), ids=UPLOADS.keys())
def test_uploads_that_are_refused_leave_nothing(
    scene: Scene, parts: list[tuple[str, str | None, bytes]]
) -> None:
    body, headers = form(*parts)
    status, document = scene.ask("POST", "/api/deployments/bad", body, headers | scene.admin)
    assert document["error"]
    assert document.get("status", status) in (400, 413), document
    assert left_behind(scene) == []
    assert [card["name"] for card in scene.ask("GET", "/api/models")[1]["models"]] == ["root"]
    scene.is_well()


def test_an_upload_that_is_cut_off_leaves_nothing(scene: Scene) -> None:
    body, headers = form(("file", "m.onnx", bytes(50 << 20)))
    head = f"POST /api/deployments/bad HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in (headers | scene.admin).items())
    say(scene.http, head.encode() + b"\r\n" + body[: 20 << 20])
    scene.cluster.wait(lambda: left_behind(scene) == [], "what came of the upload to be deleted")
    scene.is_well()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Authorization": "Basic YTpi"},
        {"Authorization": "Bearer \xff\xfe"},
    ],
    ids=str,
)
def test_nobody_changes_anything_without_the_credential(scene: Scene, headers: dict[str, str]) -> None:
    body, kind = form(("file", "m.onnx", with_a_cycle()))
    assert scene.ask("POST", "/api/deployments/root", body, kind | headers)[0] == 401
    assert scene.ask("DELETE", "/api/deployments/root", None, headers)[0] == 401
    if headers:
        assert scene.ask("POST", ROOT_PATH, entry(), headers)[0] == 401
    assert scene.ask("GET", "/api/status", None, headers | {"Host": "evil.example"})[0] == 401
    assert left_behind(scene) == []
    scene.is_well()


def test_the_other_member_saw_none_of_it(
    scene: Scene, counting: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(agent.alive for agent in scene.cluster.agents.values())
    scene.cluster.wait_for_members(2)
    for name, value in counting.items():
        monkeypatch.setenv(name, value)
    found = edgepart("doctor", "--state", str(scene.target.state))
    assert {box["name"]: box["state"] for box in found["boxes"]}["b"] == "member"
    assert found["knocks"], "who was not let in"
    log = scene.target.log.read_text()
    assert "Traceback" not in log, log[-5000:]
