"""The catalogue that comes with the program, what is refused of others, and the cluster with what was bought."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.cli.planning.advise import CATALOGUE, read_offers
from edgepart.planner.devices.boards import KINDS, PLAN_MEMORY_SHARE
from edgepart.planner.devices.cluster import Cluster, Device, Link, Medium
from edgepart.planner.devices.offers import (
    BoxOffer,
    MemoryOffer,
    NetworkOffer,
    Offer,
    Purchase,
    buy,
    offers_from_json,
    purchases_for,
    replaces_something,
)
from edgepart.planner.errors import UsageError

WIFI = Link(5e6, 3e-3, 1e-4)
CLUSTER = Cluster(
    (Device("a", "chip", 1e9, 1e9, 1e9), Device("b", "other", 2e9, 1e9, 1e9)),
    {("a", "b"): WIFI},
    Link(1.17e8, 2e-4),
    (Medium("air", 6e6, frozenset("ab"), relayed=True),),
)
BOX = BoxOffer("Pi", 100, "2026-02", "shop", "pi5", 8e9, 1e8, 5e-4, ("bcm2712",))
SWITCH = NetworkOffer("switch", 20, "2026-02", "shop", 5, 1e8, 2e-4)
MODULE = MemoryOffer("module", 30, "2026-02", "shop", ("other",), 16e9)


@pytest.mark.parametrize("offer", read_offers(CATALOGUE), ids=str)
def test_each_price_has_a_month_and_a_source(offer: Offer) -> None:
    assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", offer.dated) and len(offer.source) > 20
    assert offer.price_eur % 5 == 0, "a price is rounded"
    if isinstance(offer, BoxOffer):
        assert offer.kind in KINDS


GOOD: dict[str, Any] = {"what": "box", "name": "x", "price_eur": 1, "dated": "2026-02", "source": "s", "kind": "pi5",
                        "memory_bytes": 1e9, "bytes_per_s": 1e8, "latency_s": 0}  # fmt: skip


def catalogue(**changed: Any) -> dict[str, Any]:
    return {"schema": "edgepart-catalogue/1", "offers": [{**GOOD, **changed}]}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "catalogue: expected an object"),
        ({"schema": "else"}, "'schema'"),
        ({"schema": "edgepart-catalogue/1"}, "'offers'"),
        ({"schema": "edgepart-catalogue/1", "offers": []}, "0 offers"),
        ({"schema": "edgepart-catalogue/1", "offers": [GOOD, GOOD]}, "share a name"),
        (catalogue(what="boat"), r"offers\[0\].*'boat'"),
        (catalogue(price_eur=-1), r"offers\[0\].*'price_eur'"),
        (catalogue(price_eur=float("nan")), r"offers\[0\].*'price_eur'"),
        (catalogue(memory_bytes="8G"), r"offers\[0\].*'memory_bytes'"),
        (catalogue(known_as=[3]), r"offers\[0\].*'known_as'"),
        (catalogue(what="network"), r"offers\[0\].*'each_eur'"),
        (catalogue(what="memory"), r"offers\[0\].*'kinds'"),
    ],
)
def test_what_is_wrong_is_named(document: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        offers_from_json(document)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(GOOD)), inner, max_size=9)
    ),
)


@given(JSON, st.sampled_from(["box", "network", "memory"]), st.sampled_from(sorted(GOOD)))
def test_whatever_stands_in_a_catalogue_is_read_or_refused(value: Any, what: str, key: str) -> None:
    document = catalogue(**{"what": what, "each_eur": 1, "kinds": ["k"], key: value})
    try:
        (offer,) = offers_from_json(document)
    except UsageError:
        return
    assert offer.price_eur >= 0 and offer.name


def test_a_box_of_a_kind_that_nobody_knows_is_refused() -> None:
    (unknown,) = offers_from_json(catalogue(kind="abacus"))
    with pytest.raises(UsageError, match="abacus"):
        list(purchases_for(CLUSTER, [unknown]))
    (mine,) = offers_from_json(catalogue(kind="chip"))
    assert list(purchases_for(CLUSTER, [mine])) == [Purchase(mine, 1)]


def test_a_box_joins_where_the_gateway_is_as_fast_as_its_port() -> None:
    bought, new = buy(CLUSTER, "a", [Purchase(BOX, 100)])
    (name,) = new
    assert bought.link("a", name) == bought.link("b", name) == WIFI
    assert bought.media[0].devices == {"a", "b", name}
    assert bought.device(name) == KINDS["pi5"].device(name, 8e9)
    wired = Cluster(CLUSTER.devices, {}, Link(1e9, 1e-4))
    bought, _ = buy(wired, "a", [Purchase(BOX, 100)])
    assert (bought.link("a", name).bytes_per_s, bought.link("a", name).latency_s) == (1e8, 5e-4)
    assert bought.link("a", "b") == wired.link("a", "b")


def test_what_the_cluster_measured_of_such_a_box_counts() -> None:
    measured = Device("p", "bcm2712", 7e9, 6e9, 5e9)
    bought, new = buy(Cluster((*CLUSTER.devices, measured)), "a", [Purchase(BOX, 100), Purchase(BOX, 100)])
    assert len(new) == 2
    for name in new:
        assert bought.device(name).flops_per_s == 7e9
        assert bought.device(name).memory_bytes == PLAN_MEMORY_SHARE * 8e9


def test_a_network_takes_the_place_of_slower_links_only() -> None:
    links = {("a", "b"): WIFI, ("a", "c"): Link(3e8, 1e-4)}
    three = Cluster((*CLUSTER.devices, Device("c", "k", 1e9, 1e9, 1e9)), links, media=CLUSTER.media)
    bought, new = buy(three, "a", [Purchase(BOX, 100), Purchase(SWITCH, 35)])
    assert bought.link("a", "b") == Link(1e8, 2e-4, WIFI.message_s) and bought.media == ()
    assert bought.link("a", "c") == links["a", "c"]
    assert bought.link("b", "c") == three.default_link
    (name,) = new
    assert bought.link("b", name) == Link(1e8, 5e-4, WIFI.message_s), (
        "by the new network, though it came first"
    )
    assert [one.price_eur for one in purchases_for(three, [SWITCH])] == [20 + 3 * 5]


def test_a_network_takes_the_place_of_the_slower_direction_of_a_link() -> None:
    fast = Link(3e8, 1e-4)
    for slow, other in (("a", "b"), ("b", "a")):
        cluster = Cluster(CLUSTER.devices, {(slow, other): WIFI, (other, slow): fast})
        bought, _ = buy(cluster, "a", [Purchase(SWITCH, 30)])
        assert replaces_something(SWITCH, cluster)
        assert bought.link(slow, other).bytes_per_s == SWITCH.bytes_per_s
        assert bought.link(other, slow) == fast


def test_what_leads_over_other_boxes_does_so_for_a_new_box_until_a_network_links_all() -> None:
    links = {("a", "c"): Link(3e8, 1e-4), ("c", "b"): WIFI, ("a", "b"): WIFI}
    routes = {("a", "b"): ("a", "c", "b"), ("b", "a"): ("b", "c", "a")}
    cluster = Cluster((*CLUSTER.devices, Device("c", "k", 1e9, 1e9, 1e9)), links, routes=routes)
    bought, (name,) = buy(cluster, "a", [Purchase(BOX, 100)])
    assert bought.hops(name, "b") == ((name, "c"), ("c", "b")) and bought.hops(name, "a") == ((name, "a"),)
    assert bought.link(name, "b").bytes_per_s == WIFI.bytes_per_s
    bought, (name,) = buy(cluster, "a", [Purchase(BOX, 100), Purchase(SWITCH, 35)])
    assert not bought.routes and bought.link(name, "b").bytes_per_s == SWITCH.bytes_per_s


@pytest.mark.parametrize(
    ("cluster", "better"),
    [(CLUSTER, True), (CLUSTER.only(("a",)), False), (Cluster(CLUSTER.devices, {}, Link(1e8, 2e-4)), False)],
    ids=["Wi-Fi", "one box", "as fast"],
)
def test_a_network_that_replaces_nothing_is_known(cluster: Cluster, better: bool) -> None:
    assert replaces_something(SWITCH, cluster) is better


def test_memory_is_for_each_box_that_can_take_it_and_has_less() -> None:
    (one,) = purchases_for(CLUSTER, [MODULE])
    assert (one.device, str(one)) == ("b", "module for b")
    bought, new = buy(CLUSTER, "a", [one])
    assert not new and bought.device("b").memory_bytes == PLAN_MEMORY_SHARE * 16e9
    assert bought.device("a") == CLUSTER.device("a")
    assert list(purchases_for(bought, [MODULE])) == []


def test_the_shipped_file_is_plain_json_without_surprises() -> None:
    document = json.loads(CATALOGUE.read_text())
    assert offers_from_json(document) == read_offers(CATALOGUE)
