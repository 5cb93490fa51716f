"""One schema for HTTP, messages and files: what one door takes, all of them take, and what one refuses, none keeps."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.agent.cluster.state.deployments import MAX_COUNTER, DeploymentMap
from edgepart.agent.http.uploads import read_options
from edgepart.agent.net.dispatch import CONTROL_KINDS, DATA_KINDS
from edgepart.agent.state_files import StateFiles
from edgepart.agent.wire.bounds import LARGEST
from edgepart.agent.wire.codec import frame_to_message, json_record, message_to_frame
from edgepart.agent.wire.control import Deployment, Deployments, Drain, Profile, Version
from edgepart.agent.wire.frames import MEMBER, encode
from edgepart.agent.wire.inference import DeployOptions
from edgepart.planner.errors import FrameError, UsageError
from tests.agent.wire.decoder import Decoder
from tests.agent.wire.schema import records, values

KINDS = {**CONTROL_KINDS, **DATA_KINDS}
CHARTER = "Charter"
"""Its fields are checked by itself, in ways that cannot be drawn from annotations
(tests/agent/security/test_charter.py)."""


def told(message: Any) -> Any:
    """As it comes in at another member."""
    frames = Decoder(MEMBER).feed(b"".join(map(bytes, encode(message_to_frame(message)))))
    return frame_to_message(frames[0], KINDS)


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {CHARTER}))
@settings(max_examples=40)
@given(data=st.data())
def test_every_record_within_its_bounds_can_be_told(kind: str, data: st.DataObject) -> None:
    message = data.draw(records(KINDS[kind]))
    assert told(message) == message


WILD: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([2**31, 2**53, 2**53 - 1, 2**63, 2**64, 2**70, -1, 0, 1, 1e309, 1e-320])
    | st.floats()
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
"""What a client may say."""


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Options of a deployment: some as they should be, some anything."""
    hints = get_type_hints(DeployOptions, include_extras=True)
    names = draw(st.sets(st.sampled_from([f.name for f in fields(DeployOptions)])))
    return {name: draw(values(hints[name]) | WILD) for name in sorted(names)}


@settings(max_examples=400)
@given(documents())
def test_what_http_takes_is_told_written_and_read_again(document: dict[str, Any]) -> None:
    """HTTP, gossip, disk, restart."""
    try:
        options = read_options(json.dumps(document, default=json_record))
    except UsageError as error:
        assert str(error).startswith("options: ")
        return
    assert read_options(json.dumps(json_record(options))) == options
    entry = DeploymentMap().put("0" * 16, "net", "1" * 64, LARGEST, options)
    other = DeploymentMap()
    (heard,) = other.merge(told(Deployments((entry,))).entries)
    with tempfile.TemporaryDirectory() as folder:
        assert StateFiles(Path(folder)).keep_deployments(other)
        files = StateFiles(Path(folder))
        assert files.deployments() == (entry,) == (heard,)
        assert files.damaged == []


@pytest.mark.parametrize("value", [2**53, 2**63, 2**70, -1, 0, 1.5, True, "5", [5]])
def test_numbers_that_could_not_be_read_again_are_refused_at_every_door(value: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"options: memory_limit_bytes: "):
        read_options(json.dumps({"memory_limit_bytes": value}))
    frame = message_to_frame(Deployments((ENTRY,)))
    frame.header["entries"][0]["options"]["memory_limit_bytes"] = value
    with pytest.raises(FrameError, match=r"Deployments.entries: Deployment.options: .*memory_limit_bytes: "):
        frame_to_message(frame, CONTROL_KINDS)


ENTRY = Deployment("net", "1" * 64, 5, DeployOptions(), Version(3, "0" * 16))
DRAIN = Drain("0" * 16, "pi", "drained", Version(2, "1" * 16))
PROFILE = Profile("2" * 64, "x86~60", 2, 0.5)


@settings(max_examples=60)
@given(
    st.lists(records(Deployment), max_size=4),
    st.lists(records(Drain), max_size=4),
    st.lists(records(Profile), max_size=4),
)
def test_every_record_on_disk_comes_back(
    deployed: list[Deployment], drained: list[Drain], timed: list[Profile]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = StateFiles(Path(folder))
        files.keep_deployments(deployed)
        files.keep_drains(drained)
        files.keep_profiles(timed)
        again = StateFiles(Path(folder))
        assert (again.deployments(), again.drains(), again.profiles()) == (
            tuple(deployed),
            tuple(drained),
            tuple(timed),
        )
        assert again.damaged == []


@pytest.mark.parametrize(
    ("name", "keep", "read", "good"),
    [
        ("deployments.json", StateFiles.keep_deployments, StateFiles.deployments, ENTRY),
        ("drains.json", StateFiles.keep_drains, StateFiles.drains, DRAIN),
        ("profiles.json", StateFiles.keep_profiles, StateFiles.profiles, PROFILE),
    ],
)
@pytest.mark.parametrize("bad", [None, 5, {}, [], "x", {"name": 2**70}])
def test_an_entry_that_cannot_be_read_costs_no_other(
    tmp_path: Path,
    name: str,
    keep: Callable[[StateFiles, Iterable[Any]], bool],
    read: Callable[[StateFiles], tuple[Any, ...]],
    good: Any,
    bad: Any,
) -> None:
    keep(StateFiles(tmp_path), [good])
    path = tmp_path / name
    document = json.loads(path.read_text())
    listed = document if isinstance(document, list) else document[name.removesuffix(".json")]
    listed.insert(0, bad)
    if isinstance(document, dict):
        del document["crc"]
    path.write_text(json.dumps(document))
    files = StateFiles(tmp_path)
    assert read(files) == (good,)
    (text,) = files.damaged
    assert "[0]" in text and f"{name}.damaged" in text
    assert json.loads(path.with_name(f"{name}.damaged").read_text()) == document
    again = StateFiles(tmp_path)
    assert read(again) == (good,) and again.damaged == []


def test_a_member_that_cannot_be_found_again_costs_no_other(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text(json.dumps({"0" * 16: ["1.2.3.4:5"], "1" * 16: 7, "2" * 16: [3]}))
    files = StateFiles(tmp_path)
    assert files.members() == {"0" * 16: ("1.2.3.4:5",)}
    assert "cluster.json[1].listen" in files.damaged[0] and "1 more" in files.damaged[0]


@pytest.mark.parametrize("change", ["put", "delete"])
def test_a_name_whose_version_was_used_up_by_a_liar_is_refused_with_the_reason(change: str) -> None:
    known = DeploymentMap([replace(ENTRY, version=Version(MAX_COUNTER - 1, "f" * 16))])
    with pytest.raises(UsageError, match="'net' can be changed no more"):
        known.put("0" * 16, "net", "1" * 64, 5, DeployOptions()) if change == "put" else known.delete(
            "0" * 16, "net"
        )
    assert [entry.version.counter for entry in known] == [MAX_COUNTER - 1]


def test_an_incarnation_that_cannot_be_read_costs_no_term(tmp_path: Path) -> None:
    (tmp_path / "term.json").write_text(json.dumps({"term": 7 << 24, "incarnation": 2**70}))
    files = StateFiles(tmp_path)
    assert (files.term, files.incarnation) == (7 << 24, 0)
    assert "incarnation" in files.damaged[0]
