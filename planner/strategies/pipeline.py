"""Pipeline: the model's layers in stages, each whole on a device of its own, in the order and at the places
that make the busiest device the least busy (fitting_stages.py). One request does not become faster; many do,
as the stages work on different requests at the same time. No device needs the memory for all layers.

A device is busy with a stage for the longest of computing it, receiving what crosses into it and sending what
crosses out of it. For a chain of layers this is exact. If a tensor is read several stages later, the stages
between are charged for it although it does not pass through them; the simulation does not do so, and decides
how many devices take part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.fitting_stages import emptiest_stages, quickest_stages
from edgepart.planner.strategies.registry import register
from edgepart.planner.strategies.single import run_alone

TIGHT = "no stages at places that are good for speed were found to fit; "


@register("pipeline")
def candidates(study: Study) -> Iterator[Strategy]:
    """Yield the best stages for two devices, for three, and so on; each device alone if the model cannot be cut."""
    made = 0
    for strategy in place_in_stages(study):
        made += 1
        yield strategy
    if not made:
        several = len(study.memo.by_speed) > 1
        because = "there is no place to part the model for several devices; " if several else ""
        for device in study.memo.by_speed:
            yield run_alone(study, device, "pipeline", because)


def place_in_stages(study: Study, name: str = "pipeline", devices: Sequence[str] = ()) -> Iterator[Strategy]:
    """Yield strategies with stages on two or more of `devices`, or of all devices; fewer devices first. If none of them
    fits, those follow that leave the fullest device the least full."""
    devices = devices or study.memo.by_speed
    fitted = False
    for strategy in quickest_stages(study, name, devices):
        yield strategy
        fitted = fitted or not study.scorer.short_bytes(strategy)
    if not fitted and len(devices) > 1 and study.memo.cut_points:
        yield from emptiest_stages(study, name, devices, because=TIGHT)
