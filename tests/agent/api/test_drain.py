"""What a drain still waits for, in words for people."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from edgepart.agent.api.drain import DrainService
from edgepart.agent.cluster.core.core import Core

NODE, OTHER = "93cba53489e02338", "67a2eea4c791e7fc"


def service(text: str, version: int) -> DrainService:
    """A service on whose cluster the leader said this of version 1 of NODE's drain."""
    standing = SimpleNamespace(version=version, text=text)
    members = [SimpleNamespace(node=NODE, name="pi-b"), SimpleNamespace(node=OTHER, name="pi-a")]
    draining = SimpleNamespace(
        map=[SimpleNamespace(name="pi-b", node=NODE, state="drained", version=1)],
        standings={NODE: standing},
        is_out=lambda *given: False,
    )
    core = SimpleNamespace(draining=draining, membership=SimpleNamespace(members=lambda: members))
    return DrainService(cast(Core, core), lambda event: None, cast(Any, None))


def text_of(made: DrainService) -> str:
    (entry,) = cast(Any, made)._core.draining.map
    return cast(Any, made)._text(entry)  # type: ignore[no-any-return]


def test_devices_are_named() -> None:
    assert text_of(service(f"{OTHER} is still switching to the new plan", 1)) == (
        "pi-a is still switching to the new plan"
    )


def test_what_was_said_of_an_earlier_drain_does_not_count() -> None:
    assert text_of(service("all is done", 0)) == "waiting for the leader"
