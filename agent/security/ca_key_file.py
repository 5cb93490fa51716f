"""Custody: exports the CA's key, imports it on another device, and removes it. Door: STATE/identity/ca.key and the sealed
file (ca_key.py).

A holder of the key lets devices in, renews certificates, and revokes nodes. A member that imports the key does so, in
addition to the other holders, from the next start of its agent on.
"""

from __future__ import annotations

import os
from pathlib import Path

from edgepart.agent.security import ca_key, certificates, identity
from edgepart.agent.security.identity import Identity
from edgepart.agent.storage.private_files import write_private
from edgepart.agent.storage.store import write_atomic
from edgepart.planner.errors import NotAuthorised, UsageError


def export(state: Path, target: Path, passphrase: str) -> Identity:
    """Write a sealed copy of the key to `target`. Raises UsageError if this device holds no key, the passphrase is too
    short, or `target` exists."""
    me = identity.load(state)
    if not me.is_issuer:
        raise UsageError("this device holds no CA key: export it where `edgepart init` ran")
    if target.exists():
        raise UsageError(f"{target} is there already: give another name. Nothing was written")
    try:
        write_atomic(target, ca_key.seal(me.ca, me.ca_key(), passphrase))
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error}") from error
    return me


def bring(state: Path, source: Path, passphrase: str) -> Identity:
    """Import the key on this member. Raises UsageError if this device is in no cluster or `source` cannot be read, and
    NotAuthorised if the key is another cluster's."""
    me = identity.load(state)
    key = _open_key(me, source, passphrase)
    write_private(me.directory / "ca.key", certificates.key_pem(key))
    return me


def drop(state: Path, source: Path, passphrase: str) -> Identity:
    """Delete the key on this device. `source` has to be a copy that can be opened; otherwise the key could be lost.

    The file is overwritten first, but whether a disk really erases the bytes of a deleted file is up to the disk.
    """
    me = identity.load(state)
    if not me.is_issuer:
        raise UsageError("this device holds no CA key. Nothing was changed")
    _open_key(me, source, passphrase)
    path = me.directory / "ca.key"
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
        file.flush()
        os.fsync(file.fileno())
    path.unlink()
    return me


def _open_key(me: Identity, source: Path, passphrase: str) -> certificates.Key:
    try:
        with source.open("rb") as file:
            data = file.read(ca_key.MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {error}. Nothing was changed") from error
    ca, key = ca_key.unseal(data, passphrase)
    if certificates.fingerprint(ca) != me.fingerprint:
        raise NotAuthorised(f"{source} holds the key of another cluster's CA. Nothing was changed")
    return key
