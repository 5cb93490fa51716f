"""Target: the agents that a client talks to at first, and the state folder that holds the credential for them. Door: it
reads the state folder."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgepart.agent.options import state_folder
from edgepart.client.addresses import is_loopback, parse_urls, reachable
from edgepart.planner.errors import Unavailable, UsageError
from edgepart.planner.json_text import parse_json


@dataclass(frozen=True)
class AgentTarget:
    """Agents to talk to, and the state folder that holds the credential for them."""

    url: str
    """The URL of the agent that is asked first, without a slash at the end."""
    state: Path
    others: tuple[str, ...] = ()
    """The URLs of agents that are asked when that one is gone."""
    announced: bool = False
    """Whether the URLs are those that the agent of the state folder wrote down, and not the user's."""
    secret: str | None = None
    """The management credential; None takes that of the state folder."""

    @property
    def urls(self) -> tuple[str, ...]:
        return (self.url, *self.others)

    @property
    def alone(self) -> AgentTarget:
        """The first agent without the others, for what only that agent knows."""
        return replace(self, others=(), announced=False)

    def urls_now(self) -> tuple[str, ...]:
        """The URLs as they are now: an agent that was started again may have another one."""
        if not self.announced:
            return self.urls
        try:
            return announced_in(self.state).urls
        except (Unavailable, UsageError):
            return self.urls  # What is known stays the best that is known.

    @property
    def is_local(self) -> bool:
        """Whether the agent runs on this machine, where reading and inference need no credential."""
        return is_loopback(self.url)

    def credential(self) -> str:
        """The cluster's management credential. Raises UsageError if this machine is not a member."""
        if self.secret is not None:
            return self.secret
        from edgepart.agent.security import identity

        if not (self.state / "identity").is_dir():
            raise UsageError(
                f"only members of its cluster may ask {self.url} for this, and {self.state} belongs to none: run the "
                "command on a member, or let this machine join (`edgepart join TOKEN`)"
            )
        return identity.load(self.state).admin

    def credential_for(self, url: str) -> str | None:
        """What a request for reading or inference shows at `url`; None on this machine, which needs none, and where there
        is no credential: agents with `--inference open` want none. Raises UsageError if the identity here is damaged."""
        if is_loopback(url) or (self.secret is None and not (self.state / "identity").is_dir()):
            return None
        return self.credential()


def target_of(agent: str | None, state: Path | None) -> AgentTarget:
    """The agents that --agent names, or the one on this machine. Raises UsageError for a bad URL, and Unavailable if no
    agent runs."""
    folder = state_folder(os.environ, state)
    if agent is None:
        return announced_in(folder)
    url, *others = parse_urls(agent, "--agent")
    return AgentTarget(url, folder, tuple(others))


def announced_in(folder: Path, secret: str | None = None) -> AgentTarget:
    """The agent that runs with this state folder, and the other members that it knew last. Raises Unavailable if there is
    none, and UsageError if its file cannot be read."""
    announced = folder / "agent.json"
    try:
        said = parse_json(announced.read_text())["http"]
        (url,) = parse_urls(said if isinstance(said, str) else "", "http")
    except FileNotFoundError:
        raise Unavailable(
            f"no agent runs with state {folder}: start one with `edgepart agent --state {folder}`, or name "
            "another's URL with --agent"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, UsageError) as error:
        raise UsageError(
            f"{announced} cannot be read ({error}); name the agent's URL with --agent"
        ) from error
    others = reachable(_members(folder / "http.json"), url)
    found = tuple(other for other in others if other != url)
    return AgentTarget(url, folder, found, announced=True, secret=secret)


def _members(path: Path) -> list[str]:
    """The URLs of other members that the agent wrote down: hints, so a file that is missing or damaged is no error."""
    try:
        found: Any = parse_json(path.read_text())["members"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [url for url in found if isinstance(url, str) and url] if isinstance(found, list) else []
