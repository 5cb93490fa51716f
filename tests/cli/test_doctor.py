"""`edgepart doctor`: what a person sees of a document, and what is looked at without an agent."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from edgepart.agent.doctor import survey
from edgepart.agent.security import identity
from edgepart.cli.doctor import clock_check, render
from edgepart.cli.output import console

BOX = {
    "node": "1" * 16,
    "name": "pi-b",
    "version": "0.1.0",
    "cluster": "f" * 16,
    "addresses": ["10.0.0.2:7433"],
    "state": "out",
    "why": "10.0.0.2:7433 refuses",
    "do": "start its agent",
    "heard": [{"way": "mDNS", "seconds_ago": 2.0}],
    "tries": [{"address": "10.0.0.2:7433", "fault": "refused", "text": "refused", "seconds_ago": 1.0}],
    "deployments": [{"deployment": "photos", "why": "it would not be faster with it"}],
}
DOCUMENT: dict[str, Any] = {
    "agent": {"name": "pi-a", "node": "0" * 16, "version": "0.1.0", "cluster": "f" * 16, "running": True},
    "boxes": [
        BOX,
        *(BOX | {"name": name, "state": "other cluster", "cluster": "e" * 16} for name in ("nas", "tv")),
        BOX | {"name": "", "node": None, "state": "member", "why": "", "do": "", "deployments": []},
    ],
    "knocks": [{"address": "10.0.0.9", "why": "the token has expired", "seconds_ago": 30.0, "times": 1}],
    "checks": [
        {"name": "disk", "level": "good", "text": "70 GB free", "do": ""},
        {"name": "multicast", "level": "bad", "text": "hears nothing", "do": "let UDP 5353 through"},
    ],
    "notes": ["2 boxes are called 'pi'"],
}


def shown(document: dict[str, Any], capsys: pytest.CaptureFixture[str], *, verbose: bool = False) -> str:
    for part in render(document, verbose):
        console().print(part, soft_wrap=False)
    return capsys.readouterr().out


def test_a_person_sees_what_is_wrong_and_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    text = shown(DOCUMENT, capsys)
    for part in (
        "pi-a", "its agent runs", "10.0.0.2:7433 refuses", "-> start its agent", "nas, tv", "all is well",
        "no work of photos: it would not be faster", "10.0.0.9 30 s ago: the token has expired",
        "BAD", "-> let UDP 5353 through", "2 boxes are called 'pi'",
    ):  # fmt: skip
        assert part in text
    assert "heard by" not in text
    more = shown(DOCUMENT, capsys, verbose=True)
    assert "heard by mDNS 2 s ago" in more and "tried 10.0.0.2:7433 just now: refused" in more
    assert "nas, tv" not in more
    alone = DOCUMENT | {"boxes": [], "knocks": [], "notes": []}
    assert "no other box was ever heard of" in shown(alone, capsys)


def test_narrow_terminals_lose_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    letters = "".join(shown(DOCUMENT, capsys).split())
    assert "nowork" in letters and "refuses" in letters and "…" not in letters


def test_clocks_are_compared() -> None:
    assert clock_check("pi-b", 2.0) is None
    ahead, behind = clock_check("pi-b", 4000.0), clock_check("pi-b", -4000.0)
    assert ahead is not None and "4000 s ahead of" in ahead["text"]
    assert behind is not None and "behind" in behind["text"]


def test_without_an_agent_and_without_a_cluster_it_looks_around(tmp_path: Path) -> None:
    found = asyncio.run(survey.survey(tmp_path / "nothing", 0.2))
    assert found["agent"]["running"] is False and found["agent"]["cluster"] is None
    assert {check["name"]: check["level"] for check in found["checks"]}["identity"] == "bad"
    assert not (tmp_path / "nothing").exists()


def test_without_an_agent_members_of_old_are_asked(tmp_path: Path) -> None:
    """Nobody listens at the address that is remembered; nothing of the state is changed."""
    me = identity.create_cluster(tmp_path, time.time())
    (tmp_path / "cluster.json").write_text('{"%s": ["127.0.0.1:9"]}' % ("1" * 16))
    before = sorted(path.name for path in tmp_path.iterdir())
    found = asyncio.run(survey.survey(tmp_path, 0.2))
    assert found["agent"]["cluster"] == me.fingerprint[:16]
    box = next(box for box in found["boxes"] if box["node"] == "1" * 16)
    assert box["state"] == "gone" and "127.0.0.1:9 refuses" in box["why"]
    assert sorted(path.name for path in tmp_path.iterdir()) == before
