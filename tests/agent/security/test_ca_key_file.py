"""The CA's key: sealed copies, a second holder, and none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgepart.agent.security import ca_key, ca_key_file, certificates, identity, issued, tokens
from edgepart.planner.errors import NotAuthorised, UsageError
from tests.agent.security.test_identity import NOW, admit

PASSPHRASE = "correct horse battery"


@pytest.fixture
def first(tmp_path: Path) -> identity.Identity:
    return identity.create_cluster(tmp_path / "a", NOW)


@pytest.fixture
def copy(first: identity.Identity, tmp_path: Path) -> Path:
    ca_key_file.export(tmp_path / "a", tmp_path / "copy", PASSPHRASE)
    return tmp_path / "copy"


def test_a_second_member_lets_in_when_the_founder_is_gone(
    first: identity.Identity, copy: Path, tmp_path: Path
) -> None:
    second = admit(first, tmp_path / "b")
    ca_key_file.bring(tmp_path / "b", copy, PASSPHRASE)
    assert second.is_issuer and second.ca_key().private_numbers() == first.ca_key().private_numbers()
    assert tokens.create(tmp_path / "b", ttl_s=60, uses=1, now=NOW)
    third = admit(second, tmp_path / "c")
    assert third.fingerprint == first.fingerprint
    assert (second.directory / "ca.key").stat().st_mode & 0o777 == 0o600


def test_a_copy_tells_nothing_and_only_opens_with_its_passphrase(
    copy: Path, first: identity.Identity
) -> None:
    data = copy.read_bytes()
    key = certificates.key_pem(first.ca_key())
    assert copy.stat().st_mode & 0o777 == 0o600
    assert not any(line in data for line in key.split(b"\n")[1:-2])
    with pytest.raises(NotAuthorised, match="passphrase is wrong"):
        ca_key.unseal(data, PASSPHRASE + "!")
    document = json.loads(data)
    other = identity.create_cluster(first.directory.parent.parent / "other", NOW)
    for name, value in (
        ("sealed", "00" + document["sealed"][2:]),
        ("ca", certificates.pem(other.ca).decode()),
        ("salt", "00" * 16),
    ):
        with pytest.raises(NotAuthorised):
            ca_key.unseal(json.dumps(document | {name: value}).encode(), PASSPHRASE)


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[]", b"null", b'{"kind": "edgepart CA key 1", "ca": "x"}', b"x" * 70_000, b"[" * 60_000],
)
def test_what_is_no_copy_is_refused(data: bytes) -> None:
    with pytest.raises(UsageError, match="no file of"):
        ca_key.unseal(data, PASSPHRASE)


def test_the_key_is_only_dropped_where_a_copy_of_it_opens(
    first: identity.Identity, copy: Path, tmp_path: Path
) -> None:
    other = identity.create_cluster(tmp_path / "other", NOW)
    ca_key_file.export(tmp_path / "other", tmp_path / "theirs", PASSPHRASE)
    for source, words, match in (
        (copy, "another passphrase", "passphrase is wrong"),
        (tmp_path / "theirs", PASSPHRASE, "another cluster"),
        (tmp_path / "none", PASSPHRASE, "cannot be read"),
    ):
        with pytest.raises((NotAuthorised, UsageError), match=match):
            ca_key_file.drop(tmp_path / "a", source, words)
        assert first.is_issuer
    ca_key_file.drop(tmp_path / "a", copy, PASSPHRASE)
    assert not first.is_issuer and identity.load(tmp_path / "a") == first
    with pytest.raises(UsageError, match="no CA key"):
        ca_key_file.drop(tmp_path / "a", copy, PASSPHRASE)
    ca_key_file.bring(tmp_path / "a", copy, PASSPHRASE)
    assert first.is_issuer and other.is_issuer


def test_only_members_of_its_cluster_are_given_the_key(
    first: identity.Identity, copy: Path, tmp_path: Path
) -> None:
    identity.create_cluster(tmp_path / "other", NOW)
    held = (tmp_path / "other/identity/ca.key").read_bytes()
    with pytest.raises(NotAuthorised, match="another cluster"):
        ca_key_file.bring(tmp_path / "other", copy, PASSPHRASE)
    with pytest.raises(UsageError, match="no cluster yet"):
        ca_key_file.bring(tmp_path / "fresh", copy, PASSPHRASE)
    assert (tmp_path / "other/identity/ca.key").read_bytes() == held and not (tmp_path / "fresh").exists()


def test_weak_passphrases_and_existing_files_are_refused(
    first: identity.Identity, copy: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="12 characters"):
        ca_key_file.export(tmp_path / "a", tmp_path / "weak", "short")
    with pytest.raises(UsageError, match="there already"):
        ca_key_file.export(tmp_path / "a", copy, PASSPHRASE)
    admit(first, tmp_path / "b")
    with pytest.raises(UsageError, match="no CA key"):
        ca_key_file.export(tmp_path / "b", tmp_path / "none", PASSPHRASE)
    assert not (tmp_path / "weak").exists() and not (tmp_path / "none").exists()


def test_the_ledger_finds_who_is_gone_by_name(first: identity.Identity) -> None:
    folder = first.directory
    assert issued.read(folder) == ()
    for n, name in enumerate(("pi", "nas", "pi")):
        issued.add(folder, issued.IssuedEntry(f"{n:016x}", name, "t", NOW))
    entries = issued.read(folder)
    assert [entry.name for entry in entries] == ["pi", "nas", "pi"]
    assert issued.find(entries, {}, "nas") == f"{1:016x}" == issued.find(entries, {}, f"{1:016x}")
    assert issued.find(entries, {f"{2:016x}": "pi-0002"}, "pi") == f"{0:016x}"
    with pytest.raises(UsageError, match="may be"):
        issued.find(entries, {}, "pi")
    with pytest.raises(UsageError, match="nobody is known"):
        issued.find(entries, {}, "pi-z")
    (folder / "issued.json").write_text('{"issued": [{"x": 1}]}')
    with pytest.raises(UsageError, match="damaged"):
        issued.read(folder)
