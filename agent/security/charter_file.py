"""The charter on disk: STATE/identity/charter.json, and beside it `admin`, which holds only the credential, for people and
scripts. Door: files.

The agent and commands change the charter, one at a time; the agent checks every second whether a command has changed it
(renewal.py). The content was checked before it was written.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path

from edgepart.agent.security import charter, identity
from edgepart.agent.security.certificates import Key
from edgepart.agent.security.charter import Charter
from edgepart.agent.security.identity import Identity
from edgepart.agent.storage.private_files import lock_folder, write_private
from edgepart.planner.errors import UsageError

Rule = Callable[[Charter], Charter]


def change(directory: Path, rule: Rule) -> Charter:
    """Apply `rule` to the charter in the identity's folder and return the result, which is then on disk."""
    with lock_folder(directory):
        before = identity.read_charter(directory)
        after = rule(before)
        if after != before:
            # The charter is written first, because `load` follows it if the other file is older.
            write_private(directory / "charter.json", json.dumps(charter.to_json(after)).encode())
        if after.credential is not None:
            secret = after.credential.secret.encode()
            if (directory / "admin").read_bytes().strip() != secret:
                write_private(directory / "admin", secret)
        return after


def revoke(state: Path, nodes: Iterable[str], now: float) -> Charter:
    """Revoke nodes for ever, and renew the credential, which they know. A running agent tells the others at once.

    Raises UsageError if this device holds no CA key, for a text that is not a node id, and for this device itself.
    """
    me = identity.load(state)
    asked = tuple(nodes)
    if me.node_id in asked:
        raise UsageError(
            f"{me.node_id} is this device: revoke it where another device holds the CA key, or delete {me.directory}"
        )
    key = _ca_key(me)
    return change(
        me.directory, lambda held: renew_credential(charter.revoke(held, asked, me.ca, key, now), me, key)
    )


def rotate(state: Path) -> str:
    """Make a new management credential for all members, and return it; the old one is no longer valid. Raises UsageError if
    this device holds no CA key."""
    me = identity.load(state)
    key = _ca_key(me)
    made = change(me.directory, lambda held: charter.renew(held, secrets.token_urlsafe(32), me.ca, key))
    return made.credential.secret if made.credential else me.admin


def renew_credential(held: Charter, me: Identity, key: Key | None = None) -> Charter:
    """Return the charter, with a new credential if a revoked node knows the current one. That is so after a revocation,
    also if two holders of the CA's key revoked at the same time."""
    if held.is_covered:
        return held
    return charter.renew(held, secrets.token_urlsafe(32), me.ca, key or _ca_key(me))


def _ca_key(me: Identity) -> Key:
    if not me.is_issuer:
        raise UsageError(
            "this device holds no CA key: do it where `edgepart init` ran, or `edgepart ca import` a copy of the key. "
            "Nothing was changed"
        )
    return me.ca_key()
