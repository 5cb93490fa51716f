"""What the shell offers at a press of Tab: names of deployments, and nothing where anything is wrong."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from edgepart.cli import completion
from edgepart.client import target
from edgepart.client.target import AgentTarget
from tests.agent.http.conftest import LIMITS, Served, serving


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path, LIMITS) as found:
        yield found


def offered(line: str) -> subprocess.CompletedProcess[str]:
    """What bash is offered at the end of the line."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_EDGEPART_COMPLETE": "complete_bash"}
    # The shell calls the program by its name, from which the name of the variable above follows.
    program = "import sys; from edgepart.cli.main import main; sys.argv[0] = 'edgepart'; main()"
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **words},
    )


def test_names_of_deployments_are_offered(served: Served) -> None:
    done = offered(f"edgepart infer --agent {served.url} same-f")
    assert done.stdout.split() == ["same-float", "same-float16"] and not done.stderr
    assert offered("edgepart und").stdout.split() == ["undrain", "undeploy"]


def test_nothing_is_said_where_no_agent_is(tmp_path: Path) -> None:
    done = offered(f"edgepart undeploy --state {tmp_path} ")
    assert (done.stdout.strip(), done.stderr) == ("", "")


class FakeContext:
    def __init__(self, agent: str) -> None:
        self.params = {"agent": agent, "state": None}


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"no HTTP\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{]",
        b"HTTP/1.1 200 OK\r\n\r\n[1]",
    ],
)
def test_bad_answers_offer_nothing(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(20)
        found: list[str] = []

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = Thread(target=serve)
        thread.start()
        completion._ask(f"127.0.0.1:{listening.getsockname()[1]}", None, found)
        thread.join()
        assert not found


def test_an_agent_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that hangs, say: asking never ends while this test runs."""
    ended = Event()
    monkeypatch.setattr(
        target, "target_of", lambda agent, state: ended.wait() and AgentTarget("http://127.0.0.1:9", Path())
    )
    monkeypatch.setattr(completion, "PATIENCE_S", 0.01)
    assert completion.complete_deployment(FakeContext("pi-a:1"), "") == []  # type: ignore[arg-type]
    ended.set()
