"""Equal devices: devices of equal hardware that measured nearly equal speeds get the same figures. Pure rules.

A calibration of two seconds is right within a few percent for long kernels, and within a third for the
shortest kernels. Figures with such errors would divide a model unequally over equal devices, and the device
with too large a part would delay all others. The medians over all equal devices are more exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from edgepart.planner.devices.cluster import Device
from edgepart.planner.devices.engine import Engine

EQUAL_SPEED_FACTOR = 1.12
"""Devices of one kind whose FLOP/s on convolutions differ by at most this factor count as equal. Devices that
are throttled or have another clock differ by more. A smaller difference shows as drift once the device serves
requests."""


def equalise_devices(devices: Sequence[Device]) -> tuple[Device, ...]:
    """The same devices in the same order, each with its own memory and the median of each other figure over
    its equals."""
    found: dict[str, Device] = {}
    for group in _groups(devices):
        found |= {device.name: _equalise(device, group) for device in group}
    return tuple(found[device.name] for device in devices)


def _groups(devices: Iterable[Device]) -> list[list[Device]]:
    """The groups of equal devices, the slowest device first in each group. No device is more than
    `EQUAL_SPEED_FACTOR` times as fast as the slowest of its group."""
    groups: list[list[Device]] = []
    for device in sorted(devices, key=lambda one: (one.kind, one.threads, one.flops_per_s, one.name)):
        first = groups[-1][0] if groups else None
        if (
            first is not None
            and (first.kind, first.threads) == (device.kind, device.threads)
            and device.flops_per_s <= EQUAL_SPEED_FACTOR * first.flops_per_s
        ):
            groups[-1].append(device)
        else:
            groups.append([device])
    return groups


def _equalise(device: Device, group: Sequence[Device]) -> Device:
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
        engines=tuple(_equalise_engine(engine, group) for engine in device.engines),
    )


def _equalise_engine(engine: Engine, group: Sequence[Device]) -> Engine:
    """The engine with the medians over the same engine of all devices, its drift among them. What it cannot run and what it
    is refused for stays its own."""
    same = [one for device in group for one in device.engines if one.name == engine.name]
    drifts = [one.drift for one in same if one.drift != 1.0]
    same = [one.with_drift(1.0) for one in same]
    rates = [one.copy_bytes_per_s for one in same if one.copy_bytes_per_s is not None]
    families, moves = _medians([one.families for one in same]), _medians([one.moves for one in same])
    equal = replace(
        engine,
        drift=1.0,
        untried=engine.untried and not drifts,
        flops_per_s=median(one.flops_per_s for one in same),
        memory_bytes_per_s=median(one.memory_bytes_per_s for one in same),
        segment_s=median(one.segment_s for one in same),
        kernel_s=median(one.kernel_s for one in same),
        copy_s=median(one.copy_s for one in same),
        copy_bytes_per_s=median(rates) if engine.copy_bytes_per_s is not None else None,
        families={name: families[name] for name in engine.families},
        moves={name: moves[name] for name in engine.moves},
    )
    return equal.with_drift(median(drifts) if drifts else 1.0)


def _medians(rates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each rate, over the devices that measured it."""
    names = dict.fromkeys(name for one in rates for name in one)
    return {name: median(one[name] for one in rates if name in one) for name in names}
