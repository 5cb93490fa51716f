"""The whole model on one device, the best one by simulation: what everything else is measured against."""

from __future__ import annotations

from collections.abc import Iterator

from edgepart.planner.layout import Strategy
from edgepart.planner.strategies import register
from edgepart.planner.study import Study


@register("single")
def candidates(study: Study) -> Iterator[Strategy]:
    """Each device alone, its way to and from the gateway counted."""
    for device in study.by_speed:
        yield alone(study, device)


def alone(study: Study, device: str, name: str = "single", because: str = "") -> Strategy:
    """Everything on `device`."""
    why = f"the whole model runs on {device}, which computes it in {study.whole_s[device] * 1e3:.3g} ms"
    if device != study.problem.gateway:
        why += f"; requests travel to it from {study.problem.gateway}"
    return study.strategy(name, study.whole(device), because + why)
