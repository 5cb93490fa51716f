"""Fuzz targets for strangers and users: tokens, certificates and requests for them, announcements, and typed
options."""

from __future__ import annotations

import hashlib
from functools import cache

from cryptography import x509
from zeroconf import ServiceInfo

from edgepart.agent.discovery.mdns import SERVICE, Announcement, read_announcement, service_info
from edgepart.agent.mqtt.broker import parse_broker
from edgepart.agent.options import parse_bytes, parse_shapes
from edgepart.agent.security import certificates, tokens
from edgepart.agent.wire.address import format_address, parse_address
from edgepart.planner.errors import NotAuthorised, UsageError
from tests.fuzz.forms import Bytes
from tests.fuzz.target import Target, expect, plainly

NOW = 1.8e9
FINGERPRINT = hashlib.sha256(b"a cluster").hexdigest()


@cache
def _authority() -> tuple[x509.Certificate, certificates.Key]:
    key = certificates.new_key()
    return certificates.new_ca(key, NOW), key


@cache
def _other_authority() -> x509.Certificate:
    return certificates.new_ca(certificates.new_key(), NOW)


def _token(data: bytes) -> None:
    token = tokens.parse(data.decode("utf-8", "surrogateescape"))
    expect(tokens.parse(token.text) == token, "a token is another after a round trip")


def _token_seeds() -> list[bytes]:
    good = tokens.Token("0f" * 32, "a1" * 6, "b2" * 20).text.encode()
    return [good, b" " + good + b"\n", good.replace(b"EP1", b"EP2")]


def _node_certificate(data: bytes) -> None:
    _, node = certificates.read_node(data, _authority()[0])
    expect(certificates.NODE_ID.fullmatch(node) is not None, f"{node!r} is taken for a node")


def _node_seeds() -> list[bytes]:
    ca, key = _authority()
    node = certificates.sign_node(certificates.new_key().public_key(), "00" * 8, ca, key, NOW)
    return [certificates.der(node), certificates.der(ca), certificates.der(_other_authority())]


def _ca_certificate(data: bytes) -> None:
    ca = certificates.read_ca(data)
    expect(len(certificates.fingerprint(ca)) == 64, "a CA without a fingerprint")


def _request(data: bytes) -> None:
    ca, key = _authority()
    made = certificates.issue(data, "0" * 16, ca, key, NOW)
    _, node = certificates.read_node(certificates.der(made), ca)
    expect(node == "0" * 16, "a request chose its node's id")


def _announced(data: bytes) -> None:
    """Read an announcement. The first byte gives the number of addresses and the port; the rest is the TXT
    record of the packet."""
    count, port = (data[0] % 40, data[0] * 300) if data else (0, 0)
    addresses = [f"10.0.0.{n}" for n in range(count)]
    info = ServiceInfo(
        SERVICE, f"x.{SERVICE}", port=port % 65536, properties=data[1:], parsed_addresses=addresses
    )
    seen = read_announcement(info.properties, info.parsed_scoped_addresses(), info.port, FINGERPRINT)
    if seen is not None:
        expect(certificates.NODE_ID.fullmatch(seen.node_id or "") is not None, "a hint without a node")
        expect(len(seen.name) <= 63 and 0 < len(seen.addresses) <= 16, "a hint that is too long")


def _announced_seeds() -> list[bytes]:
    me = Announcement("0" * 16, FINGERPRINT, "pi-a", "1.0+traces", ("10.0.0.1", 7433))
    text = service_info(me, ("10.0.0.1",)).text
    return [bytes((2,)) + text, b"\1" + text + text, b"\3"]


def _typed(data: bytes) -> None:
    """Read a typed text. The first byte chooses the reader; the rest is the text."""
    text = data[1:].decode("utf-8", "surrogateescape")
    match data[:1]:
        case b"a":
            address = parse_address(text)
            expect(
                parse_address(format_address(address)) == address, f"{address} is another after a round trip"
            )
        case b"b":
            expect(0 <= parse_broker(text).port <= 65535, "a port that is none")
        case b"s":
            expect(parse_bytes(text) > 0, "a size that is none")
        case _:
            parse_shapes(text.split(" "))


def _typed_seeds() -> list[bytes]:
    addresses = (b"pi.local:7433", b"[fe80::1%eth0]:7433", b"1.2.3.4:0", b"mqtt:" + b"0" * 16)
    brokers = (b"mqtt://h", b"mqtts://u:p%40@[::1]:8883/", b"mqtt://u@h:1883")
    sizes = (b"2G", b"512MiB", b"1.5g", b"1000000")
    shapes = (b"x=1,3,224,224 y=", b"a=b=5")
    return [
        letter + text
        for letter, texts in ((b"a", addresses), (b"b", brokers), (b"s", sizes), (b"p", shapes))
        for text in texts
    ]


TARGETS = (
    Target("tokens", _token_seeds, plainly(_token), (UsageError,), Bytes()),
    Target("node certificates", _node_seeds, plainly(_node_certificate), (NotAuthorised,), Bytes(), 0.5),
    Target("CA certificates", _node_seeds, plainly(_ca_certificate), (NotAuthorised,), Bytes(), 0.5),
    Target("certificate requests", lambda: [certificates.new_request(certificates.new_key())], plainly(_request),
           (NotAuthorised,), Bytes(), 0.5),
    Target("mDNS TXT records", _announced_seeds, plainly(_announced), (), Bytes(), 0.5),
    Target("addresses and options", _typed_seeds, plainly(_typed), (UsageError,), Bytes()),
)  # fmt: skip
