"""A small cluster on this machine: real agents as processes, each with its own state directory. The demo, the tests and
the benchmarks use it. It only runs the commands that a person would type. Door: processes and files.

The agents share this machine's loopback, unless each has a place of its own (an emulated host, as in tests/lab).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgepart.client.target import AgentTarget
from edgepart.planner.errors import ClusterError, InternalError


@dataclass(frozen=True)
class Place:
    """A place in which an agent runs, and the addresses at which the agent is reached."""

    prefix: tuple[str, ...] = ()
    """Words put before each command. They move the process to the place, and then become the command."""
    env: Mapping[str, str] = field(default_factory=dict)
    listen: str = "0.0.0.0:0"
    http: str = "127.0.0.1:0"
    grpc: str = "127.0.0.1:0"
    python: str = sys.executable
    """The interpreter that runs the agent."""


def edgepart(
    *arguments: str, env: Mapping[str, str] | None = None, timeout_s: float = 60, prefix: Sequence[str] = ()
) -> Any:
    """Runs `edgepart ... --json` and returns its document. Raises ClusterError, with the command's stderr, if it fails."""
    command = [*prefix, sys.executable, "-m", "edgepart", *arguments, "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, env={**os.environ, **(env or {})}
    )
    if done.returncode:
        raise ClusterError(
            f"`edgepart {' '.join(arguments)}` exited {done.returncode}: {done.stderr[-2000:]}"
        )
    return json.loads(done.stdout)


