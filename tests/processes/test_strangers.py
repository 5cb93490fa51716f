"""A stranger on the network gets nothing of real agents: whatever it connects with, knocks at, or holds open. And whoever
is put out is out, everywhere and for good."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from edgepart.agent.admission.joining import JoinHello
from edgepart.agent.gateway.gateway import Gateway
from edgepart.agent.http.server import HttpServer
from edgepart.agent.net.links import CHANNELS, LinkOpen
from edgepart.agent.net.stream import Stream
from edgepart.agent.security import certificates, identity, tokens
from edgepart.agent.wire.codec import message_to_frame
from edgepart.agent.wire.frames import PREFIX, UNAUTHENTICATED
from edgepart.cli.local import LocalAgent, LocalCluster
from edgepart.planner.errors import EdgepartError
from tests.agent.http.fakes import FakeNode
from tests.agent.http.test_rate_limit import FOR_ALL

pytestmark = pytest.mark.processes

BOUND_S = 30.0
DAY = 86400.0
OPTIONS = ("--threads", "1", "--no-mdns", "--log-level", "debug")
ATTACKER = "127.0.0.66"
"""An address of its own: the agents see where connections come from."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with LocalCluster(["a", "b"], options=OPTIONS, folder=folder) as found:
        yield found


def address(agent: LocalAgent) -> tuple[str, int]:
    return "127.0.0.1", int(str(agent.addresses["listen"]).rpartition(":")[2])


def call(agent: LocalAgent) -> socket.socket:
    return socket.create_connection(address(agent), BOUND_S, source_address=(ATTACKER, 0))


