"""Bodies that are put where they stay: every way to cut and announce one gives the same bytes, and arrays on them are
views."""

from __future__ import annotations

import http.client
import json
import socket
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.agent.gateway import oip
from edgepart.agent.gateway.oip_elements import numpy_dtype
from edgepart.agent.http import oip_bodies
from edgepart.agent.http.bodies import _BodyPlace
from edgepart.agent.http.buffers import ALIGN_BYTES, pad_head
from edgepart.client.tensors import read_answer, request_body
from tests.agent.http.conftest import LIMITS, Served


@given(st.lists(st.binary(max_size=300), max_size=6), st.integers(0, 200), st.booleans())
def test_a_place_holds_what_a_bytearray_would(pieces: list[bytes], align_at: int, announced: bool) -> None:
    twin = b"".join(pieces)
    place = _BodyPlace(len(twin), align_at) if announced else _BodyPlace()
    for piece in pieces:
        place.add(piece)
    assert bytes(place.content()) == twin
    assert place.nbytes == len(twin)


@given(st.integers(0, 130), st.sampled_from(["FP64", "FP32", "FP16", "INT64", "UINT8"]))
def test_the_first_tensor_is_a_view_however_long_the_json_is(blanks: int, datatype: str) -> None:
    array = np.arange(6, dtype=numpy_dtype(datatype))
    entry = {
        "name": "x",
        "datatype": datatype,
        "shape": [6],
        "parameters": {"binary_data_size": array.nbytes},
    }
    head = json.dumps({"inputs": [entry]}).encode() + b" " * blanks
    place = _BodyPlace(len(head) + array.nbytes, len(head))
    place.add(head + array.tobytes())
    body = place.content()
    read = oip_bodies.read_request(body, len(head)).inputs["x"]
    assert np.array_equal(read, array)
    assert np.shares_memory(read, np.frombuffer(body, np.uint8))
    assert read.__array_interface__["data"][0] % ALIGN_BYTES == 0


@given(st.binary(max_size=200))
def test_padding_changes_no_json(text: bytes) -> None:
    assert pad_head(text).rstrip(b" ") == text.rstrip(b" ")
    assert len(pad_head(text)) % ALIGN_BYTES == 0 <= len(pad_head(text)) - len(text) < ALIGN_BYTES


LEAVES = st.none() | st.booleans() | st.integers() | st.text()
KEYS = st.sampled_from(["inputs", "data", "datatype", "name"])


@settings(max_examples=60)
@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner)))
def test_whether_a_request_is_quick_is_said_of_any_json(document: Any) -> None:
    """Before anything of it is checked."""
    whole = {"inputs": document}
    assert oip_bodies.Envelope(whole, memoryview(b"")).is_quick in (True, False)


def test_what_takes_a_while_is_not_quick() -> None:
    def quick(nbytes: int, **entry: Any) -> bool:
        return oip_bodies.Envelope({"inputs": [entry]}, memoryview(bytes(nbytes))).is_quick

    assert quick(oip.QUICK_BYTES, datatype="FP32")
    assert not quick(oip.QUICK_BYTES + 1, datatype="FP32")
    assert not quick(1, datatype="BYTES")
    assert not quick(1, datatype="FP32", data=[1])


@pytest.mark.parametrize("coding", ["", "chunked"])
def test_a_large_body_in_pieces_is_echoed(served: Served, coding: str) -> None:
    array = np.random.default_rng(0).standard_normal((300, 512), dtype=np.float32)
    pieces = request_body({"x": array}, None)(30.0)
    whole = b"".join(pieces)
    sizes = [1, 70_000, 3, 262_144, 100_000]
    cuts = [0, *np.cumsum(sizes).tolist(), len(whole)]
    parts = [whole[begin:end] for begin, end in pairwise(cuts)]
    headers = {"Inference-Header-Content-Length": str(len(pieces[0]))}
    connection = http.client.HTTPConnection(*served.address, timeout=20)
    for _ in range(3):  # on one connection: what is read of a body must end where the next request begins
        if coding:
            connection.request(
                "POST", "/v2/models/same-float/infer", iter(parts), headers, encode_chunked=True
            )
        else:
            connection.request(
                "POST",
                "/v2/models/same-float/infer",
                iter(parts),
                {**headers, "Content-Length": str(len(whole))},
            )
        response = connection.getresponse()
        body = response.read()
        assert response.status == 200, body
        outputs = read_answer(body, response.headers["Inference-Header-Content-Length"])[1]
        assert np.array_equal(outputs["y"], array)
    connection.close()
    assert served.server._bodies._intake.held_bytes == 0


def test_who_announces_much_and_sends_little_takes_little(impatient: Served) -> None:
    head = f"POST /v2/models/add/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {LIMITS.request_bytes}\r\n\r\n"
    with socket.create_connection(impatient.address, timeout=20) as connection:
        connection.sendall(head.encode() + b"{")
        answer = connection.recv(65536)
    assert b"1 bytes came" in answer
    assert impatient.server._bodies._intake.held_bytes == 0


@pytest.mark.parametrize("path", ["/v2/models/add/infer", "/v1/chat/completions"])
def test_requests_without_a_body_are_refused_each_time(talking: Served, path: str) -> None:
    """aiohttp gives all of them the same stream. The second one made the agent wait in vain, and take all memory."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with socket.create_connection(talking.address, timeout=20) as connection:
        for _ in range(3):
            connection.sendall(head)
            said = b""
            while b"}" not in said:
                said += connection.recv(4096)
            assert said.startswith(b"HTTP/1.1 400") and b"JSON" in said