@dataclass
class LocalAgent:
    """One agent's process and its state directory."""

    name: str
    state: Path
    options: tuple[str, ...] = ()
    place: Place = Place()
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.state.with_suffix(".log")

    def start(self) -> None:
        """Starts the process. `addresses` is empty until the agent can be reached."""
        if self.alive:
            raise InternalError(f"agent {self.name} runs already")
        place = self.place
        command = [place.python, "-m", "edgepart", "agent", "--state", str(self.state), "--name", self.name]
        addresses = ("--listen", place.listen, "--http", place.http, "--grpc", place.grpc)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.place.prefix, *command, *addresses, *self.options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.place.env},
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def addresses(self) -> dict[str, Any]:
        """The addresses that the running agent wrote down; {} until it is up, even if an older process left its file."""
        try:
            document: dict[str, Any] = json.loads((self.state / "agent.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return document if self.process and document.get("pid") == self.process.pid else {}

    @property
    def grpc(self) -> str:
        return str(self.addresses["grpc"])

    @property
    def url(self) -> str:
        return str(self.addresses["http"])

    def type(self, *arguments: str, timeout_s: float = 60, env: Mapping[str, str] | None = None) -> Any:
        """Runs a command where the agent runs, as a person would, with the agent's state directory."""
        state = ("--state", str(self.state))
        return edgepart(*arguments, *state, timeout_s=timeout_s, prefix=self.place.prefix, env=env)

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """Ends the process with SIGKILL, which is as sudden as a power failure, and waits until it is gone."""
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def stop(self, timeout_s: float = 20) -> int:
        """Sends SIGTERM and returns the exit status. Kills the process if it does not end in time."""
        self.signal(signal.SIGTERM)
        if self.process is None:
            return 0
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL


class LocalCluster:
    """Agents on this machine. In a block `with LocalCluster(["a", "b", "c"]) as cluster:`, these three members have found
    each other and elected a leader."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        options: Sequence[str] = (),
        env: Mapping[str, Mapping[str, str]] | None = None,
        folder: Path | None = None,
        listen: str = "0.0.0.0:0",
        places: Callable[[str], Place] | None = None,
        patience_s: float = 60,
        at_once: bool = False,
    ) -> None:
        """`places` maps an agent's name to its place; `env` and `listen` are for agents on this machine's loopback.
        `patience_s` is the longest wait for all of them. `at_once` starts all agents but the first at the same time: that
        is quicker, and disturbs agents that measure themselves."""
        self._temporary = tempfile.TemporaryDirectory(prefix="edgepart-") if folder is None else None
        self.folder = folder or Path(self._temporary.name if self._temporary else "")
        self._options = tuple(options)
        self._place = places or (lambda name: Place(env=(env or {}).get(name, {}), listen=listen))
        self._names = tuple(names)
        self._patience_s = patience_s
        self._at_once = at_once
        self.agents: dict[str, LocalAgent] = {}
        self.notes: list[str] = []
        """Problems that occurred, and what was done instead."""

    def __enter__(self) -> LocalCluster:
        try:
            self._add_all()
            self.wait_for_members(len(self._names), self._patience_s)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add_all(self) -> None:
        if not self._at_once:
            for name in self._names:
                self.add(name)
            return
        self.add(self._names[0])  # The others join this one.
        with ThreadPoolExecutor() as pool:
            list(pool.map(self.add, self._names[1:]))
        self.agents = {name: self.agents[name] for name in self._names}

    def add(self, name: str) -> LocalAgent:
        """Adds and starts an agent. The first one makes the cluster; the others join it with one-time tokens."""
        agent = LocalAgent(name, self.folder / name, self._options, self._place(name))
        if self.agents:
            self._join(self.first.type("token", "create")["token"], agent)
        else:
            agent.type("init", "--name", name)
        self.agents[name] = agent
        agent.start()
        self.wait(lambda: agent.addresses, f"agent {name} to come up", agent)
        return agent

    def _join(self, token: str, agent: LocalAgent) -> None:
        """Joins by multicast DNS, or else by address, with a note that says why."""
        command = ["join", "--name", agent.name]
        secret = {"EDGEPART_TOKEN": token}  # keeps it out of process lists and of error messages
        if "--mqtt" in self._options:
            agent.type(*command, "--mqtt", self._options[self._options.index("--mqtt") + 1], env=secret)
            return
        by_address = [*command, "--peer", self.first.addresses["listen"]]
        if "--no-mdns" in self._options:
            agent.type(*by_address, env=secret)
            return
        try:
            agent.type(*command, env=secret)
        except ClusterError as error:
            agent.type(*by_address, env=secret)
            self.notes.append(
                f"{agent.name} was told the address of {self.first.name}, for mDNS failed: {error}"
            )

    @property
    def first(self) -> LocalAgent:
        """The first agent, which holds the key that admits others."""
        return next(iter(self.agents.values()))

    @property
    def living(self) -> list[LocalAgent]:
        return [agent for agent in self.agents.values() if agent.alive]

    def status(self, agent: LocalAgent | None = None) -> dict[str, Any]:
        """The document of `edgepart status --json`, read directly from the agent, because it is read often."""
        agent = agent or self.living[0]
        url = agent.addresses.get("http")
        if url is None:
            raise ClusterError("the agent is not up")
        try:
            with urllib.request.urlopen(
                _make_request(AgentTarget(url, agent.state), "/api/status"), timeout=10
            ) as answer:
                document: dict[str, Any] = json.load(answer)
                return document
        except OSError as error:
            raise ClusterError(f"{url} does not answer: {error}") from error

    def wait_for_members(self, count: int, timeout_s: float = 60) -> None:
        """Waits until every living agent sees the same leader and `count` measured members that are alive or flapping."""

        def is_settled() -> bool:
            seen = [self.status(agent) for agent in self.living]
            return len({view["leader"] for view in seen}) == 1 and all(
                view["leader"]
                and sum(m["state"] in ("alive", "flapping") and m["measured"] for m in view["members"])
                == count
                for view in seen
            )

        self.wait(is_settled, f"{count} members with one leader", timeout_s=timeout_s)

    def wait(self, done: Any, what: str, agent: LocalAgent | None = None, timeout_s: float = 60) -> Any:
        """The first true value of `done()`. Raises ClusterError, with the end of the agents' logs, after `timeout_s`, or if
        `agent` ends."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with contextlib.suppress(ClusterError):
                if result := done():
                    return result
            if agent is not None and not agent.alive:
                break
            time.sleep(0.1)
        logs = "\n".join(
            f"--- {a.name}\n{a.log.read_text()[-3000:]}" for a in [*self.agents.values()] if a.log.exists()
        )
        raise ClusterError(f"waited {timeout_s:.0f} s in vain for {what}\n{logs}")

    def close(self) -> None:
        for agent in self.agents.values():
            agent.signal(signal.SIGTERM)
        for agent in self.agents.values():
            agent.stop()
        if self._temporary is not None:
            self._temporary.cleanup()


def _make_request(target: AgentTarget, path: str) -> urllib.request.Request:
    """The request, with the credential if the agent runs on another machine."""
    headers = {} if target.is_local else {"Authorization": f"Bearer {target.credential()}"}
    return urllib.request.Request(target.url + path, headers=headers)