def context_of(me: identity.Identity | None) -> ssl.SSLContext:
    """Of a stranger: it trusts whoever answers, and shows that certificate, if any."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if me is not None:
        context.load_cert_chain(me.directory / "node.pem", me.directory / "node.key")
    return context


def answer_to(agent: LocalAgent, context: ssl.SSLContext, message: Any) -> str:
    """The kind of frame that comes back; "" where the connection ends instead."""
    deadline = time.monotonic() + BOUND_S
    try:
        with context.wrap_socket(call(agent)) as connection:
            stream = Stream(connection)
            stream.write(message_to_frame(message), deadline)
            return stream.read(UNAUTHENTICATED, deadline).kind
    except (EdgepartError, OSError):
        return ""


def serves(cluster: LocalCluster) -> bool:
    return all(agent.alive and cluster.status(agent)["members"] for agent in cluster.agents.values())


def openings(agent: LocalAgent) -> list[LinkOpen]:
    me = identity.load(agent.state)
    return [LinkOpen(channel, "0" * 16, 1, me.node_id, (("", 1),)) for channel in CHANNELS]


def forged(cluster: LocalCluster, folder: Path, kind: str) -> identity.Identity:
    """An identity that does not belong in: what it shows at a handshake."""
    first = identity.load(cluster.first.state)
    if kind == "another cluster":
        return identity.create_cluster(folder, time.time())
    key = certificates.new_key()
    if kind == "expired":
        request, at = certificates.new_request(key), time.time() - 400 * DAY
        node = certificates.issue(request, certificates.new_node_id(), first.ca, first.ca_key(), at)
    else:  # signed by itself, under a member's id
        node = certificates.sign_node(key.public_key(), first.node_id, first.ca, key, time.time())
    (folder / "identity").mkdir(parents=True)
    (folder / "identity/node.pem").write_bytes(certificates.pem(node))
    (folder / "identity/node.key").write_bytes(certificates.key_pem(key))
    return identity.Identity(folder / "identity", "", "", first.ca, "")


@pytest.mark.parametrize("kind", ["nobody", "another cluster", "expired", "signed by itself"])
def test_links_are_for_members_only(cluster: LocalCluster, tmp_path: Path, kind: str) -> None:
    context = context_of(None if kind == "nobody" else forged(cluster, tmp_path / "evil", kind))
    for agent in cluster.agents.values():
        for opening in openings(agent):
            assert answer_to(agent, context, opening) == ""
    assert serves(cluster)


def test_a_token_of_another_cluster_a_fingerprint_and_a_guess_get_nothing(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    first = identity.load(cluster.first.state)
    identity.create_cluster(tmp_path / "other", time.time())
    theirs = tokens.create(tmp_path / "other", ttl_s=60, uses=1, now=time.time())
    guess = f"EP1-{first.fingerprint}-{'0' * 12}.{'0' * 40}"
    for text in (theirs, guess):
        done = join(text, tmp_path / "x", cluster.first)
        assert done.returncode == 1 and not (tmp_path / "x").exists()
    # A member that shows whose cluster it is tells no more than mDNS does.
    assert answer_to(cluster.first, context_of(None), JoinHello(bytes(32), "0" * 12)) == "JoinOffer"


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        PREFIX.pack(b"EPRT", 1, 0, 1 << 31, 1 << 62),
        b"\x16\x03\x01\x02\x00" + bytes(90),
    ],
    ids=["http", "a frame in the clear", "half a handshake"],
)
def test_what_is_no_tls_is_closed(cluster: LocalCluster, noise: bytes) -> None:
    for agent in cluster.agents.values():
        with call(agent) as connection:
            try:
                connection.sendall(noise)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass
            except OSError:  # it was closed before we were done
                continue
    assert serves(cluster)


def test_large_frames_of_strangers_take_no_memory(cluster: LocalCluster) -> None:
    for agent in cluster.agents.values():
        assert agent.process is not None
        for header, payload in ((1 << 32) - 1, 0), (UNAUTHENTICATED.header_bytes + 1, 0), (10, 1 << 40):
            with context_of(None).wrap_socket(call(agent)) as connection:
                connection.sendall(PREFIX.pack(b"EPRT", 1, 0, header, payload) + bytes(10_000))
                try:
                    while connection.recv(4096):
                        pass
                except (ConnectionError, ssl.SSLError):
                    continue
    assert serves(cluster)


def test_half_open_connections_do_not_keep_members_out(cluster: LocalCluster) -> None:
    """200 of them, twice what there are places for, some in the middle of a handshake; a member that is restarted meanwhile
    finds its way in."""
    a, b = cluster.agents["a"], cluster.agents["b"]
    held = [call(a) for _ in range(200)]
    try:
        for number, connection in enumerate(held):
            if number % 2:
                try:
                    connection.sendall(b"\x16\x03\x01\x02\x00\x01")
                except ConnectionError:
                    continue
        b.kill()
        b.start()
        cluster.wait(lambda: b.addresses, "b to be up again", b)
        cluster.wait_for_members(2)
        assert threads(a) < 64 + 80
    finally:
        for connection in held:
            connection.close()


def threads(agent: LocalAgent) -> int:
    assert agent.process is not None
    return len(os.listdir(f"/proc/{agent.process.pid}/task"))


def test_every_route_of_http_asks_for_the_credential(cluster: LocalCluster) -> None:
    """As they are in the code: one that is added is asked for here, too."""
    routes = [r for r in HttpServer(Gateway(FakeNode(), "x" * 40)).routes() if isinstance(r, web.RouteDef)]
    free = FOR_ALL | {("GET", "/page/m")}
    for agent in cluster.agents.values():
        for route in routes:
            path = re.sub(r"\{\w+\}", "m", route.path)
            expected = {200, 404, 503} if (route.method, path) in free else {401}
            assert ask(agent, route.method, path) in expected, (route.method, path)
            assert ask(agent, route.method, path, "guess" * 8) in expected, (route.method, path)


def ask(agent: LocalAgent, method: str, path: str, credential: str | None = None) -> int:
    """The status that a client from elsewhere gets."""
    headers = {"X-Forwarded-For": "192.0.2.7"}
    if credential is not None:
        headers["Authorization"] = f"Bearer {credential}"
    try:
        with urllib.request.urlopen(
            urllib.request.Request(agent.url + path, method=method, headers=headers), timeout=BOUND_S
        ) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


def join(text: str, state: Path, first: LocalAgent) -> subprocess.CompletedProcess[str]:
    """With the token on standard input."""
    command = [sys.executable, "-m", "edgepart", "join", "-", "--state", str(state), "--name", state.name]
    command += ["--peer", f"127.0.0.1:{address(first)[1]}", "--json"]
    return subprocess.run(command, input=text + "\n", capture_output=True, text=True, timeout=300)


def test_a_revoked_node_is_out_everywhere_and_for_good_and_nothing_secret_was_told(tmp_path: Path) -> None:
    with LocalCluster(["a", "b"], options=OPTIONS, folder=tmp_path) as cluster:
        a, b = cluster.agents["a"], cluster.agents["b"]
        text = a.type("token", "create")["token"]
        done = join(text, tmp_path / "c", a)
        assert done.returncode == 0, done.stderr
        c = cluster.agents["c"] = LocalAgent("c", tmp_path / "c", OPTIONS)
        c.start()
        cluster.wait(lambda: c.addresses, "c to come up", c)
        cluster.wait_for_members(3)
        node, old = identity.load(c.state).node_id, identity.load(a.state).admin
        assert ask(b, "GET", "/api/status", old) == 200

        assert a.type("revoke", "c") == {"revoked": [node], "all_revoked": [node], "told": True}

        assert len(seen_by(cluster, a, 2)) == len(seen_by(cluster, b, 2)) == 2
        assert c.process is not None and c.process.wait(BOUND_S) == 4
        cluster.wait(lambda: identity.load(b.state).admin != old, "b to have the new credential")
        new = identity.load(a.state).admin
        assert identity.load(b.state).admin == new != old == identity.load(c.state).admin
        for agent in (a, b):
            assert (
                ask(agent, "GET", "/api/status", old) == 401 and ask(agent, "GET", "/api/status", new) == 200
            )
            for opening in openings(agent):
                # It is told that it is out, and by what, and no link is made.
                assert answer_to(agent, context_of(identity.load(c.state)), opening) == "Charter"

        # The founder is off, the others are started again: still out.
        a.kill()
        b.kill()
        b.start()
        cluster.wait(lambda: b.addresses, "it to be up again", b)
        for opening in openings(b):
            assert answer_to(b, context_of(identity.load(c.state)), opening) == "Charter"
        assert seen_by(cluster, b, 1) == {identity.load(b.state).node_id}

        secrets = [tokens.parse(text).secret, old, new]
        for agent in cluster.agents.values():
            key = (agent.state / "identity/node.key").read_text().splitlines()[1]
            shown = agent.state / "agent.json"  # gone where the agent has stopped by itself
            told = agent.log.read_text() + (shown.read_text() if shown.exists() else "")
            if agent.alive:
                assert agent.process is not None
                told += Path(f"/proc/{agent.process.pid}/cmdline").read_text()
                told += json.dumps(cluster.status(agent))
            assert len(told) > 1000 and not [s for s in (*secrets, key) if s in told]


def seen_by(cluster: LocalCluster, agent: LocalAgent, count: int) -> set[str]:
    """Whom it counts as members, as soon as they are `count`."""

    def members() -> set[str] | None:
        found = {member["node"] for member in cluster.status(agent)["members"]}
        return found if len(found) == count else None

    return set(cluster.wait(members, f"{agent.name} to see {count} members"))


@pytest.mark.nightly
def test_a_certificate_is_renewed_while_the_agent_runs(tmp_path: Path) -> None:
    with LocalCluster(["a", "b"], options=OPTIONS, folder=tmp_path) as cluster:
        a, b = cluster.agents["a"], cluster.agents["b"]
        b.kill()
        first, second = identity.load(a.state), identity.load(b.state)
        at = time.time() - 300 * DAY
        old = certificates.issue(second.renewal(), second.node_id, first.ca, first.ca_key(), at)
        (b.state / "identity/node.pem").write_bytes(certificates.pem(old))
        a.signal(signal.SIGSTOP)
        b.start()
        cluster.wait(lambda: b.addresses, "b to be up again", b)
        pid = b.addresses["pid"]
        seen = {check["name"]: check["text"] for check in b.type("doctor", "--json")["checks"]}
        assert "ends in 65 days" in seen["certificates"] or "ends in 64 days" in seen["certificates"]
        a.signal(signal.SIGCONT)
        cluster.wait(lambda: second.certificate != old, "b's certificate to be renewed")

        def shown() -> bool:
            with context_of(None).wrap_socket(call(b)) as connection:
                return connection.getpeercert(binary_form=True) == certificates.der(second.certificate)

        cluster.wait(shown, "b to show the new one")
        assert certificates.seconds_left(second.certificate, time.time()) > 364 * DAY
        assert b.addresses["pid"] == pid
        cluster.wait_for_members(2)
        assert cluster.status(b)["security"]["warnings"] == []
        assert cluster.status(b)["security"]["issuers"] == ["a"]
