"""The whole model on one device, the best one by simulation: the baseline of all other strategies."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from edgepart.planner.figures import format_seconds
from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.search.lower_bound import lower_bound_s
from edgepart.planner.search.memo import Memo
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.registry import register


@register("single")
def candidates(study: Study) -> Iterator[Strategy]:
    """Yield each device alone; transfers from and to the gateway count."""
    yield from singles(study)


def singles(study: Study, name: str = "single") -> Iterator[Strategy]:
    """Yield each device that may be the best alone, the fastest first: one of several equal devices, and none
    whose computing or transfers alone take longer than a whole request on a faster one."""
    first = dict[Hashable, str]()
    for device in study.memo.by_speed:
        first.setdefault(kind(study.memo, device), device)
    best = float("inf")
    for device in first.values():
        strategy = run_alone(study, device, name)
        if best < float("inf") and lower_bound_s(study, strategy) > best:
            continue
        yield strategy
        if not study.scorer.short_bytes(strategy):
            best = min(best, study.scorer.score(strategy))


def kind(memo: Memo, device: str) -> Hashable:
    """A key that is equal for devices that take the same time for the whole model and have the same memory for it."""
    cluster, gateway = memo.cluster, memo.problem.gateway
    ways = (gateway, device), (device, gateway)
    links = tuple(
        (cluster.link(*way), *(cluster.crossings(m, *way) for m in cluster.media), cluster.hops(*way)[1:])
        for way in ways
    )
    here = cluster.device(device)
    cards = cluster.sending_bytes_per_s[device], cluster.receiving_bytes_per_s[device]
    limits = cards, memo.limit_bytes(device)
    return links, limits, here.kind, here.threads, memo.whole_s[device], str(here.engines)


def holds(study: Study, device: str) -> bool:
    """Whether the device has the memory for the whole model."""
    threads = study.memo.cluster.device(device).threads
    like = next(name for name in study.memo.by_speed if study.memo.cluster.device(name).threads == threads)
    one, limit = run_alone(study, like), study.memo.limit_bytes(device)
    peak = (
        max(study.scorer.outline(one).peak_memory_bytes.values(), default=0)
        + study.memo.chain_costs.inner_bytes
    )
    if peak <= limit:
        return True
    # The exact peak, too, is the same for all devices with as many threads.
    return max(study.scorer.forecast(one).peak_memory_bytes.values(), default=0) <= limit


def run_alone(study: Study, device: str, name: str = "single", because: str = "") -> Strategy:
    """The strategy that runs everything on `device`."""
    takes_s = study.memo.whole_s[device]
    if study.memo.cluster.device(
        device
    ).engines:  # What engines need to start and to copy is not in the sum over operators.
        made = study.candidates.make(name, study.candidates.keep_whole(device), because)
        takes_s = study.scorer.outline(made).compute_s[device]
    why = f"computing the whole model on {device} takes {format_seconds(takes_s)}"
    if device != study.memo.problem.gateway:
        why += f"; requests travel to it from {study.memo.problem.gateway}"
    return study.candidates.make(name, study.candidates.keep_whole(device), because + why)
