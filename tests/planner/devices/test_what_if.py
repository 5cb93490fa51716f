"""Clusters as they would be; and that each kind of the catalogue says where its figures come from."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from edgepart.planner.devices.boards import KINDS, PLAN_MEMORY_SHARE, BoardKind
from edgepart.planner.devices.cluster import Cluster, Device, Link, Medium
from edgepart.planner.devices.cluster_json import cluster_from_json, cluster_to_json
from edgepart.planner.devices.what_if import (
    UNCHANGED,
    Addition,
    add_device,
    cluster_variants,
    parse_addition,
    parse_rate,
    parse_rates,
    remove_device,
    set_link_rates,
)
from edgepart.planner.errors import UsageError

CLUSTER = Cluster(
    (Device("a", "board", 1e9, 1e9, 1e9), Device("b", "board", 1e9, 1e9, 1e9)),
    {("a", "b"): Link(1e6, 1e-3)},
    Link(1e8, 2e-4),
    (Medium("air", 1e6, frozenset("ab")),),
)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_figure_has_a_source(kind: BoardKind) -> None:
    for source in (kind.flops_source, kind.memory_source):
        assert re.search(r"https://\S+|as in the next source", source) and re.search(r"\d", source)
    device = kind.device("x")
    assert device.kind == kind.name and 1e9 < device.flops_per_s < 1e12
    assert (
        1e9 < device.memory_bytes_per_s < 1e11
        and device.memory_bytes == PLAN_MEMORY_SHARE * kind.memory_bytes
    )
    assert kind.device("x", 1e9).memory_bytes == PLAN_MEMORY_SHARE * 1e9


def test_a_figure_is_what_its_source_says() -> None:
    assert KINDS["pi5"].flops_per_s == pytest.approx(2 * 30.249e9)
    assert KINDS["pi5"].memory_bytes_per_s == pytest.approx(2 * 4447.8e6)
    assert KINDS["jetson-orin-nano"].flops_per_s == pytest.approx(144e9 * 30.249 / 76.8)


def test_an_addition_is_linked_as_it_says() -> None:
    one = parse_addition("kind=pi5,link=1Gbit/s,name=new,memory=4G", CLUSTER)
    (_, found) = cluster_variants(CLUSTER, [one], [], [], "a")
    assert [d.name for d in found.cluster.devices] == ["a", "b", "new"] and found.what == "+ new (pi5)"
    assert found.cluster.link("new", "a") == Link(1.25e8, 2e-4, CLUSTER.default_link.message_s)
    assert found.cluster.link("a", "b") == CLUSTER.link("a", "b")
    assert found.cluster.device("new").memory_bytes == PLAN_MEMORY_SHARE * 4e9
    plain = parse_addition("kind=n100", CLUSTER)
    assert plain.name == "n100-1" and plain.bytes_per_s is None


def test_a_kind_that_is_there_is_as_measured_there() -> None:
    drifted = replace(CLUSTER, devices=(CLUSTER.devices[0].with_drift(2.0), CLUSTER.devices[1]))
    (_, found) = cluster_variants(drifted, [parse_addition("kind=board", drifted)], [], [], "a")
    assert found.cluster.device("board-1") == replace(CLUSTER.devices[0], name="board-1")
    larger = parse_addition("kind=board,memory=8G", drifted)
    (_, found) = cluster_variants(drifted, [larger], [], [], "a")
    assert found.cluster.device("board-1").memory_bytes == PLAN_MEMORY_SHARE * 8e9


def test_variants_are_each_change_and_all_of_them() -> None:
    added = [parse_addition("kind=pi4", CLUSTER), parse_addition("kind=pi5", CLUSTER)]
    found = list(cluster_variants(CLUSTER, added, ["b"], [1e7], "a"))
    whole = "+ pi4-1 (pi4) + pi5-1 (pi5) - b"
    assert [(v.what, v.bits_per_s) for v in found] == [
        (UNCHANGED, None),
        ("+ pi4-1 (pi4)", None),
        ("+ pi5-1 (pi5)", None),
        ("- b", None),
        (whole, None),
        (UNCHANGED, 1e7),
        (whole, 1e7),
    ]
    assert [d.name for d in found[-1].cluster.devices] == ["a", "pi4-1", "pi5-1"]
    swept = set_link_rates(CLUSTER, 5.0)
    assert swept.link("a", "b") == Link(5.0, 1e-3) and swept.media[0].bytes_per_s == 5.0
    assert swept.default_link == Link(5.0, 2e-4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pi5", "write it as"),
        ("kind=pi5,colour=red", "write it as"),
        ("kind=pi5,kind=pi4", "write it as"),
        ("kind=cray", "no kind 'cray'; there are .*board"),
        ("link=1G", "no kind ''"),
        ("kind=pi5,name=a", "there is a device 'a'"),
        ("kind=pi5,link=fast", "'fast' is not a rate"),
        ("kind=pi5,link=0", "'0' is not a rate"),
        ("kind=pi5,memory=0", "is not a size"),
    ],
)
def test_what_is_no_addition_is_said(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_addition(text, CLUSTER)


def test_a_cluster_without_a_default_link_keeps_its_ways() -> None:
    names = ["a", "b", "c"]
    devices = cluster_to_json(Cluster(tuple(Device(name, "k", 1e9, 1e9, 1e9) for name in names)))["devices"]
    links = [{"a": a, "b": b, "bytes_per_s": 1e7, "latency_s": 0.0} for a, b in ("ab", "bc")]
    chain = cluster_from_json({"devices": devices, "links": links, "default_link": None})
    with pytest.raises(UsageError, match="--remove b: a reaches c only over it"):
        remove_device(chain, "b")
    assert remove_device(chain, "c").routes == {}
    with pytest.raises(UsageError, match="the cluster has no default link"):
        add_device(chain, Addition("pi5", "d"))
    assert add_device(chain, Addition("pi5", "d", 2e7)).link("c", "d").bytes_per_s == 2e7


def test_what_cannot_be_removed_or_swept_is_said() -> None:
    for removed, said in (
        (["c"], "no device 'c'"),
        (["a"], "requests come in there"),
        (["b", "b"], "no device"),
    ):
        with pytest.raises(UsageError, match=said):
            list(cluster_variants(CLUSTER, [], removed, [], "a"))
    twice = parse_addition("kind=pi5,name=x", CLUSTER)
    with pytest.raises(UsageError, match="two devices"):
        list(cluster_variants(CLUSTER, [twice, twice], [], [], "a"))
    for text in ("10M", "speed=1", "links=", "links=1M,,2M"):
        with pytest.raises(UsageError, match="--sweep"):
            parse_rates(text)
    assert parse_rate(" 2.5 Gbps", "--add") == 2.5e9
