"""Join tokens: their text, their life, and what the file on disk holds."""

from __future__ import annotations

import hmac
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.security import identity, tokens
from edgepart.planner.errors import NotAuthorised, UsageError

NOW = 1_800_000_000.0


@pytest.fixture
def state(tmp_path: Path) -> Path:
    identity.create_cluster(tmp_path, NOW)
    return tmp_path


def redeem(state: Path, text: str, now: float = NOW, transcript: bytes = b"said") -> None:
    token = tokens.parse(text)
    tokens.redeem(state, token.token_id, transcript, hmac.digest(token.key, b"said", "sha256"), now)


def test_a_token_lets_in_as_often_as_it_says(state: Path) -> None:
    text = tokens.create(state, ttl_s=60, uses=2, now=NOW)
    assert tokens.parse(text).text == text
    assert tokens.parse(text).fingerprint == identity.load(state).fingerprint
    redeem(state, text)
    redeem(state, text, NOW + 59)
    with pytest.raises(NotAuthorised, match="used up"):
        redeem(state, text)


def test_refusals_say_why_and_take_no_use(state: Path) -> None:
    text = tokens.create(state, ttl_s=60, uses=1, now=NOW)
    with pytest.raises(NotAuthorised, match="expired"):
        redeem(state, text, NOW + 60)
    with pytest.raises(NotAuthorised, match="wrong"):
        redeem(state, text, transcript=b"something else")
    with pytest.raises(NotAuthorised, match="wrong"):
        redeem(state, text[:-4] + ("0000" if text[-4:] != "0000" else "1111"))
    with pytest.raises(NotAuthorised, match="unknown"):
        redeem(state, f"EP1-{'0' * 64}-{'0' * 12}.{'0' * 40}")
    redeem(state, text)


def test_a_revoked_token_is_unknown(state: Path) -> None:
    first, second = (tokens.create(state, ttl_s=60, uses=1, now=NOW + i) for i in range(2))
    tokens.revoke(state, first)
    tokens.revoke(state, tokens.parse(second).token_id)
    assert tokens.list_tokens(state) == ()
    with pytest.raises(NotAuthorised, match="unknown"):
        redeem(state, first)
    with pytest.raises(UsageError, match="no token"):
        tokens.revoke(state, first)


def test_the_disk_holds_no_secret_and_the_file_is_private(state: Path) -> None:
    text = tokens.create(state, ttl_s=60, uses=1, now=NOW)
    path = state / "identity" / "tokens.json"
    assert tokens.parse(text).secret not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert tokens.parse(text).secret not in repr(tokens.parse(text))
    (card,) = tokens.list_tokens(state)
    assert (card.created_at, card.expires_at, card.uses) == (NOW, NOW + 60, 1)


def test_the_long_expired_are_forgotten(state: Path) -> None:
    tokens.create(state, ttl_s=60, uses=1, now=NOW)
    tokens.create(state, ttl_s=60, uses=1, now=NOW + 3600)
    assert len(tokens.list_tokens(state)) == 2
    tokens.create(state, ttl_s=60, uses=1, now=NOW + 3 * 24 * 3600)
    assert len(tokens.list_tokens(state)) == 1


@pytest.mark.parametrize(("ttl_s", "uses"), [(0, 1), (-1, 1), (float("nan"), 1), (float("inf"), 1), (60, 0)])
def test_pointless_tokens_are_refused(state: Path, ttl_s: float, uses: int) -> None:
    with pytest.raises(UsageError):
        tokens.create(state, ttl_s=ttl_s, uses=uses, now=NOW)
    assert tokens.list_tokens(state) == ()


def test_only_an_issuer_makes_tokens(state: Path) -> None:
    (state / "identity" / "ca.key").unlink()
    with pytest.raises(UsageError, match="no CA key"):
        tokens.create(state, ttl_s=60, uses=1, now=NOW)


def test_a_damaged_file_is_named(state: Path) -> None:
    (state / "identity" / "tokens.json").write_bytes(b"{}")
    with pytest.raises(UsageError, match=r"tokens\.json is damaged"):
        tokens.list_tokens(state)


@given(st.text(max_size=150) | st.from_regex(r"EP1-[0-9a-f]{63}-[0-9a-f]{12}\.[0-9a-f]{40}", fullmatch=True))
def test_what_is_no_token_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        tokens.parse(text)
    assert len(text) < 20 or text not in str(caught.value)
