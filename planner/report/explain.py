"""Explain: a plan's `why`: what limits the plan, what it does, and what more devices or a faster network
would give. Rules only.

The limit of one request is what takes most of its critical path (planner/plans/timeline.py); the limit of
many requests is the busiest resource that they share. Possible improvements are simulated: the same plan with
a network twice as fast, and the same choices with one more device in every division; where `auto` was free to
choose, also a few plain divisions. These simulations take at most a part of the search budget; improvements
for which there is no budget are left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice

from edgepart.planner.devices.cluster import Cluster
from edgepart.planner.figures import format_bytes, format_count, format_figure, format_seconds
from edgepart.planner.layout.choices import Choice, Divide, Reduce, Shares, Whole
from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.plans.timeline import critical_path
from edgepart.planner.report.sentences import as_lines, as_sentence, phrases
from edgepart.planner.search.memo import Memo
from edgepart.planner.search.scorer import Scorer
from edgepart.planner.search.study import Study
from edgepart.planner.simulation.latency import Simulation, run_schedule
from edgepart.planner.simulation.throughput import simulate_stream
from edgepart.planner.strategies.auto import CANDIDATE_S, SHARE_S
from edgepart.planner.strategies.bbgrap import divide_along
from edgepart.planner.strategies.pipeline import place_in_stages
from edgepart.planner.strategies.replicas import make_replicas

DOMINANT_PART = 0.8
"""From this part on, the largest contribution is reported as if it were the whole."""

NETWORK_FACTOR = 2.0
"""The factor by which the network of a what-if is faster."""

NOTABLE = 0.97
"""A gain is reported only if the better score is below this factor times the present score: the error of
predictions is less than that."""

TRIAL_BUDGET_PART = 0.2
"""The part of the search budget that both what-ifs together may take."""

TRIAL_AXES = 3
"""The number of axes along which a what-if divides the model."""

ADDED_DEVICE = "one more"
"""The name of the device that a what-if adds."""


def explain_plan(study: Study, strategy: Strategy, simulation: Simulation, alone: Strategy | None) -> str:
    """The reasons for a plan, one sentence per line: first how good it is and what takes most of its time,
    then what the strategy does and what would help. `alone` is the best plan of a single device, None if no
    device has the memory."""
    reasons = phrases(strategy.why)
    if not (simulation.compute_s and simulation.latency_s):
        return as_lines(*reasons)
    limit, more = describe_bound(study, simulation)
    first = " ".join(filter(None, map(as_sentence, (_beside(study, strategy, alone), limit))))
    if strategy.name == "auto" and len(simulation.compute_s) == 1 and len(study.memo.by_speed) > 1:
        (device,) = simulation.compute_s
        first = f"runs whole on {device}: every split loses more to its links than it gains"
        more = f"{limit}; {more}" if more else limit
    return as_lines(first, *reasons, more, _memory(study, simulation), *describe_outlook(study, strategy))


def _beside(study: Study, strategy: Strategy, alone: Strategy | None) -> str:
    """How much better the strategy is than the best single device, and what to do if it is worse; "" if the strategy
    itself uses one device."""
    if alone is None or len(study.scorer.forecast(strategy).compute_s) == 1:
        return ""
    device = next(iter(study.scorer.forecast(alone).compute_s), study.memo.problem.gateway)
    times = study.scorer.score(alone) / study.scorer.score(strategy)
    many = study.memo.problem.objective == "throughput"
    advice = "" if strategy.name == "auto" else ". Use auto?"
    factor = format_figure(max(times, 1 / times))
    if factor == "1":
        return f"as {'many requests' if many else 'fast'} as {device} alone"
    if many:
        return f"{format_figure(times)}x as many requests as {device} alone{advice if times < 1 else ''}"
    return (
        f"{factor}x slower than {device} alone{advice}"
        if times < 1
        else f"{factor}x faster than {device} alone"
    )


def describe_bound(study: Study, simulation: Simulation) -> tuple[str, str]:
    """Two phrases: what takes most of the time, and what takes the rest ("" if that is little)."""
    if study.memo.problem.objective == "throughput":
        return _bound_of_many(study.scorer, simulation), ""
    computing = defaultdict[str, float](float)
    moving = defaultdict[tuple[str, str], float](float)
    gateway = study.memo.problem.gateway
    for leg in critical_path(simulation.schedule, simulation.arrivals_s):
        if leg.kind == "compute":
            computing[leg.source] += leg.seconds
        else:
            one, two = sorted((leg.source or gateway, leg.target or gateway))
            moving[one, two] += leg.seconds
    if sum(computing.values()) >= sum(moving.values()):
        return _bound_by_computing(computing, moving, simulation)
    return _bound_by_moving(moving, simulation)


def _bound_by_computing(
    computing: Mapping[str, float], moving: Mapping[tuple[str, str], float], simulation: Simulation
) -> tuple[str, str]:
    """Two phrases, as in `describe_bound`. `computing` and `moving` are seconds of the critical path, by
    device and by pair of devices."""
    computed, waited = (sum(spent.values()) / simulation.latency_s for spent in (computing, moving))
    device = max(computing, key=lambda key: computing[key])
    part = computing[device] / simulation.latency_s
    text = f"bottleneck: computing on {device} ({part:.0%})"
    if part < DOMINANT_PART * computed:
        text = f"bottleneck: computing ({computed:.0%}), most of it on {device} ({part:.0%})"
    return text, f"moving data takes {waited:.0%}" if waited >= 0.01 else ""


def _bound_by_moving(moving: Mapping[tuple[str, str], float], simulation: Simulation) -> tuple[str, str]:
    waited = sum(moving.values()) / simulation.latency_s
    link = max(moving, key=lambda key: moving[key])
    between = (
        f"between {link[0]} and {link[1]}" if link[0] != link[1] else f"to and from {link[0]}'s own gateway"
    )
    most = moving[link] / simulation.latency_s
    text = f"bottleneck: moving data {between} ({waited:.0%})"
    if most <= 0.99 * waited:
        text = f"bottleneck: moving data ({waited:.0%}), most of it {between} ({most:.0%})"
    moved = sum(simulation.sent_bytes.values()) / 1e6
    return text, f"the devices send each other {format_figure(moved)} MB" if len(
        simulation.compute_s
    ) > 1 else ""


def _bound_of_many(scorer: Scorer, simulation: Simulation) -> str:
    """A phrase that names the busiest resource that many requests share."""
    order = ("compute", "medium", "link", "send", "receive")
    many = scorer.run_stream(simulation)
    loads = simulation.loads_of(many.parts)
    busiest = max(loads, key=lambda thing: (loads[thing], -order.index(thing[0])))
    part = min(1.0, loads[busiest] * many.throughput_per_s)
    name = {
        "compute": "computing on {}",
        "medium": "the medium {}",
        "link": "the link from {} to {}",
        "send": "sending by {}",
        "receive": "receiving by {}",
    }[busiest[0]].format(*busiest[1:])
    text = f"bottleneck: {name} ({part:.0%} busy with {format_count(many.in_flight, 'request')} in flight)"
    return text if part >= DOMINANT_PART else f"{text}; requests also wait for each other"


def _memory(study: Study, simulation: Simulation) -> str:
    """A phrase about a faster plan that the devices' memory rules out; "" if it is not worth a sentence."""
    if study.scorer.too_big is None or study.memo.problem.objective == "throughput":
        return ""
    strategy, short = study.scorer.too_big
    faster = study.scorer.forecast(strategy).latency_s
    if faster > NOTABLE * simulation.latency_s:
        return ""
    device, lack = max(short.items(), key=lambda item: item[1])
    return f"with {format_bytes(lack)} more memory on {device}, a plan of {format_seconds(faster)} would fit"


