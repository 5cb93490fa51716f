"""cluster.json: media, and clusters that a what-if asks about."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgepart.planner.devices.cluster import Cluster, Device, Link, Medium, cluster_from_json, cluster_to_json
from edgepart.planner.errors import UsageError

DEVICES = tuple(Device(name, "k", 1e9, 1e9, 1e9) for name in "abc")
SLOW, FAST = Link(1e6, 1e-3), Link(1e8, 1e-4)
WIFI = Medium("wifi", 2e6, frozenset({"a", "b"}), relayed=True)
CABLE = Medium("cable", 5e7, links=frozenset({("a", "c")}))
CLUSTER = Cluster(DEVICES, {("a", "b"): SLOW}, FAST, (WIFI, CABLE))


def test_media_are_in_the_json_and_optional() -> None:
    document = json.loads(json.dumps(cluster_to_json(CLUSTER)))
    assert cluster_from_json(document) == CLUSTER
    assert document["media"][0] == {
        "name": "wifi", "bytes_per_s": 2e6, "devices": ["a", "b"], "links": [], "relayed": True,
    }  # fmt: skip
    assert "media" not in cluster_to_json(Cluster(DEVICES))
    assert cluster_from_json({k: v for k, v in document.items() if k != "media"}).media == ()


@pytest.mark.parametrize(
    ("medium", "message"),
    [
        ({"bytes_per_s": 1, "devices": ["a"]}, "name"),
        ({"name": "m", "devices": ["a"]}, "bytes_per_s"),
        ({"name": "m", "bytes_per_s": 0, "devices": ["a"]}, "bytes_per_s"),
        ({"name": "m", "bytes_per_s": 1}, "devices"),
        ({"name": "m", "bytes_per_s": 1, "devices": [3]}, "devices"),
        ({"name": "m", "bytes_per_s": 1, "links": [["a"]]}, "links"),
        ({"name": "m", "bytes_per_s": 1, "links": ["ab"]}, "links"),
        ({"name": "m", "bytes_per_s": 1, "devices": ["z"]}, "'z'"),
        ({"name": "m", "bytes_per_s": 1, "devices": ["a"], "relayed": "no"}, "relayed"),
        ([], "media"),
    ],
)
def test_a_medium_that_is_none_is_refused(medium: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        cluster_from_json(cluster_to_json(Cluster(DEVICES)) | {"media": [medium]})


def test_two_media_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="wifi"):
        Cluster(DEVICES, media=(WIFI, Medium("wifi", 1.0, frozenset("c"))))


def test_what_crosses_a_medium() -> None:
    assert [WIFI.crossings(*pair) for pair in ("ab", "ac", "cb", "cc")] == [2, 1, 1, 0]
    assert [CABLE.crossings(*pair) for pair in ("ac", "ca", "ab")] == [1, 1, 0]


def test_a_card_is_as_fast_as_the_fastest_link_of_its_device() -> None:
    assert CLUSTER.card_bytes_per_s == {"a": 1e8, "b": 1e8, "c": 1e8}
    far = {("a", "b"): SLOW, ("b", "c"): SLOW}
    assert Cluster(DEVICES, far, FAST).card_bytes_per_s == {"a": 1e8, "b": 1e6, "c": 1e8}
    assert Cluster(DEVICES, far | {("c", "a"): SLOW}, FAST).card_bytes_per_s == dict.fromkeys("abc", 1e6)


def test_some_devices_keep_their_part_of_the_media() -> None:
    part = CLUSTER.only(("c", "a"))
    assert part.media == (Medium("wifi", 2e6, frozenset({"a"}), relayed=True), CABLE)
    assert CLUSTER.only(("c",)).media == ()


def test_one_more_device_is_linked_like_the_one_it_is_like() -> None:
    more = CLUSTER.with_copy_of("a", "d")
    assert more.device("d") == Device("d", "k", 1e9, 1e9, 1e9)
    assert more.link("d", "b") == SLOW and more.link("c", "d") == FAST and more.link("a", "d") == FAST
    assert more.media[0].devices == {"a", "b", "d"}
    assert more.media[1].links == {("a", "c"), ("d", "c")}


def test_a_faster_network_is_faster_everywhere() -> None:
    fast = CLUSTER.faster(2.0)
    assert fast.link("a", "b") == Link(2e6, 1e-3) and fast.link("b", "c") == Link(2e8, 1e-4)
    assert [medium.bytes_per_s for medium in fast.media] == [4e6, 1e8]
    assert fast.devices == CLUSTER.devices
