"""URLs as people and members write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis.strategies import lists, sampled_from, text

from edgepart.client.addresses import is_loopback, parse_urls, reachable, urls_of_members
from edgepart.planner.errors import UsageError

LOCAL, REMOTE = "http://127.0.0.1:1", "http://pi-a:1"


@pytest.mark.parametrize(
    ("given_text", "urls"),
    [
        ("pi-a:8433", ("http://pi-a:8433",)),
        ("http://pi-a:8433/", ("http://pi-a:8433",)),
        ("https://pi-a", ("https://pi-a",)),
        ("[fe80::1]:1,pi-b:2", ("http://[fe80::1]:1", "http://pi-b:2")),
    ],
)
def test_urls_are_read(given_text: str, urls: tuple[str, ...]) -> None:
    assert parse_urls(given_text, "--agent") == urls


@pytest.mark.parametrize(
    "bad",
    ["", "pi-a:1,", "ftp://pi-a", "http://pi-a/v2", "http://pi-a?x", "http://u@pi-a", "pi a:1", "http://[::1",
     "pi-a:x", "pi-a:0"],
)  # fmt: skip
def test_what_is_no_url_is_refused_with_the_option(bad: str) -> None:
    with pytest.raises(UsageError, match=r"--agent .*give a URL such as"):
        parse_urls(bad, "--agent")


def test_only_members_that_answer_count_each_once() -> None:
    rows = [("alive", "http://pi-b:1"), ("flapping", "http://pi-c:1/"), ("suspect", "http://pi-d:1"),
            ("alive", None), ("alive", "http://pi-b:1"), ("alive", "nonsense")]  # fmt: skip
    status = {"members": [{"state": state, "http": http} for state, http in rows]}
    assert urls_of_members(status, REMOTE) == ("http://pi-b:1", "http://pi-c:1")
    assert urls_of_members({}, REMOTE) == ()


def test_another_machines_loopback_is_not_here() -> None:
    assert reachable([LOCAL, REMOTE], REMOTE) == (REMOTE,)
    assert reachable([LOCAL, REMOTE], LOCAL) == (LOCAL, REMOTE)


@given(lists(text() | sampled_from([LOCAL, REMOTE, "http://localhost:2"])))
def test_whatever_members_say_only_urls_are_kept(said: list[str]) -> None:
    for url in reachable(said, LOCAL):
        assert parse_urls(url.replace(",", ""), "x")
    assert not any(is_loopback(url) for url in reachable(said, REMOTE))