def describe_outlook(study: Study, strategy: Strategy) -> list[str]:
    """Phrases that say what a network twice as fast, and one more device like the fastest, would give. One
    more device, and other plans for the faster network, are tried only if the budget allows it."""
    fastest = study.memo.by_speed[0]
    each_s = CANDIDATE_S + SHARE_S * len(study.memo.graph.operators) * (len(study.memo.by_speed) + 1) ** 1.5
    trials = int(TRIAL_BUDGET_PART / 2 * study.memo.problem.search_budget_s / each_s)
    now = study.scorer.score(strategy)
    found: list[tuple[str, float]] = []
    if len(study.memo.by_speed) > 1:
        found.append(("a network twice as fast", _with_faster_network(study, strategy, trials)))
    if trials:
        name = ADDED_DEVICE + "!" * sum(device.startswith(ADDED_DEVICE) for device in study.memo.whole_s)
        more = study.memo.cluster.with_copy_of(fastest, name)
        found.append((f"one more device like {fastest}", _best(study, more, strategy, trials)))
    gain = "as many" if study.memo.problem.objective == "throughput" else "faster"
    helpful = [
        f"with {what}: {_figure(study.memo, score)} ({format_figure(now / score)}x {gain})"
        for what, score in found
        if score < NOTABLE * now
    ]
    match [what for what, score in found if score >= NOTABLE * now]:
        case [one]:
            helpful.append(f"{one} would change little")
        case [one, other]:
            helpful.append(f"neither {one} nor {other} would change much")
    return helpful


