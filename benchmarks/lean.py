"""A minimal client: one open connection, a prepared request, and as little reading of the answer as possible.

The time of a request through it is the time that the agent takes. It is measured from the first byte handed
to the agent's socket to the last byte of the answer; over loopback the transfer is a copy.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from edgepart.agent.gateway.oip_elements import Array
from edgepart.client.tensors import read_answer, request_body
from edgepart.planner.errors import InternalError

ANSWER_S = 60.0
READ_BYTES = 256 << 10


class Lean:
    """A client of one deployment with fixed inputs. A context manager."""

    def __init__(self, url: str, model: str, inputs: Mapping[str, Array]) -> None:
        where = urlsplit(url)
        self._socket = socket.create_connection((str(where.hostname), int(where.port or 80)), ANSWER_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = request_body(inputs, None)(ANSWER_S)
        lines = (
            f"POST /v2/models/{model}/infer HTTP/1.1",
            f"Host: {where.netloc}",
            "Content-Type: application/octet-stream",
            f"Inference-Header-Content-Length: {len(body[0])}",
            f"Content-Length: {sum(map(len, body))}",
        )
        self._request = b"".join(("\r\n".join((*lines, "", "")).encode(), *body))
        self._room = bytearray(READ_BYTES)

    def __enter__(self) -> Lean:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self) -> tuple[bytes, bytes]:
        """Send the request and return the answer's head and body. Only this call is to be timed."""
        self._socket.sendall(self._request)
        came = b""
        while (end := came.find(b"\r\n\r\n")) < 0:
            came += self._receive()
        head, whole = came[:end], [came[end + 4 :]]
        left = int(_field(head, b"content-length")) - len(whole[0])
        while left > 0:
            whole.append(self._receive())
            left -= len(whole[-1])
        return head, b"".join(whole)

    def _receive(self) -> bytes:
        count = self._socket.recv_into(self._room)
        if not count:
            raise InternalError("the agent closed the connection")
        return bytes(memoryview(self._room)[:count])


def read(head: bytes, body: bytes) -> tuple[float, dict[str, Array]]:
    """Return the seconds that the agent counted, and the outputs. Raises InternalError if the answer is an
    error or malformed."""
    if not head.startswith(b"HTTP/1.1 200 "):
        raise InternalError(f"the agent says: {json.loads(body).get('error')}")
    document: dict[str, Any]
    document, outputs = read_answer(body, _field(head, b"inference-header-content-length").decode())
    return float(document["parameters"]["seconds"]), outputs


def _field(head: bytes, name: bytes) -> bytes:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.lower() == name:
            return value.strip()
    raise InternalError(f"the answer has no {name.decode()}")
