"""Join tokens: a token lets devices join, for a limited time and a limited number of times. A door:
STATE/identity/tokens.json.

    EP1-<SHA-256 of the CA, hex>-<token id>.<secret>

The joiner checks the cluster by the first part, and proves that it knows the secret without sending it. Only the SHA-256 of
the secret is kept; the secret has 160 random bits, so no slower hash is needed. Secrets are never logged.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from edgepart.agent.security import identity
from edgepart.agent.storage.private_files import lock_folder, write_private
from edgepart.agent.wire.codec import read_record
from edgepart.planner.errors import FrameError, NotAuthorised, UsageError
from edgepart.planner.json_text import parse_json

INIT_TTL_S, INIT_USES = 24 * 3600.0, 16
"""The lifetime and the number of uses of the token that `edgepart init` prints: enough for a day and a shelf of boards."""
CREATE_TTL_S, CREATE_USES = 3600.0, 1
"""The default lifetime and number of uses of a token of `edgepart token create`."""

_TEXT = re.compile(r"EP1-([0-9a-f]{64})-([0-9a-f]{12})\.([0-9a-f]{40})")


@dataclass(frozen=True, slots=True)
class Token:
    """A token in the form that the joiner holds."""

    fingerprint: str
    token_id: str
    secret: str = field(repr=False)

    @property
    def text(self) -> str:
        return f"EP1-{self.fingerprint}-{self.token_id}.{self.secret}"

    @property
    def key(self) -> bytes:
        """The key that both sides prove to know: SHA-256 of the secret."""
        return hashlib.sha256(self.secret.encode()).digest()


@dataclass(frozen=True, slots=True)
class TokenCard:
    """A token in the form that the issuer keeps."""

    token_id: str
    key: str = field(repr=False)
    """SHA-256 (hex) of the secret."""
    created_at: float
    """Seconds since 1970, as is `expires_at`."""
    expires_at: float
    uses: int
    """The number of devices that the token still lets in."""

    def __post_init__(self) -> None:
        """Raise ValueError for an infinite time, and for a text that is not a key."""
        if not (abs(self.created_at) < float("inf") and abs(self.expires_at) < float("inf")):
            raise ValueError(f"token {self.token_id[:40]!r} has no time to expire")
        if not re.fullmatch(r"[0-9a-f]{64}", self.key):
            raise ValueError(f"token {self.token_id[:40]!r} has no key")

    def refusal(self, now: float) -> str | None:
        """Return the reason why the token no longer lets devices in, or None."""
        if now >= self.expires_at:
            return "has expired"
        return "is used up" if self.uses < 1 else None


def parse(text: str) -> Token:
    """Return the token that `text` holds. Raises UsageError, without repeating the text, which may hold a secret, if it is
    not a token."""
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            "that is no join token (EP1-<64 hex digits>-<id>.<secret>): copy the whole line that "
            "`edgepart init` or `edgepart token create` printed"
        )
    return Token(*match.groups())


def create(state: Path, *, ttl_s: float, uses: int, now: float) -> str:
    """Create a token, and return its text. This is the only time that its secret is shown.

    Raises UsageError if this node cannot let devices in, or if the lifetime or the uses are not over 0.
    """
    me = identity.load(state)
    if not me.is_issuer:
        raise UsageError("this device holds no CA key: create tokens on the device where `edgepart init` ran")
    if not 0 < ttl_s < float("inf") or uses < 1:
        raise UsageError(f"a token needs a lifetime and uses over 0, not {ttl_s} s and {uses}")
    token = Token(me.fingerprint, secrets.token_hex(6), secrets.token_hex(20))
    with _cards(state) as cards:
        for token_id in [i for i, card in cards.items() if now > card.expires_at + 24 * 3600.0]:
            del cards[token_id]
        cards[token.token_id] = TokenCard(token.token_id, token.key.hex(), now, now + ttl_s, uses)
    return token.text


def list_tokens(state: Path) -> tuple[TokenCard, ...]:
    """Return all stored tokens, oldest first, including those that expired within the last day."""
    return tuple(sorted(_read(_path(state)).values(), key=lambda card: card.created_at))


def revoke(state: Path, token_id: str) -> None:
    """Delete a token, so that no device can join by it. `token_id` is an id or a whole token. Raises UsageError if the
    token is unknown."""
    if token_id.startswith("EP1-"):
        token_id = parse(token_id).token_id
    with _cards(state) as cards:
        if cards.pop(token_id, None) is None:
            raise UsageError(f"there is no token {token_id[:40]!r}: `edgepart token list` shows them")


def redeem(state: Path, token_id: str, transcript: bytes, proof: bytes, now: float) -> None:
    """Take one use of the token, if `proof` is the HMAC-SHA-256 of `transcript` under the token's key.

    The use is on disk when this returns, so that every certificate that is issued afterwards has cost a use, whatever
    crashes. Raises NotAuthorised, with the reason, and takes no use if the token is unknown, expired, used up or not
    proved.
    """
    with _cards(state) as cards:
        card = cards.get(token_id)
        if card is None:
            raise NotAuthorised("the token is unknown here: it was revoked, or is from another cluster")
        expected = hmac.digest(bytes.fromhex(card.key), transcript, "sha256")
        if not hmac.compare_digest(expected, proof):
            raise NotAuthorised("the token's secret is wrong: copy the whole token")
        if why := card.refusal(now):
            raise NotAuthorised(f"the token {why}: make a new one with `edgepart token create`")
        cards[token_id] = replace(card, uses=card.uses - 1)


def _path(state: Path) -> Path:
    return state / "identity" / "tokens.json"


@contextmanager
def _cards(state: Path) -> Iterator[dict[str, TokenCard]]:
    """Yield the stored tokens, which the caller may change, and write them at the end. Only one process at a time, the
    agent or a command, can do this."""
    path = _path(state)
    with lock_folder(path.parent):
        cards = _read(path)
        before = dict(cards)
        yield cards
        if cards != before:
            document = {"tokens": [asdict(card) for card in cards.values()]}
            write_private(path, json.dumps(document).encode())


def _read(path: Path) -> dict[str, TokenCard]:
    try:
        entries = parse_json(path.read_bytes())["tokens"]
        if not isinstance(entries, list):
            raise ValueError("expected a list of tokens")
        cards = [read_record(TokenCard, entry) for entry in entries]
        return {card.token_id: card for card in cards}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, FrameError) as error:
        raise UsageError(
            f"{path} is damaged ({error}): delete it; tokens given out then no longer work"
        ) from error
