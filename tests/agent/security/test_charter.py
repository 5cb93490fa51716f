"""The charter: any order of telling ends in the same one, and only the CA's word counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.security import certificates, charter, charter_file, identity
from edgepart.agent.security.charter import Charter, Credential, Revocation
from edgepart.agent.wire.codec import frame_to_message, kinds, message_to_frame
from edgepart.planner.errors import FrameError, NotAuthorised, UsageError
from tests.agent.security.test_identity import NOW, admit

KEY = certificates.new_key()
CA = certificates.new_ca(KEY, NOW)
NODES = [f"{n:016x}" for n in range(6)]
SECRETS = [letter * 43 for letter in "abc"]


def made(steps: Sequence[tuple[str, int]]) -> Charter:
    """What a holder of the CA's key makes, one step after another."""
    held = Charter()
    for what, number in steps:
        if what == "revoke":
            held = charter.revoke(held, [NODES[number]], CA, KEY, NOW + number)
        else:
            held = charter.renew(held, SECRETS[number % 3], CA, KEY)
    return held


steps = st.lists(st.tuples(st.sampled_from(["revoke", "renew"]), st.integers(0, 5)), max_size=3)
charters = st.builds(made, steps)


@given(charters, charters, charters)
def test_charters_come_together_in_any_order(a: Charter, b: Charter, c: Charter) -> None:
    assert charter.merge(a, b) == charter.merge(b, a)
    assert charter.merge(charter.merge(a, b), c) == charter.merge(a, charter.merge(b, c))
    assert charter.merge(a, a) == a
    assert charter.merge(a, b).revoked == a.revoked | b.revoked
    assert charter.accept(a, b, CA) == charter.merge(a, b)


@given(st.lists(charters, min_size=1, max_size=4), st.randoms())
def test_whoever_has_heard_all_has_the_same(told: list[Charter], chance: object) -> None:
    one = reduce(charter.merge, told, Charter())
    chance.shuffle(told)  # type: ignore[attr-defined]
    assert reduce(charter.merge, told, Charter()) == one


@given(charters)
def test_a_charter_survives_the_disk_and_the_wire(held: Charter) -> None:
    assert charter.from_json(charter.to_json(held)) == held
    assert frame_to_message(message_to_frame(held), kinds(Charter)) == held
    assert held.credential is None or held.credential.secret not in repr(held)


def test_nobody_else_can_write_in_it() -> None:
    honest = made([("revoke", 1), ("renew", 0)])
    other = certificates.new_key()
    assert honest.credential is not None
    forged = [
        charter.revoke(honest, [NODES[2]], CA, other, NOW),
        charter.renew(honest, SECRETS[1], CA, other),
        # Another cluster's CA said it.
        charter.revoke(Charter(), [NODES[2]], certificates.new_ca(KEY, NOW), KEY, NOW),
        # Signed, but for another node, number, secret or list.
        Charter((replace(honest.revocations[0], node=NODES[3]),)),
        Charter(credential=replace(honest.credential, number=9)),
        Charter(credential=replace(honest.credential, secret=SECRETS[1])),
        Charter(credential=replace(honest.credential, covers=())),
    ]
    for told in forged:
        for mine in (Charter(), honest):
            with pytest.raises(NotAuthorised, match="did not sign"):
                charter.accept(mine, told, CA)


@pytest.mark.parametrize(
    "fields",
    [
        {"revocations": [["x", 1, b""]]},
        {"revocations": [[NODES[0], -1, b""]]},
        {"revocations": [[NODES[1], 1, b""], [NODES[0], 1, b""]]},
        {"revocations": [[NODES[0], 1, b""], [NODES[0], 2, b""]]},
        {"credential": [1, "short", (), b""]},
        {"credential": [0, "a" * 40, (), b""]},
        {"credential": [1, "a b" * 20, (), b""]},
        {"credential": [1, "a" * 40, (), b"x" * 100]},
    ],
)
def test_what_is_no_charter_is_refused_at_the_wire(fields: dict[str, list[object]]) -> None:
    entries = tuple(
        dict(zip(("node", "at_s", "signature"), entry, strict=True))  # type: ignore[call-overload]
        for entry in fields.get("revocations", [])
    )
    held = fields.get("credential")
    credential = held and dict(zip(("number", "secret", "covers", "signature"), held, strict=True))
    frame = replace(
        message_to_frame(Charter()), header={"revocations": entries, "credential": credential or None}
    )
    with pytest.raises(FrameError):
        frame_to_message(frame, kinds(Charter))


