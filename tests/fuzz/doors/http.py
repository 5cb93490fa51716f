"""Fuzz targets for HTTP clients: bodies of the inference protocol, options, and whole connections.

Connections carry heads, forms and management requests. All of it goes through the server's own parsers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from edgepart.agent.api.deployed_model import DeployedModel
from edgepart.agent.api.device_choice import check_devices
from edgepart.agent.api.inference_request import InferResult, SequenceTurn
from edgepart.agent.api.model_card import CandidateCard, ModelCard
from edgepart.agent.api.stages import Progress
from edgepart.agent.chronicle.event_log import EventLog
from edgepart.agent.chronicle.log_lines import LogKeeper
from edgepart.agent.gateway import oip, oip_models
from edgepart.agent.gateway.gateway import Gateway
from edgepart.agent.gateway.limits import BodyLimits
from edgepart.agent.http import oip_bodies
from edgepart.agent.http.server import HttpServer
from edgepart.agent.http.uploads import read_options
from edgepart.agent.wire.codec import json_record
from edgepart.agent.wire.inference import DeployOptions, Epoch
from edgepart.agent.wire.trials import TrialShare, candidate_name
from edgepart.client.tensors import request_body
from edgepart.planner.errors import RequestError, UnknownDeployment, UsageError
from edgepart.planner.plans.plan import ValueInfo
from tests.agent.http.fake_text import FakeText
from tests.fuzz.doors.openai import CHAT_BODY, COMPLETION_BODY
from tests.fuzz.forms import Bytes, Headed, Json, headed, parted
from tests.fuzz.target import Take, Target, expect, plainly

X = ValueInfo("x", "float", (-1, 2))
T = ValueInfo("t", "string", (-1,))
CARD = ModelCard("net", "serving", (X, T), (ValueInfo("y", "float", (-1, 2)),), Epoch(1, 1))
ARRAYS: Mapping[str, Any] = {
    "x": np.arange(6, dtype=np.float32).reshape(3, 2),
    "t": np.array(["a", "é", ""], object),
    "i": np.arange(3, dtype=np.int64),
    "b": np.array([True, False]),
    "h": np.ones((2, 1), np.float16),
    "u": np.array(7, np.uint8),
}


def _entry(name: str, datatype: str, shape: list[int], **also: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, **also}


JSON_BODY = {
    "id": "q",
    "parameters": {"binary_data_output": False, "timeout": 5_000_000},
    "inputs": [
        _entry("x", "FP32", [3, 2], data=[[1, 2.5], [3, -4e3], [5, 6]]),
        _entry("t", "BYTES", [2], data=["a", "é"]),
        _entry("i", "INT64", [2, 1], data=[1, -2]),
        _entry("b", "BOOL", [2], data=[True, False]),
        _entry("u", "UINT8", [], data=[255]),
    ],
    "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
}


FITTING_BODY = JSON_BODY | {"inputs": JSON_BODY["inputs"][:2]}  # type: ignore[index]


def _again(asked: oip.InferRequest) -> None:
    """Check that a request, written again as a client writes it, is read as the same."""
    pieces = request_body(asked.inputs, list(asked.outputs or ()))(1.0)
    again = oip_bodies.read_request(b"".join(map(bytes, pieces)), len(pieces[0]))
    expect(list(again.inputs) == list(asked.inputs), "inputs are others after a round trip")
    for name, array in asked.inputs.items():
        same = again.inputs[name].shape == array.shape and again.inputs[name].dtype == array.dtype
        expect(
            (same and again.inputs[name].tobytes() == array.tobytes()) or array.dtype == object,
            f"{name!r} is another array",
        )


def _answered(asked: oip.InferRequest) -> None:
    """Build an answer with the inputs as its outputs; a request that does not fit is refused."""
    try:
        oip_models.check_fit(CARD, asked)
        oip_bodies.build_answer(
            "net",
            asked,
            dict(asked.inputs) | {"y": np.ones((1, 2), np.float32)},
            {"epoch": "1.1"},
            version="1",
        )
    except KeyError:
        return  # The answer has no such output; v2.py checks that first.


def _json_body(data: bytes) -> None:
    asked = oip_bodies.read_request(data, None)
    _again(asked)
    _answered(asked)


def _binary_body(data: bytes) -> None:
    head, rest = parted(data)
    envelope = oip_bodies.read_envelope(head + rest, len(head))
    expect(envelope.is_quick in (True, False), "unreachable")
    asked = oip_bodies.read_tensors(envelope)
    _again(asked)
    _answered(asked)


def _binary_seeds() -> list[bytes]:
    every = request_body(ARRAYS, ["y"])(2.0)
    one = request_body({"x": ARRAYS["x"], "t": ARRAYS["t"]}, None)(2.0)
    return [headed(bytes(pieces[0]), b"".join(map(bytes, pieces[1:]))) for pieces in (every, one)]


OPTIONS = DeployOptions({"x": (1, 3)}, "throughput", "auto", "height", ("a", "b"), 1 << 30, 4, 2.5, "int8")


def _options(data: bytes) -> None:
    found = read_options(data.decode("utf-8", "surrogateescape"))
    again = read_options(json.dumps(json_record(found)))
    expect(again == found, "options are others after a round trip")


class _Node:
    """A minimal agent that answers at once."""

    name, version, fingerprint = "pi", "1", "f" * 64
    event_log, log_lines = EventLog(), LogKeeper().lines

    async def drawing(self, name: str) -> dict[str, Any]:
        return {"epoch": [1, 1], "devices": {}, "timeline": None, "layers": None}

    def live(self) -> bool:
        return True

    def ready(self, model: str | None) -> tuple[bool, str]:
        return True, ""

    def models(self) -> Sequence[ModelCard]:
        return [CARD]

    def deployments(self) -> Sequence[DeployedModel]:
        return []

    async def rollback(self, name: str, to: int | None, progress: Progress) -> dict[str, Any]:
        if to != 1:
            raise UsageError("that version is not kept")
        return {"name": name, "devices": [], "notes": []}

    async def deploy_candidate(
        self, name: str, given: Path | str, options: DeployOptions, share: TrialShare, progress: Progress
    ) -> dict[str, Any]:
        if isinstance(given, str):
            return await self.deploy_stored(name, given, options, progress)
        return await self.deploy(name, given, options, progress)

    async def share(self, name: str, share: TrialShare) -> CandidateCard:
        return CandidateCard(candidate_name(name), "2", share.percent, share.shadow, "")

    async def promote(self, name: str, progress: Progress) -> dict[str, Any]:
        return {"name": name, "devices": [], "notes": []}

    async def discard(self, name: str) -> str:
        raise UsageError("there is no candidate")

    def model(self, name: str) -> ModelCard | None:
        return CARD if name == CARD.name else None

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] | None,
        deadline_s: float,
        sequence: SequenceTurn | None = None,
        *,
        drawn: bool = True,
    ) -> InferResult:
        return InferResult({"y": inputs["x"]}, Epoch(1, 1), 0.001)

    def admit(self, options: DeployOptions) -> None:
        check_devices(options.devices, ["a"], ["b"])

    async def deploy(
        self, name: str, folder: Path, options: DeployOptions, progress: Progress
    ) -> dict[str, Any]:
        for path in folder.rglob("*"):
            expect(path.resolve().is_relative_to(folder.resolve()), f"{path} left the folder")
        return {"name": name, "devices": [], "notes": []}

    async def deploy_stored(
        self, name: str, model: str, options: DeployOptions, progress: Progress
    ) -> dict[str, Any]:
        expect(len(model) == 64 and model.isalnum(), f"{model!r} is no digest")
        return {"name": name, "devices": [], "notes": []}

    async def undeploy(self, name: str) -> None:
        if name != CARD.name:
            raise UnknownDeployment("there is none")

    async def drain(self, name: str, progress: Progress, *, remove: bool) -> dict[str, Any]:
        if name != self.name:
            raise UsageError("there is no such device")
        return {"name": name, "node": "0" * 16, "state": "removed" if remove else "drained"}

    async def undrain(self, name: str) -> dict[str, Any]:
        if name != self.name:
            raise UsageError("there is no such device")
        return {"name": name, "node": "0" * 16, "state": "in"}

    def status(self) -> dict[str, Any]:
        here = {"name": self.name, "node": "0" * 16, "state": "alive", "leader": True}
        return {
            "name": self.name,
            "node": "0" * 16,
            "version": self.version,
            "cluster": self.fingerprint,
            "leader": self.name,
            "term": 1,
            "uptime_s": 1.0,
            "members": [here],
        }

    async def doctor(self) -> dict[str, Any]:
        return {"agent": {"name": self.name}, "boxes": [], "knocks": [], "checks": [], "notes": []}

    def devices(self) -> dict[str, Any]:
        return {"devices": [], "links": []}

    def plan(self, name: str) -> dict[str, Any]:
        return {"strategy": "single"}

    async def trace(self, name: str, seconds: float) -> dict[str, Any]:
        if not 0 < seconds <= 600:
            raise RequestError("too long")
        return {"model": name}

    async def end_trace(self, name: str) -> dict[str, Any]:
        raise RequestError("none is being taken")


CREDENTIAL = "open-sesame-" + "0" * 32


class _Transport(asyncio.Transport):
    """Collects what the server writes. To the server, the client seems to be on this machine."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 6)})
        self.said = bytearray()
        self.closed = False

    def write(self, data: Any) -> None:
        self.said += data

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.write(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        """Do nothing: no more data arrives."""

    def resume_reading(self) -> None:
        """Do nothing: no more data arrives."""

    def get_write_buffer_size(self) -> int:
        return 0


class _Logged(logging.Handler):
    """Collects errors that the server logs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


_NAMES = re.compile(r"[^a-z ]")
"""The parts of an error's text that mostly depend on the case."""
TURNS = 12
"""Turns of the event loop: the most that a request on a connection takes before it waits for data that does
not arrive."""
LIMITS = BodyLimits(request_bytes=1 << 20, all_requests_bytes=2 << 20, upload_bytes=1 << 20, linger_s=0.0)


@contextmanager
def _connections() -> Iterator[Take]:
    """Yield a function that sends a case as all data of one connection, and checks that the answer is HTTP
    and no error is logged."""
    loop, logged = asyncio.new_event_loop(), _Logged()
    loop.set_default_executor(ThreadPoolExecutor(1))
    logging.getLogger("edgepart").addHandler(logged)
    logging.getLogger("asyncio").addHandler(logged)
    with tempfile.TemporaryDirectory() as folder:
        server = HttpServer(Gateway(_Node(), CREDENTIAL, LIMITS), spool=Path(folder), text=FakeText())
        loop.run_until_complete(server.start())
        assert server._runner is not None and server._runner.server is not None
        factory = server._runner.server

        def take(data: bytes) -> str:
            logged.lines.clear()
            transport, protocol = _Transport(), factory()
            loop.run_until_complete(_talk(protocol, transport, data))
            expect(not logged.lines, "\n".join(logged.lines))
            said = bytes(transport.said)
            expect(not said or said.startswith(b"HTTP/"), f"the answer begins with {said[:40]!r}")
            # aiohttp itself answers 500 to an `Expect` that is not text, for a path that does not exist.
            expect(b" 500 " not in said[:16] or b"xpect" in data.lower(), said[:400].decode("latin-1"))
            return (
                f"{said[:16]!r} {_NAMES.sub('', said[-200:].decode('latin-1'))[-60:]}"
                if b"error" in said
                else said[:16].hex()
            )

        yield take
        loop.run_until_complete(server.stop())
        loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


async def _talk(protocol: Any, transport: _Transport, data: bytes) -> None:
    protocol.connection_made(transport)
    protocol.data_received(data)
    for _ in range(TURNS):
        await asyncio.sleep(0)
    protocol.eof_received()
    protocol.connection_lost(None)
    for _ in range(3):
        await asyncio.sleep(0)


def _request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


ADMIN = f"Authorization: Bearer {CREDENTIAL}"


def _form(*parts: tuple[str, str, bytes]) -> bytes:
    lines = b"".join(
        f'--xx\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + data + b"\r\n"
        for name, file, data in parts
    )
    return lines + b"--xx--\r\n"


def _connection_seeds() -> list[bytes]:
    asked = json.dumps(
        {"inputs": [_entry("x", "FP32", [1, 2], data=[1, 2]), _entry("t", "BYTES", [1], data=["a"])]}
    ).encode()
    pieces = request_body({"x": np.ones((1, 2), np.float32), "t": np.array(["a"], object)}, ["y"])(2.0)
    binary, length = b"".join(map(bytes, pieces)), f"Inference-Header-Content-Length: {len(pieces[0])}"
    infer = "/v2/models/net/infer"
    form = _form(
        ("options", "", b'{"strategy": "auto"}'),
        ("file", '; filename="m.onnx"', b"graph"),
        ("file", '; filename="sub%2Fw"', b"w" * 50),
    )
    kind = "Content-Type: multipart/form-data; boundary=xx"
    chunks = b"5\r\n" + asked[:5] + b"\r\n%x\r\n" % (len(asked) - 5) + asked[5:] + b"\r\n0\r\n\r\n"
    chunked = _request("POST", infer, b"", "Transfer-Encoding: chunked") + chunks
    paths = (
        "/",
        "/metrics",
        "/api/status",
        "/api/doctor",
        "/api/devices",
        "/api/models",
        "/api/models/net/plan",
        "/api/models/net/drawing",
        "/api/live",
        "/api/events?most=5&after=ab.1",
        "/api/logs/stream?after=ab.1",
        "/page/main.js",
        "/openapi.json",
        "/v1/models",
        "/v1/models/chat",
        "/v2",
        "/v2/models/net",
        "/v2/models",
        "/v2/health/live",
        "/v2/models/net/versions/1/ready",
        "/api/deployments",
        "/v2/models/net/config",
    )
    return [
        _request("POST", infer, asked, "Accept-Encoding: gzip"),
        _request("POST", infer, binary, length, "Connection: close"),
        _request("POST", infer, binary, length) + _request("GET", "/v2"),
        chunked,
        _request("POST", "/api/deployments/m?wait=0", form, kind, ADMIN),
        _request("POST", "/api/deployments/net/rollback?to=1", b"", ADMIN),
        _request("POST", "/api/deployments/m", form, kind, ADMIN, "Expect: 100-continue"),
        _request("POST", "/api/deployments/net/candidate?share=10&wait=0", form, kind, ADMIN),
        _request("POST", "/api/deployments/net/share?shadow=1", b"", ADMIN)
        + _request("POST", "/api/deployments/net/promote", b"", ADMIN)
        + _request("DELETE", "/api/deployments/net/candidate", b"", ADMIN),
        _request("DELETE", "/api/deployments/net", b"", ADMIN, "Origin: http://localhost"),
        _request("POST", "/v1/chat/completions", json.dumps(CHAT_BODY).encode(), ADMIN),
        _request(
            "POST", "/v1/completions", json.dumps(COMPLETION_BODY).encode(), "Authorization: Bearer none"
        ),
        _request("POST", "/api/models/net/trace?seconds=5", b"", ADMIN),
        _request("GET", "/api/events/stream", b"", "Last-Event-ID: ab.1"),
        _request("POST", "/api/members/pi/drain", b"", ADMIN),
        _request("DELETE", "/api/members/pi/drain", b"", ADMIN),
        _request("DELETE", "/api/members/pi", b"", ADMIN),
        _request("DELETE", "/api/models/net/trace", b"", ADMIN),
        *(
            _request("GET", path, b"", "X-Forwarded-For: 1.2.3.4" if path == "/v2" else "Accept: */*")
            for path in paths
        ),
    ]


TARGETS = (
    Target(
        "HTTP: JSON bodies",
        lambda: [json.dumps(body).encode() for body in (JSON_BODY, FITTING_BODY)],
        plainly(_json_body),
        (RequestError,),
        Json(),
    ),
    Target("HTTP: binary bodies", _binary_seeds, plainly(_binary_body), (RequestError,), Headed(Json())),
    Target(
        "HTTP: options",
        lambda: [json.dumps(json_record(OPTIONS)).encode(), b"{}"],
        plainly(_options),
        (UsageError,),
        Json(),
    ),
    Target("HTTP: connections", _connection_seeds, _connections, (), Bytes(), 0.1),
)
