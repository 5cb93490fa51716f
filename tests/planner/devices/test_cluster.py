"""cluster.json: media, and clusters that a what-if asks about."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.planner.devices.cluster import Cluster, Device, Link, Medium
from edgepart.planner.devices.cluster_json import cluster_from_json, cluster_to_json
from edgepart.planner.errors import UsageError

DEVICES = tuple(Device(name, "k", 1e9, 1e9, 1e9) for name in "abc")
SLOW, FAST, UPLINK = Link(1e6, 1e-3), Link(1e8, 1e-4), Link(1e7, 1e-3)
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
    def both(cluster: Cluster) -> tuple[Mapping[str, float], Mapping[str, float]]:
        return cluster.sending_bytes_per_s, cluster.receiving_bytes_per_s

    assert both(CLUSTER) == ({"a": 1e8, "b": 1e8, "c": 1e8},) * 2
    far = {("a", "b"): SLOW, ("b", "c"): SLOW}
    assert both(Cluster(DEVICES, far, FAST)) == ({"a": 1e8, "b": 1e6, "c": 1e8},) * 2
    assert both(Cluster(DEVICES, far | {("c", "a"): SLOW}, FAST)) == (dict.fromkeys("abc", 1e6),) * 2
    one_way = Cluster(DEVICES[:2], {("a", "b"): SLOW, ("b", "a"): FAST})
    assert both(one_way) == ({"a": 1e6, "b": 1e8}, {"a": 1e8, "b": 1e6})


def test_a_link_may_have_two_directions() -> None:
    device = cluster_to_json(Cluster(DEVICES[:2]))
    link = {"a": "a", "b": "b", "bytes_per_s": 1e6, "latency_s": 1e-3, "message_s": 5e-5}
    found = cluster_from_json(device | {"links": [link | {"up_bytes_per_s": 1e8}]})
    assert found.link("a", "b") == SLOW and found.link("b", "a") == replace(SLOW, bytes_per_s=1e8)
    assert cluster_to_json(found)["links"] == [link | {"up_bytes_per_s": 1e8}]
    assert cluster_from_json(device | {"links": [link]}).link("b", "a") == SLOW
    assert cluster_to_json(cluster_from_json(device | {"links": [link]}))["links"] == [link]


@given(
    st.dictionaries(
        st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), st.sampled_from([SLOW, FAST, UPLINK])
    )
)
def test_links_come_back_from_json_in_both_directions(links: dict[tuple[str, str], Link]) -> None:
    cluster = Cluster(DEVICES, links, FAST)
    assert cluster_from_json(json.loads(json.dumps(cluster_to_json(cluster)))) == cluster


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ([{"down_bytes_per_s": 1e6}], "no 'down_bytes_per_s'.*'bytes_per_s' is the rate from a to b"),
        ([{"bandwidth": 1e6}], "no 'bandwidth'"),
        ([{"up_bytes_per_s": 0}], "positive number under 'up_bytes_per_s'"),
        (
            [{"up_bytes_per_s": 1e6}, {"a": "b", "b": "a"}],
            r"links\[0\]: another link says how 'b' sends to 'a'",
        ),
    ],
)
def test_what_a_link_cannot_say_is_an_error(links: list[dict[str, Any]], message: str) -> None:
    given = [{"a": "a", "b": "b", "bytes_per_s": 1e6, "latency_s": 0.0} | link for link in links]
    with pytest.raises(UsageError, match=message):
        cluster_from_json(cluster_to_json(Cluster(DEVICES)) | {"links": given})


CHAIN = {
    "devices": cluster_to_json(Cluster(DEVICES))["devices"],
    "links": [
        {"a": "a", "b": "b", "bytes_per_s": 1e7, "latency_s": 1e-3, "message_s": 1e-5, "up_bytes_per_s": 4e6},
        {"a": "b", "b": "c", "bytes_per_s": 5e6, "latency_s": 2e-3, "message_s": 2e-5},
    ],
    "default_link": None,
}
"""b stands between a and c."""


def test_a_device_that_only_another_one_reaches_has_a_link_over_it() -> None:
    found = cluster_from_json(CHAIN)
    assert found.link("a", "c") == Link(5e6, 3e-3, 2e-5)
    assert found.link("c", "a") == Link(4e6, 3e-3, 2e-5)
    assert found.link("a", "b") == Link(1e7, 1e-3, 1e-5)
    assert found.hops("a", "c") == (("a", "b"), ("b", "c")) and found.hops("a", "b") == (("a", "b"),)
    assert cluster_from_json(json.loads(json.dumps(cluster_to_json(found)))) == found
    both = Medium("air", 1e7, frozenset("b"), relayed=True)
    assert found.crossings(both, "a", "c") == 2 and found.crossings(both, "a", "b") == 1


def test_what_becomes_of_links_over_others() -> None:
    found = cluster_from_json(CHAIN)
    assert found.only(("a", "c")).link("a", "c") == found.link("a", "c")
    assert found.only(("a", "c")).hops("a", "c") == (("a", "c"),)
    assert found.only(("c", "b", "a")).routes == found.routes
    assert found.faster(2.0).link("c", "a").bytes_per_s == 8e6
    more = found.with_copy_of("a", "d")
    assert more.hops("c", "d") == (("c", "b"), ("b", "d")) and more.link("c", "d") == found.link("c", "a")


def test_where_no_way_leads_is_said() -> None:
    with pytest.raises(UsageError, match="no link leads from 'a' to 'c', over others neither"):
        cluster_from_json(CHAIN | {"links": CHAIN["links"][:1]})


def test_a_link_between_no_devices_has_one_direction() -> None:
    default = {"bytes_per_s": 1e6, "latency_s": 0.0, "up_bytes_per_s": 1e8}
    with pytest.raises(UsageError, match="default_link: a link has no 'up_bytes_per_s'"):
        cluster_from_json(cluster_to_json(Cluster(DEVICES)) | {"default_link": default})


def test_some_devices_keep_their_part_of_the_media() -> None:
    part = CLUSTER.only(("c", "a"))
    assert part.media == (Medium("wifi", 2e6, frozenset({"a"}), relayed=True), CABLE)
    assert CLUSTER.only(("c",)).media == ()


def test_one_more_device_is_linked_like_the_one_it_is_like() -> None:
    more = CLUSTER.with_copy_of("a", "d")
    assert more.device("d") == Device("d", "k", 1e9, 1e9, 1e9)
    assert more.link("d", "b") == SLOW and more.link("c", "d") == FAST and more.link("a", "d") == FAST
    assert more.link("b", "d") == SLOW and more.link("d", "c") == FAST
    assert more.media[0].devices == {"a", "b", "d"}
    assert more.media[1].links == {("a", "c"), ("d", "c")}


def test_one_more_device_is_linked_in_both_directions() -> None:
    more = Cluster(DEVICES, {("a", "b"): SLOW, ("b", "a"): UPLINK}, FAST).with_copy_of("a", "d")
    assert (more.link("d", "b"), more.link("b", "d")) == (SLOW, UPLINK)
    assert more.link("a", "d") == more.link("d", "a") == FAST


def test_a_faster_network_is_faster_everywhere() -> None:
    fast = CLUSTER.faster(2.0)
    assert fast.link("a", "b") == Link(2e6, 1e-3) and fast.link("b", "c") == Link(2e8, 1e-4)
    assert [medium.bytes_per_s for medium in fast.media] == [4e6, 1e8]
    assert fast.devices == CLUSTER.devices
