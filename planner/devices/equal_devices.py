"""Twins: boxes of equal hardware that measured themselves nearly equally fast are taken to be equal. Rules.

A calibration of two seconds is right within a few parts in a hundred for what takes long, and within a third for the
shortest kernels. Divided by such numbers a model is divided unequally over boxes that are equal, and the unluckiest one
holds up all others. What all of them measured together is better known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from edgepart.planner.devices.cluster import Device

TWIN = 1.12
"""Boxes of one kind whose convolutions are at most so many times as fast are equally fast. What is throttled or has another
clock is further off; what is not is told apart by its drift, once it serves."""


def levelled(devices: Sequence[Device]) -> tuple[Device, ...]:
    """The same devices in the same order, each with the medians of its equals; memory stays its own."""
    found: dict[str, Device] = {}
    for group in _groups(devices):
        found |= {device.name: _level(device, group) for device in group}
    return tuple(found[device.name] for device in devices)


def _groups(devices: Iterable[Device]) -> list[list[Device]]:
    """Equals, slowest first: no device is `TWIN` times as fast as the slowest of its group."""
    groups: list[list[Device]] = []
    for device in sorted(devices, key=lambda one: (one.kind, one.threads, one.flops_per_s, one.name)):
        first = groups[-1][0] if groups else None
        if (
            first is not None
            and (first.kind, first.threads) == (device.kind, device.threads)
            and device.flops_per_s <= TWIN * first.flops_per_s
        ):
            groups[-1].append(device)
        else:
            groups.append([device])
    return groups


def _level(device: Device, group: Sequence[Device]) -> Device:
    if len(group) == 1:
        return device
    return replace(
        device,
        flops_per_s=median(one.flops_per_s for one in group),
        memory_bytes_per_s=median(one.memory_bytes_per_s for one in group),
        segment_s=median(one.segment_s for one in group),
        kernel_s=median(one.kernel_s for one in group),
        families=_medians([one.families for one in group]),
        moves=_medians([one.moves for one in group]),
    )


def _medians(rates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of what any of them measured."""
    names = dict.fromkeys(name for one in rates for name in one)
    return {name: median(one[name] for one in rates if name in one) for name in names}
