"""Replays the answer of `edgepart plan W.json --json`, as somebody outside would: from the two documents, without
the package."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

SLACK = 1e-9
"""The relative error of sums of floats that is forgiven."""


def devices_of(workload: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The devices by name; one with `count` stands for several."""
    found = {}
    for device in workload["devices"]:
        names = (
            [f"{device['name']}{n}" for n in range(device["count"])]
            if "count" in device
            else [device["name"]]
        )
        found.update(dict.fromkeys(names, device))
    return found


def transfer_s(workload: dict[str, Any], edges: list[dict[str, Any]], here: str, there: str) -> float:
    """The seconds that a tensor takes on its way."""
    for edge in edges:
        if f"{here}->{there}" in edge.get("transfer_s", {}):
            return float(edge["transfer_s"][f"{here}->{there}"])
    way, links = way_between(workload, here, there)
    slowest = min(link["bytes_per_s"] for link in links)
    for medium in workload.get("media", []):
        rates = [
            link["bytes_per_s"]
            for hop, link in zip(pairwise(way), links, strict=True)
            if crosses(medium, *hop)
        ]
        if len(rates) > 1:
            slowest = min(slowest, 1 / sum(1 / rate for rate in rates))
    return float(sum(link.get("latency_s", 0.0) for link in links) + edges[0]["bytes"] / slowest)


def crosses(medium: dict[str, Any], a: str, b: str) -> bool:
    """Whether what goes over a link crosses the medium."""
    named = {a, b} & set(medium.get("devices", []))
    return bool(named) or any({a, b} == set(link) for link in medium.get("links", []))


def occupied(workload: dict[str, Any], here: str, there: str) -> list[tuple[str, str]]:
    """What a transfer occupies: the two sides, and along its way the devices that pass it on, and the media."""
    way, _ = way_between(workload, here, there)
    hops = list(pairwise(way))
    media = [one for one in workload.get("media", []) if any(crosses(one, *hop) for hop in hops)]
    return [
        *(("sends", a) for a, _ in hops),
        *(("receives", b) for _, b in hops),
        *(("is crossed by", one["name"]) for one in media),
    ]


def way_between(workload: dict[str, Any], here: str, there: str) -> tuple[list[str], list[dict[str, Any]]]:
    """The devices on the way from one to another, and its links: of the ways over others that there are, where the two are
    not linked, the widest, of these the one with the least latency, then with the fewest links, then the first."""
    direct = {}
    for one in workload.get("links", []):
        direct[one["a"], one["b"]] = one
        direct[one["b"], one["a"]] = {**one, "bytes_per_s": one.get("up_bytes_per_s", one["bytes_per_s"])}
    if (here, there) in direct or "default_link" in workload:
        return [here, there], [direct.get((here, there), workload.get("default_link", {}))]
    order = {name: number for number, name in enumerate(devices_of(workload))}
    ways: list[tuple[list[str], list[dict[str, Any]]]] = []
    begun: list[tuple[str, list[str], list[dict[str, Any]]]] = [(here, [here], [])]
    while begun:
        at, passed, legs = begun.pop()
        for (a, b), link in direct.items():
            if a == at and b == there:
                ways.append(([*passed, b], [*legs, link]))
            elif a == at and b not in passed:
                begun.append((b, [*passed, b], [*legs, link]))
    return min(
        ways,
        key=lambda way: (
            -min(link["bytes_per_s"] for link in way[1]),
            sum(link.get("latency_s", 0.0) for link in way[1]),
            len(way[1]),
            [order[name] for name in way[0]],
        ),
    )


def replay(workload: dict[str, Any], answer: dict[str, Any]) -> list[str]:
    """Return what is wrong with a latency answer: [] if every rule is kept and the value is what the starts and
    transfers say."""
    where, starts = answer["placement"], answer["start_s"]
    devices, nodes = devices_of(workload), {node["id"]: node for node in workload["nodes"]}
    wrong: list[str] = []
    ends: dict[str, float] = {}
    kept: dict[str, float] = defaultdict(float)
    busy: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    slack_s = SLACK * max(answer["value_s"], 1e-12)
    for name, node in nodes.items():
        device = devices[where[name]]
        costs = node.get("compute_s")
        took_s = 0.0 if costs is None else costs.get(where[name], costs.get(device.get("kind")))
        if took_s is None:
            wrong.append(f"{name} cannot run on {where[name]}")
            took_s = 0.0
        ends[name] = starts[name] + took_s
        busy["computes", where[name]].append((starts[name], ends[name]))
        kept[where[name]] += node.get("memory_bytes", 0.0)
    for used, nbytes in kept.items():
        if nbytes > devices[used].get("memory_bytes", float("inf")):
            wrong.append(f"{used} keeps too much")
    groups: dict[str, set[str]] = defaultdict(set)
    for node in workload["nodes"]:
        if node.get("colocate"):
            groups[node["colocate"]].add(where[node["id"]])
    wrong += [f"group {name} is on several devices" for name, several in groups.items() if len(several) > 1]
    wrong += _transfers(workload, answer, ends, busy, slack_s)
    for (what, where_busy), spans in busy.items():
        for (_, end_s), (start_s, _) in zip(sorted(spans), sorted(spans)[1:], strict=False):
            if start_s < end_s - slack_s:
                wrong.append(f"{where_busy} {what} two things at {start_s}")
    if abs(max(ends.values()) - answer["value_s"]) > slack_s:
        wrong.append(f"the last node ends at {max(ends.values())}, not at {answer['value_s']}")
    return wrong


def _transfers(
    workload: dict[str, Any],
    answer: dict[str, Any],
    ends: dict[str, float],
    busy: dict[tuple[str, str], list[tuple[float, float]]],
    slack_s: float,
) -> list[str]:
    """What is wrong with the transfers, and with nodes that start before they have what they read."""
    where, starts = answer["placement"], answer["start_s"]
    wrong: list[str] = []
    tensors: dict[tuple[str, Any], list[dict[str, Any]]] = defaultdict(list)
    for number, edge in enumerate(workload["edges"]):
        tensors[edge["source"], edge.get("tensor", number)].append(edge)
    arrived: dict[tuple[str, int, str], float] = {}
    for sent in answer["transfers"]:
        source, here, there = sent["source"], sent["from"], sent["to"]
        carried = [
            found
            for (writer, _), found in tensors.items()
            if writer == source
            and found[0]["bytes"] == sent["bytes"]
            and [one["target"] for one in found if where[one["target"]] == there] == sent["targets"]
            and (source, id(found), there) not in arrived
        ]
        if where[source] != here or not carried:
            wrong.append(f"{source}'s transfer to {there} carries nothing that is read there")
            continue
        arrived[source, id(carried[0]), there] = sent["end_s"]
        if sent["start_s"] < ends[source] - slack_s:
            wrong.append(f"{source}'s transfer to {there} begins before it is made")
        long_s = transfer_s(workload, carried[0], here, there)
        if abs(sent["end_s"] - sent["start_s"] - long_s) > slack_s:
            wrong.append(
                f"{source}'s transfer to {there} takes {sent['end_s'] - sent['start_s']}, not {long_s}"
            )
        for what in occupied(workload, here, there):
            busy[what].append((sent["start_s"], sent["end_s"]))
    for (source, _), edges in tensors.items():
        for edge in edges:
            there = where[edge["target"]]
            ready_s = ends[source] if there == where[source] else arrived.get((source, id(edges), there))
            if ready_s is None or starts[edge["target"]] < ready_s - slack_s:
                wrong.append(f"{edge['target']} starts before it has what {source} made")
    return wrong
