"""RpcClient every agent repeatedly for its members during a run, with one thread for each. Does I/O: HTTP,
threads, clock."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from threading import Event, Thread
from typing import Any

from benchmarks.chaos_presence import LISTED, Look
from edgepart.client.target import AgentTarget

EVERY_S = 0.5
ANSWER_S = 2.0
"""An agent that does not answer within this time is asked again."""


class Watch:
    """Watches agents. Use it as `with Watch() as watch:`; `add` begins to watch an agent."""

    def __init__(self) -> None:
        self._over = Event()
        self._threads: list[Thread] = []
        self.looks: list[Look] = []

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def add(self, name: str, url: str, state: Path) -> None:
        credential = AgentTarget(url, state).credential()
        arguments = (name, url, credential)
        thread = Thread(target=self._keep_looking, args=arguments, name=f"watch {name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _keep_looking(self, name: str, url: str, credential: str) -> None:
        while not self._over.wait(EVERY_S):
            at = time.monotonic()
            try:
                status = fetch(url, credential, "/api/status")
            except OSError:
                continue  # the agent is dead, frozen or not yet up, and so lists nobody
            self.looks.append(Look(at, name, listed(status)))


def listed(status: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the members that the agent takes to be in."""
    return frozenset(member["name"] for member in status["members"] if member["state"] in LISTED)


def fetch(url: str, credential: str, path: str) -> dict[str, Any]:
    """Return the agent's document at `path`. Raises OSError if it does not answer within `ANSWER_S`."""
    headers = {"Authorization": f"Bearer {credential}"}
    request = urllib.request.Request(url + path, headers=headers)
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
        document: dict[str, Any] = json.load(answer)
        return document