def test_revoking_puts_out_and_renews_the_credential(tmp_path: Path) -> None:
    first = identity.create_cluster(tmp_path, NOW)
    held = charter_file.revoke(tmp_path, [NODES[1], NODES[2]], NOW)
    assert first.revoked_nodes() == held.revoked == {NODES[1], NODES[2]} and held.is_covered
    after = identity.load(tmp_path)
    assert after.admin == first.current_admin() == (tmp_path / "identity/admin").read_text() != first.admin
    again = charter_file.revoke(tmp_path, [NODES[1]], NOW + 5)
    assert again == held  # nothing new, and no new credential
    assert charter_file.rotate(tmp_path) == identity.load(tmp_path).admin != after.admin
    files = ("charter.json", "admin")
    assert {(tmp_path / "identity" / name).stat().st_mode & 0o777 for name in files} == {0o600}


def test_a_crash_between_the_two_files_leaves_the_new_credential(tmp_path: Path) -> None:
    identity.create_cluster(tmp_path, NOW)
    secret = charter_file.rotate(tmp_path)
    (tmp_path / "identity/admin").write_text("b" * 40)
    assert identity.load(tmp_path).admin == secret
    charter_file.change(tmp_path / "identity", lambda held: held)
    assert (tmp_path / "identity/admin").read_text() == secret


def test_two_holders_who_revoke_at_once_end_with_a_credential_that_no_revoked_node_knows(
    tmp_path: Path,
) -> None:
    first = identity.create_cluster(tmp_path / "a", NOW)
    second = admit(first, tmp_path / "b")
    (second.directory / "ca.key").write_bytes((first.directory / "ca.key").read_bytes())
    one = charter_file.revoke(tmp_path / "a", [NODES[1]], NOW)
    other = charter_file.revoke(tmp_path / "b", [NODES[2]], NOW)
    both = charter.merge(one, other)
    assert not both.is_covered
    after = charter_file.renew_credential(both, first)
    assert after.is_covered and after.credential is not None and both.credential is not None
    assert after.credential.secret not in {held.credential.secret for held in (one, other) if held.credential}
    assert charter.accept(both, after, first.ca) == after


def test_who_may_not_revoke_is_told_so(tmp_path: Path) -> None:
    first = identity.create_cluster(tmp_path / "a", NOW)
    admit(first, tmp_path / "b")
    with pytest.raises(UsageError, match="holds no CA key"):
        charter_file.revoke(tmp_path / "b", [NODES[1]], NOW)
    with pytest.raises(UsageError, match="is this device"):
        charter_file.revoke(tmp_path / "a", [first.node_id], NOW)
    with pytest.raises(UsageError, match="no node id"):
        charter_file.revoke(tmp_path / "a", ["pi-c"], NOW)
    assert first.revoked_nodes() == frozenset() and identity.load(tmp_path / "a").admin == first.admin


@pytest.mark.parametrize(
    "damage", [b"", b"[]", b'{"revocations": 3}', b'{"revocations": [["x",1,"00"]], "credential": null}']
)
def test_a_damaged_charter_is_named(tmp_path: Path, damage: bytes) -> None:
    first = identity.create_cluster(tmp_path, NOW)
    (tmp_path / "identity/charter.json").write_bytes(damage)
    for read in (first.revoked_nodes, lambda: identity.load(tmp_path)):
        with pytest.raises(UsageError, match=r"charter\.json"):
            read()


def test_a_charter_is_bounded() -> None:
    full = tuple(Revocation(f"{n:016x}", 1, b"") for n in range(charter.MOST_REVOKED))
    with pytest.raises(UsageError, match="at most"):
        charter.revoke(Charter(full), ["f" * 16], CA, KEY, NOW)
    with pytest.raises(ValueError, match="each revoked node"):
        Charter((*full, Revocation("f" * 16, 1, b"")))
    with pytest.raises(ValueError, match="no credential"):
        Credential(1, "a" * 40, tuple("0" * 16 for _ in range(charter.MOST_REVOKED + 1)), b"")
