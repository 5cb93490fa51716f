"""The HTTP side as clients of all kinds meet it: management, credentials, uploads, and bad requests on raw
sockets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gzip
import json
import socket
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edgepart.agent.api.progress import ProgressLines
from edgepart.agent.gateway.access import authorise, is_local
from edgepart.agent.gateway.gateway import Gateway
from edgepart.agent.gateway.limits import BodyLimits
from edgepart.agent.http.server import HttpServer
from edgepart.agent.http.uploads import Upload
from edgepart.agent.wire.inference import DeployOptions
from edgepart.planner.errors import InternalError, NotAuthorised, Unavailable, UsageError
from tests.agent.http.conftest import ADMIN, CREDENTIAL, LIMITS, Served, serving
from tests.agent.http.fakes import NO_ROOM, A, FakeNode

ADD = {
    "inputs": [{"name": name, "datatype": "FP32", "shape": [2, 3], "data": A.tolist()} for name in ("a", "b")]
}


def form(*parts: tuple[str, str | None, bytes]) -> tuple[bytes, dict[str, str]]:
    """A multipart body of (part name, file name, data), and its headers."""
    lines = b""
    for name, filename, data in parts:
        also = f'; filename="{filename}"' if filename is not None else ""
        lines += (
            f'--xx\r\nContent-Disposition: form-data; name="{name}"{also}\r\n\r\n'.encode() + data + b"\r\n"
        )
    return lines + b"--xx--\r\n", {"Content-Type": "multipart/form-data; boundary=xx", **ADMIN}


def raw(served: Served, data: bytes) -> bytes:
    """What comes back for these bytes until the server closes."""
    with socket.create_connection(served.address, timeout=20) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
        found = b""
        with contextlib.suppress(ConnectionError):
            while chunk := connection.recv(65536):
                found += chunk
        return found


def test_infer_by_json(served: Served) -> None:
    reply = served.ask("POST", "/v2/models/add/infer", {**ADD, "id": "q"})
    document = reply.json()
    assert document["id"] == "q"
    assert document["parameters"]["epoch"] == "3.1"
    assert document["outputs"][0]["data"] == (2 * A).ravel().tolist()
    assert "no-store" not in reply.headers.get("Content-Type", "")


@pytest.mark.parametrize(
    ("failure", "status", "header"),
    [
        (Unavailable("no plan yet", 2.5), 503, ("Retry-After", "3")),
        (NO_ROOM, 507, None),
        (UsageError("no"), 400, None),
        (InternalError("a rule is broken"), 500, None),
        (ZeroDivisionError("secret text"), 500, None),
    ],
)
def test_errors_become_statuses(
    served: Served, failure: Exception, status: int, header: tuple[str, str] | None
) -> None:
    served.node.failure = failure
    reply = served.ask("POST", "/v2/models/add/infer", ADD)
    assert reply.status == status
    assert "secret" not in reply.json()["error"]
    if header:
        assert reply.headers[header[0]] == header[1]
    served.node.failure = None
    assert served.ask("POST", "/v2/models/add/infer", ADD).status == 200


def test_nan_in_an_answer_is_refused_as_json(served: Served) -> None:
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0.0]}]}
    assert served.ask("POST", "/v2/models/same-float/infer", body).status == 200
    nan = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,1],"parameters":{"binary_data_size":4}}]}'
    headers = {"Inference-Header-Content-Length": str(len(nan))}
    reply = served.ask("POST", "/v2/models/same-float/infer", nan + b"\0\0\xc0\x7f", headers)
    assert reply.status == 400
    assert "binary_data" in reply.json()["error"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("PUT", "/v2/models/add/infer", 405),
        ("GET", "/v2/models/none", 404),
        ("GET", "/v2/models/add/versions/9", 404),
        ("POST", "/v2/models/none/infer", 404),
        ("GET", "/api/models/none/plan", 404),
        ("GET", "/v2/models/..%2f..%2fetc/ready", 404),
        ("GET", "/v2/health/live", 200),
        ("GET", "/v2/health/ready", 200),
        ("GET", "/v2", 200),
        ("GET", "/v2/models", 200),
        ("GET", "/api/status", 200),
        ("GET", "/api/devices", 200),
        ("GET", "/api/doctor", 200),
        ("GET", "/api/models", 200),
        ("GET", "/api/models/add/plan", 200),
    ],
)
def test_routes(served: Served, method: str, path: str, status: int) -> None:
    reply = served.ask(method, path)
    assert reply.status == status
    assert (status == 200) or isinstance(reply.json()["error"], str)


@pytest.mark.parametrize(
    "headers",
    [
        {"Inference-Header-Content-Length": "-1"},
        {"Inference-Header-Content-Length": "999999"},
        {"Inference-Header-Content-Length": "1e3"},
        {"Inference-Header-Content-Length": "9" * 30},
    ],
)
def test_bad_header_lengths(served: Served, headers: dict[str, str]) -> None:
    assert served.ask("POST", "/v2/models/add/infer", ADD, headers).status == 400


def test_bodies_over_the_limit(served: Served) -> None:
    reply = served.ask("POST", "/v2/models/add/infer", b"x" * (LIMITS.request_bytes + 1))
    assert reply.status == 413
    lying = f"POST /v2/models/add/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {10**15}\r\n\r\n"
    assert b"413" in raw(served, lying.encode())
    bomb = gzip.compress(b"\0" * (LIMITS.request_bytes * 4))
    assert len(bomb) < LIMITS.request_bytes
    assert served.ask("POST", "/v2/models/add/infer", bomb, {"Content-Encoding": "gzip"}).status == 413
    assert served.ask("POST", "/v2/models/add/infer", b"no gzip", {"Content-Encoding": "gzip"}).status == 400
    assert served.ask("POST", "/v2/models/add/infer", ADD).status == 200


def test_all_bodies_together_have_a_limit(served: Served) -> None:
    gate = served.on_loop(_event)
    served.node.gate = gate
    body = {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1, 1], "data": ["a" * (3 << 20)]}]}
    statuses: list[int] = []
    first = threading.Thread(
        target=lambda: statuses.append(served.ask("POST", "/v2/models/same-string/infer", body).status)
    )
    first.start()
    wait(served, lambda: served.server._bodies._intake.held_bytes > 3 << 20)
    reply = served.ask("POST", "/v2/models/same-string/infer", b"x" * (LIMITS.request_bytes - 1))
    assert reply.status == 503
    assert "memory" in reply.json()["error"]
    served.loop.call_soon_threadsafe(gate.set)
    first.join()
    assert statuses == [200]
    wait(served, lambda: served.server._bodies._intake.held_bytes == 0)


async def _event() -> asyncio.Event:
    return asyncio.Event()


def wait(served: Served, condition: Any) -> None:
    async def until() -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.005)

    served.on_loop(until)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" + bytes(range(200)),  # TLS on the plain port
        b"GET / HTTP/9.9\r\n\r\n",
        b"\0" * 5000,
        b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20000 + b"\r\n\r\n",
        b"POST /v2/models/add/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v2/models/add/infer HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    ],
)
def test_what_is_no_http_is_refused(served: Served, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    answer = raw(served, data)
    assert b" 200 " not in answer.split(b"\r\n")[0]
    assert "Traceback" not in caplog.text
    assert served.ask("GET", "/v2/health/live").status == 200


def test_clients_that_send_no_complete_head_are_cut_off(tmp_path: Path) -> None:
    with serving(tmp_path, replace(LIMITS, head_s=0.5)) as hasty:
        assert raw(hasty, b"") == b""
        assert raw(hasty, b"POST /v2/models/add/infer HTTP/1.1\r\nHost: local") == b""


def test_clients_that_stand_still_within_a_body_are_told_so(impatient: Served) -> None:
    slow = b"POST /v2/models/add/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    assert b"stood still" in raw(impatient, slow)
    assert impatient.ask("GET", "/v2/health/live").status == 200


def test_a_client_that_goes_away_frees_its_request(served: Served) -> None:
    served.node.gate = served.on_loop(_event)
    body = json.dumps(ADD).encode()
    head = f"POST /v2/models/add/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(served.address, timeout=20) as connection:
        connection.sendall(head.encode() + body)
        wait(served, lambda: served.server._bodies._intake.places.taken == 1)
    wait(served, lambda: served.node.cancelled == 1 and served.server._bodies._intake.places.taken == 0)


# Credentials


@pytest.mark.parametrize(
    ("peer", "headers", "expected"),
    [
        ("127.0.0.1", {"Host": "localhost:8433"}, True),
        ("127.0.0.1", {"Host": "127.0.0.1:8433"}, True),
        ("::1", {"Host": "[::1]:8433"}, True),
        ("::ffff:127.0.0.1", {"Host": "127.0.0.1"}, True),
        ("192.168.1.7", {"Host": "192.168.1.8:8433"}, False),
        (None, {"Host": "localhost"}, False),
        ("127.0.0.1", {"Host": "evil.example"}, False),  # DNS rebinding
        ("127.0.0.1", {}, False),
        ("127.0.0.1", {"Host": "127.0.0.1#"}, False),
        ("127.0.0.1", {"Host": "127.0.0.1/"}, False),
        ("127.0.0.1", {"Host": "127.0.0.1,evil.example"}, False),
        ("127.0.0.1", {"Host": "127.0.0.1:8433,evil.example"}, False),
        ("127.0.0.1", {"Host": "evil@127.0.0.1"}, False),
        ("127.0.0.1", {"Host": "localhost", "X-Forwarded-For": "9.9.9.9"}, False),
        ("127.0.0.1", {"Host": "localhost:8433", "Origin": "http://evil.example"}, False),
        ("127.0.0.1", {"Host": "localhost:8433", "Origin": "null"}, False),
        ("127.0.0.1", {"Host": "localhost:8433", "Origin": "http://localhost:8433"}, True),
    ],
)
def test_who_counts_as_local(peer: str | None, headers: dict[str, str], expected: bool) -> None:
    assert is_local(peer, headers) is expected


@pytest.mark.parametrize(
    "given", ["Bearer wrong", "Basic " + CREDENTIAL, "Bearer", "Bearer ", "Bearer \udcff", CREDENTIAL]
)
def test_a_wrong_credential_is_worse_than_none(given: str) -> None:
    with pytest.raises(NotAuthorised):
        authorise("127.0.0.1", {"Host": "localhost", "Authorization": given}, CREDENTIAL, write=False)


def test_an_empty_credential_opens_nothing() -> None:
    with pytest.raises(NotAuthorised):
        authorise("9.9.9.9", {"Authorization": "Bearer "}, "", write=True)


def test_the_credential_opens_from_everywhere() -> None:
    for write in (True, False):
        authorise("9.9.9.9", {"Authorization": f"bearer {CREDENTIAL}"}, CREDENTIAL, write=write)


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/api/deployments/m"), ("DELETE", "/api/deployments/add")],
)
def test_writes_need_the_credential(served: Served, method: str, path: str) -> None:
    reply = served.ask(method, path)
    assert reply.status == 401
    assert reply.headers["WWW-Authenticate"].startswith("Bearer")
    assert "add" in served.node.sessions


@pytest.mark.parametrize("path", ["/api/status", "/api/devices", "/api/models", "/metrics", "/v2/models/add"])
def test_other_sites_read_nothing(served: Served, path: str) -> None:
    assert served.ask("GET", path, headers={"Host": "evil.example"}).status == 401
    assert served.ask("GET", path, headers={"Host": "evil.example", **ADMIN}).status == 200


# Deployments


def test_deploy_streams_what_it_reaches(served: Served) -> None:
    options = {"strategy": "bbgrap", "shapes": {"x": [1, 3]}, "devices": ["pi-a"], "memory_limit_bytes": 5}
    body, headers = form(
        ("options", None, json.dumps(options).encode()),
        ("file", "m.onnx", b"graph"),
        ("file", "sub%2Fw.bin", b"\0" * 1000),
    )
    reply = served.ask("POST", "/api/deployments/m", body, headers)
    lines = [json.loads(line) for line in reply.body.splitlines()]
    assert reply.status == 200
    assert [line.get("stage") for line in lines[:-1]] == list(
        dict.fromkeys(line.get("stage") for line in lines[:-1])
    )
    assert lines[0]["stage"] == "planning"
    assert lines[-2] == {"stage": "sending weights", "done": 2, "total": 2}
    assert lines[-1] == {"result": {"name": "m", "devices": ["pi-a"], "notes": []}}
    files, given = served.node.deployed["m"]
    assert files == {"m.onnx": b"graph", "sub/w.bin": b"\0" * 1000}
    assert given == DeployOptions({"x": (1, 3)}, "latency", "bbgrap", None, ("pi-a",), 5)
    assert not list(served.spool.iterdir())


def test_a_stored_model_is_deployed_by_its_digest(served: Served) -> None:
    body, headers = form(("options", None, b'{"objective": "throughput"}'), ("model", None, b"a" * 64))
    reply = served.ask("POST", "/api/deployments/m", body, headers)
    assert json.loads(reply.body.splitlines()[-1])["result"]["name"] == "m"
    assert served.node.deployed["m"] == (
        {"model": b"a" * 64},
        DeployOptions(objective="throughput"),
    )
    assert not list(served.spool.iterdir())


def test_a_failed_deployment_ends_with_its_error(served: Served) -> None:
    served.node.failure = NO_ROOM
    body, headers = form(("file", "m.onnx", b"graph"))
    last = json.loads(served.ask("POST", "/api/deployments/m", body, headers).body.splitlines()[-1])
    assert (last["kind"], last["status"], last["short_bytes"]) == ("Infeasible", 507, {"pi-a": 12})
    assert served.ask("GET", "/api/status").json()["failed_deployments"] == {"m": "pi-a lacks 12 bytes"}
    assert served.ask("DELETE", "/api/deployments/m", headers=ADMIN).json() == {"dismissed": "m"}
    assert served.ask("GET", "/api/status").json()["failed_deployments"] == {}
    assert served.ask("DELETE", "/api/deployments/m", headers=ADMIN).status == 404
    assert not list(served.spool.iterdir())


def test_deploy_without_waiting(served: Served) -> None:
    body, headers = form(("file", "m.onnx", b"graph"))
    reply = served.ask("POST", "/api/deployments/m?wait=0", body, headers)
    assert reply.status == 202
    assert reply.json()["result"]["state"] == "accepted"
    wait(served, lambda: "m" in served.node.deployed)


def test_whoever_waits_for_a_deployment_is_told_that_the_agent_stops(served: Served) -> None:
    served.node.gate = served.on_loop(_event)
    body, headers = form(("file", "m.onnx", b"graph"))
    replies: list[bytes] = []
    client = threading.Thread(
        target=lambda: replies.append(served.ask("POST", "/api/deployments/m", body, headers).body)
    )
    client.start()
    wait(served, lambda: served.server._management._running)
    served.on_loop(served.server.stop)
    client.join(10)
    last = json.loads(replies[0].splitlines()[-1])
    assert (last["kind"], last["status"]) == ("Unavailable", 503)
    assert "this agent stops" in last["error"]


def test_a_deployment_that_has_not_begun_can_be_replaced(served: Served, tmp_path: Path) -> None:
    """Its files are deleted, and its client is told."""
    folder = tmp_path / "upload-1"
    folder.mkdir()
    told: list[dict[str, Any]] = []

    async def story() -> None:
        management = served.server._management
        lines = ProgressLines(1.0)

        async def work(*_: object) -> dict[str, Any]:
            await asyncio.Event().wait()
            return {}

        begun = partial(management._deploy, "m", folder, Upload(DeployOptions()), lines, work)
        management._running["m"] = asyncio.create_task(management._finish("deploying", "m", begun, lines))
        await management._give_up("m")
        told.extend([document async for document in lines])

    served.on_loop(story)
    assert not folder.exists() and "deployed again" in told[-1]["error"]


def test_a_deployment_that_waits_is_replaced_by_the_next_of_its_name(served: Served) -> None:
    gate = served.on_loop(_event)
    served.node.gate = gate
    earlier, headers = form(("file", "m.onnx", b"earlier"))
    later, _ = form(("file", "m.onnx", b"later"))
    replies: list[bytes] = []
    client = threading.Thread(
        target=lambda: replies.append(served.ask("POST", "/api/deployments/m", earlier, headers).body)
    )
    client.start()
    wait(served, lambda: served.server._management._running)
    assert served.ask("POST", "/api/deployments/m?wait=0", later, headers).status == 202
    client.join(10)
    last = json.loads(replies[0].splitlines()[-1])
    assert last["kind"] == "ClusterError"
    assert "deployed again" in last["error"]
    served.loop.call_soon_threadsafe(gate.set)
    wait(served, lambda: "m" in served.node.deployed)
    assert served.node.deployed["m"][0] == {"m.onnx": b"later"}
    assert not served.ask("GET", "/api/status").json()["failed_deployments"]


@pytest.mark.parametrize(
    ("parts", "status", "words"),
    [
        ([], 400, "no `file`"),
        ([("file", "../m.onnx", b"")], 400, "inside"),
        ([("file", "%2e%2e%2fm.onnx", b"")], 400, "inside"),
        ([("file", "%2Fetc%2Fm.onnx", b"")], 400, "inside"),
        ([("file", "a%5Cb", b"")], 400, "inside"),
        ([("file", "", b"x")], 400, "inside"),
        ([("file", "a" * 300, b"x")], 400, "too long"),
        ([("file", "m.onnx", b"1"), ("file", "m.onnx", b"2")], 400, "once"),
        ([("file", "m.onnx", b"1"), ("file", "m.onnx/x", b"2")], 400, "once"),
        ([("file", "m.onnx", b"\0" * ((1 << 20) + 1))], 413, "limit"),
        ([("else", None, b"")], 400, "part"),
        ([("model", None, b"a" * 63)], 400, "64 hex digits"),
        ([("model", None, b"../../../etc")], 400, "64 hex digits"),
        ([("model", None, b"a" * 64), ("file", "m.onnx", b"1")], 400, "both"),
        ([("options", None, b"{}")], 400, "no `file`"),
        ([("options", None, b"{"), ("file", "m.onnx", b"")], 400, "JSON"),
        ([("options", None, b"[]"), ("file", "m.onnx", b"")], 400, "object"),
        ([("options", None, b'{"speed": 1}'), ("file", "m.onnx", b"")], 400, "speed"),
        ([("options", None, b'{"objective": "joy"}'), ("file", "m.onnx", b"")], 400, "joy"),
        ([("options", None, b'{"axis": "time"}'), ("file", "m.onnx", b"")], 400, "time"),
        ([("options", None, b'{"shapes": {"x": [-1]}}'), ("file", "m.onnx", b"")], 400, "shapes"),
        ([("options", None, b'{"devices": "a"}'), ("file", "m.onnx", b"")], 400, "devices"),
        ([("options", None, b'{"memory_limit_bytes": 0}'), ("file", "m.onnx", b"")], 400, "memory"),
        ([("options", None, b'{"bindings": 65}'), ("file", "m.onnx", b"")], 400, "bindings"),
        ([("options", None, b'{"bindings": true}'), ("file", "m.onnx", b"")], 400, "bindings"),
        ([("options", None, b'{"search_budget_s": 0}'), ("file", "m.onnx", b"")], 400, "search_budget_s"),
        ([("options", None, b'{"search_budget_s": true}'), ("file", "m.onnx", b"")], 400, "search_budget_s"),
        ([("options", None, b'{"search_budget_s": 1e9}'), ("file", "m.onnx", b"")], 400, "search_budget_s"),
        ([("options", None, b'{"strategy": ""}'), ("file", "m.onnx", b"")], 400, "strategy"),
        (
            [("options", None, b'{"strategy": "quick"}'), ("file", "m.onnx", b"")],
            400,
            "'quick': give one of single",
        ),
        (
            [("options", None, b'{"devices": ["pi-a", "pi-z"]}'), ("file", "m.onnx", b"")],
            400,
            "'pi-z'; here are pi-a",
        ),
        (
            [("options", None, b'{"devices": ["pi-away"]}'), ("file", "m.onnx", b"")],
            503,
            "pi-away is not here",
        ),
    ],
)
def test_bad_uploads_leave_nothing_behind(
    served: Served, parts: list[tuple[str, str | None, bytes]], status: int, words: str
) -> None:
    body, headers = form(*parts)
    reply = served.ask("POST", "/api/deployments/m", body, headers)
    assert reply.status == status, reply.body
    assert words in reply.json()["error"]
    assert not served.node.deployed
    assert not list(served.spool.iterdir())


@pytest.mark.parametrize("name", ["-m", "a%20b", "a" * 129, "..", "m%0a"])
def test_bad_names(served: Served, name: str) -> None:
    body, headers = form(("file", "m.onnx", b"graph"))
    assert served.ask("POST", f"/api/deployments/{name}", body, headers).status in (400, 404, 405)
    assert not served.node.deployed


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "multipart/form-data; boundary=xx"),
        (b"junk", "multipart/form-data; boundary=xx"),
        (b"{}", "application/json"),
    ],
)
def test_what_is_no_form(served: Served, body: bytes, kind: str) -> None:
    reply = served.ask("POST", "/api/deployments/m", body, {"Content-Type": kind, **ADMIN})
    assert reply.status == 400


def test_an_upload_that_stands_still_is_given_up(impatient: Served) -> None:
    body, headers = form(("file", "m.onnx", b"graph"))
    head = "POST /api/deployments/m HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n"
    head += "".join(f"{key}: {value}\r\n" for key, value in headers.items())
    assert b"stood still" in raw(impatient, head.encode() + b"\r\n" + body[:-20])
    assert not list(impatient.spool.iterdir())


def test_asking_first_with_expect(served: Served) -> None:
    head = b"POST /api/deployments/m HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\nExpect: 100-continue\r\n\r\n"
    assert raw(served, head).startswith(b"HTTP/1.1 401")


def test_undeploy(served: Served) -> None:
    assert served.ask("DELETE", "/api/deployments/add", headers=ADMIN).json() == {"undeployed": "add"}
    assert served.ask("DELETE", "/api/deployments/add", headers=ADMIN).status == 404


# Metrics and the page


def test_metrics(served: Served) -> None:
    for _ in range(3):
        served.ask("POST", "/v2/models/add/infer", ADD)
    served.ask("POST", "/v2/models/add/infer", {"inputs": []})
    served.ask("POST", "/v2/models/made-up/infer", ADD)
    lines = served.ask("GET", "/metrics").body.decode().splitlines()
    assert 'nv_inference_request_success{model="add",version="1"} 3.0' in lines
    assert 'nv_inference_request_failure{model="add",version="1"} 1.0' in lines
    assert 'nv_inference_count{model="add",version="1"} 3.0' in lines
    assert 'nv_inference_exec_count{model="add",version="1"} 3.0' in lines
    assert 'edgepart_requests_total{model="add",outcome="answered"} 3.0' in lines
    assert 'edgepart_requests_total{model="add",outcome="RequestError"} 1.0' in lines
    assert 'edgepart_members{state="alive"} 1.0' in lines
    assert (
        'edgepart_epoch_term{model="add"} 3.0' in lines and 'edgepart_epoch_number{model="add"} 1.0' in lines
    )
    assert "edgepart_is_leader 1.0" in lines
    assert "edgepart_cpu_wait_ratio 0.0" in lines
    assert not any("made-up" in line for line in lines)


def test_the_page_needs_nothing_from_elsewhere(served: Served) -> None:
    reply = served.ask("GET", "/", headers={"Host": "pi-a.local"})
    assert reply.status == 200
    assert "default-src 'none'" in reply.headers["Content-Security-Policy"]
    page = reply.body.decode()
    assert "page/main.js" in page
    assert "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page


def test_an_address_in_use_is_said_so(served: Served, tmp_path: Path) -> None:
    async def second() -> None:
        await HttpServer(
            Gateway(FakeNode(), CREDENTIAL, BodyLimits()), *served.address, spool=tmp_path
        ).start()

    with pytest.raises(UsageError, match="cannot listen"):
        asyncio.run(second())


# What reading may take


def test_little_that_unpacks_to_much_is_refused(served: Served) -> None:
    bomb = gzip.compress(bytes(LIMITS.request_bytes + (1 << 20)))
    assert len(bomb) < LIMITS.request_bytes
    reply = served.ask("POST", "/v2/models/add/infer", bomb, {"Content-Encoding": "gzip"})
    assert reply.status == 413


def test_every_answer_is_taken_for_what_it_is_and_shown_in_no_page_of_others(served: Served) -> None:
    for path in ("/", "/v2", "/nowhere", "/metrics"):
        headers = {name.lower(): value for name, value in served.ask("GET", path).headers.items()}
        assert headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]


def test_a_connection_that_cannot_be_taken_is_one_line_of_the_log(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        error = OSError(errno.EMFILE, "Too many open files")
        context = {"message": "socket.accept() out of system resource", "exception": error}
        served.loop.call_exception_handler(context)

    served.on_loop(fail)
    (record,) = caplog.records
    assert record.exc_info is None and "Too many open files" in record.getMessage()


def test_only_what_is_there_is_advertised(served: Served) -> None:
    assert "model_repository" not in served.ask("GET", "/v2").json()["extensions"]
    reply = served.ask("POST", "/v2/repository/models/add/load", b"{}")
    assert reply.status == 501 and "edgepart deploy" in reply.json()["error"]