def _figure(memo: Memo, score: float) -> str:
    if memo.problem.objective == "throughput":
        return f"{format_figure(1 / score)} requests/s"
    return format_seconds(score)


def _with_faster_network(study: Study, strategy: Strategy, trials: int) -> float:
    """The score of the same plan, or of other plans if that one leaves devices idle, on a faster network."""
    cluster, forecast = study.memo.cluster.faster(NETWORK_FACTOR), study.scorer.forecast(strategy)
    same = run_schedule(forecast.schedule, cluster, study.memo.problem.gateway)
    score = same.latency_s
    if study.memo.problem.objective == "throughput":
        in_flight = study.scorer.forecast_stream(strategy).in_flight
        score = 1 / simulate_stream(same, cluster, study.memo.problem.gateway, in_flight).throughput_per_s
    idle = len(forecast.compute_s) < len(study.memo.by_speed)
    return min(score, _best(study, cluster, strategy, trials) if idle and trials else score)


def _best(study: Study, cluster: Cluster, strategy: Strategy, trials: int) -> float:
    """The best score of at most `trials` variations of the strategy on `cluster`; inf if none fits."""
    other = study.on(replace(study.memo.problem, cluster=cluster))
    fitting = (
        s for s in islice(_variations(other, study, strategy), trials) if not other.scorer.short_bytes(s)
    )
    return min(map(other.scorer.score, fitting), default=float("inf"))


def _variations(other: Study, study: Study, strategy: Strategy) -> Iterator[Strategy]:
    """Yields variations of the strategy on another cluster: with its new device, if there is one, in every
    division. If the strategy was free to choose, also the model in stages, and divided along one axis over
    all devices and over the two fastest."""
    choices = study.candidates.choices_of(strategy)
    new = other.memo.cluster.devices[-1].name
    if new not in study.memo.whole_s and any(isinstance(c, Divide | Reduce) for c in choices.values()):
        wider = {number: _with(choice, new, study.memo.by_speed[0]) for number, choice in choices.items()}
        yield other.candidates.make(strategy.name, wider, "", strategy.sync, strategy.hub)
    if strategy.replicas and strategy.name != "auto":
        yield from make_replicas(other)
    if strategy.name != "auto":
        return
    forced = study.memo.problem.axis
    if other.memo.problem.objective == "throughput" and forced is None:
        yield from make_replicas(other)
        yield from place_in_stages(other)
    axes = (
        other.memo.axis_names[:TRIAL_AXES]
        if forced is None
        else [a for a in other.memo.axis_names if a == forced]
    )
    for axis in axes:
        for devices in dict.fromkeys((other.memo.by_speed, other.memo.by_speed[:2])):
            yield divide_along(other, axis, devices)


def _with(choice: Choice, new: str, like: str) -> Choice:
    """The choice with one more device, which gets as much as the device `like`; grids stay as they are."""
    if isinstance(choice, Divide):
        return _wider(choice, new, like)
    if isinstance(choice, Reduce):
        then = choice.then
        if isinstance(then, Whole) and len(then.devices) > 1:
            then = Whole((*then.devices, new))
        elif isinstance(then, Divide):
            then = _wider(then, new, like)
        return replace(choice, shares=_more(choice.shares, new, like), then=then)
    return choice


def _wider(choice: Divide, new: str, like: str) -> Divide:
    if choice.grid:
        return choice
    shares, axes = _more(choice.shares, new, like), choice.axes
    if len(axes) > 1 and 2 ** len(axes) < len(shares):
        axes = (*axes, axes[-1])  # halves of halves: once more
    return replace(choice, shares=shares, axes=axes)


def _more(shares: Shares, new: str, like: str) -> Shares:
    return (*shares, (new, dict(shares).get(like, max(share for _, share in shares))))
