"""`edgepart plan --advise`: what to buy next for a model on a cluster, and what would not help. Door: it reads the
catalogue, has a clock, and prints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgepart.cli.output import console, say, table
from edgepart.cli.planning.long_search import interruptible, said_now_and_then
from edgepart.planner.errors import Infeasible, UsageError
from edgepart.planner.figures import format_count, format_figure, format_seconds
from edgepart.planner.json_text import parse_json

if TYPE_CHECKING:
    from edgepart.planner.devices.cluster import Cluster
    from edgepart.planner.devices.offers import Offer, Purchase
    from edgepart.planner.layout.strategy import Problem
    from edgepart.planner.report.advice import Basket, Expected, Predict, RankedOffer

CATALOGUE = Path(__file__).with_name("catalogue.json")
"""The catalogue that comes with the program. Its prices are rounded; a list price in US dollars without tax counts as the
same number of euros with tax."""

PRICES_SAID = (
    "Prices are rounded list or shop prices of the month given, and they change: look before you buy. "
    "The speeds of boxes are published figures, further off than what a box measures itself."
)

ADVICE_SEARCH_S = 2.0
"""About how many seconds the search for a plan may take, if the user does not say: from there on all candidates of all
strategies are looked at."""


def print_advice(
    problem: Problem,
    strategy: str,
    catalogue: Path | None,
    spend_eur: float | None,
    reasons: bool,
    as_json: bool,
) -> None:
    """Prints what each offer would give, the best first, what would not help, and what to buy at once for `spend_eur`.
    Raises UsageError for a wrong catalogue."""
    document = advise(problem, strategy, catalogue, spend_eur)
    print(json.dumps(document)) if as_json else _print_tables(document, reasons)


def advise(
    problem: Problem, strategy: str, catalogue: Path | None, spend_eur: float | None
) -> dict[str, Any]:
    """The advice as a document. While it searches, stderr says how far it is."""
    from edgepart.planner.devices.offers import purchases_for
    from edgepart.planner.report.advice import Adviser

    purchases = list(purchases_for(problem.cluster, read_offers(catalogue or CATALOGUE)))
    searched: list[Expected] = []
    predict = _predictor(problem, strategy, searched)

    def news(searched_s: float) -> str:
        made, asked = format_count(len(searched), "plan"), format_count(len(purchases), "offer")
        return f"{made} made in {searched_s:.0f} s, for {asked}"

    with interruptible(), said_now_and_then(news):
        adviser = Adviser(problem.cluster, problem.gateway, predict)
        ranked = adviser.rank(purchases)
        basket = None if spend_eur is None else adviser.fill_basket(ranked, spend_eur)
    return {
        "model": problem.graph.name,
        "objective": problem.objective,
        "strategy": strategy,
        "today": _expected_document(problem.objective, adviser.today) | {"limit": adviser.today.limit},
        "offers": [_row(problem, adviser.today, one) for one in ranked],
        "spend_eur": spend_eur,
        "together": basket and _basket_document(problem.objective, adviser.today, basket),
        "prices": PRICES_SAID,
    }


def read_offers(path: Path) -> tuple[Offer, ...]:
    """The offers of a catalogue's file. Raises UsageError, which says what is wrong with it."""
    from edgepart.planner.devices.offers import offers_from_json

    try:
        return offers_from_json(parse_json(path.read_text()))
    except OSError as error:
        raise UsageError(f"--catalogue {path}: {error.strerror}; give the path of a catalogue") from error
    except ValueError as error:
        raise UsageError(f"--catalogue {path}: is not JSON ({error})") from error


def _predictor(problem: Problem, strategy: str, searched: list[Expected]) -> Predict:
    """Plans for a cluster, and adds what was found to `searched`."""
    from edgepart.planner.planner import best_strategy
    from edgepart.planner.report.advice import Expected
    from edgepart.planner.report.explain import describe_bound
    from edgepart.planner.search.study import Study

    first = Study(problem)

    def expect(cluster: Cluster) -> Expected:
        asked = replace(problem, cluster=cluster)
        study = first.on(asked)
        try:
            best = best_strategy(asked, strategy, study)
        except Infeasible as error:
            return Expected(0.0, frozenset(), str(error))
        simulation = study.scorer.forecast(best)
        devices = frozenset(simulation.compute_s)
        if not (simulation.latency_s and devices):
            raise UsageError("--advise: the model computes nothing on any device, so nothing makes it faster")
        many = problem.objective == "throughput"
        per_s = study.scorer.forecast_stream(best).throughput_per_s if many else 1 / simulation.latency_s
        return Expected(per_s, devices, describe_bound(study, simulation)[0])

    def predict(cluster: Cluster) -> Expected:
        searched.append(expect(cluster))
        return searched[-1]

    return predict


def _figure(objective: str, per_s: float) -> str:
    """
    >>> _figure("latency", 20), _figure("throughput", 20)
    ('50 ms', '20/s')
    """
    return format_seconds(1 / per_s) if objective == "latency" else f"{format_figure(per_s, 4)}/s"


def _expected_document(objective: str, expected: Expected) -> dict[str, Any]:
    """What is predicted; None where nothing fits."""
    key, per_s = f"predicted_{'latency_s' if objective == 'latency' else 'throughput_per_s'}", expected.per_s
    value = None if not per_s else 1 / per_s if objective == "latency" else per_s
    return {key: value, "devices": sorted(expected.devices)}


def _gain(today: Expected, expected: Expected, price_eur: float) -> dict[str, Any]:
    """How many times as fast it is, and how many per cent of today's speed 100 EUR add; None where nothing fits today, or
    nothing is paid."""
    times = expected.per_s / today.per_s if today.per_s else None
    part = None if times is None or not price_eur else 100 * (times - 1) / price_eur
    return {"price_eur": price_eur, "times": times, "gain_per_100_eur": part}


def _row(problem: Problem, today: Expected, one: RankedOffer) -> dict[str, Any]:
    offer, joins = one.purchase.offer, one.joins_bytes_per_s
    return {
        "buy": str(one.purchase),
        "helps": not one.why_not,
        "why_not": one.why_not or None,
        **_expected_document(problem.objective, one.expected),
        **_gain(today, one.expected, one.purchase.price_eur),
        "joins_bits_per_s": joins and 8 * joins,
        "dated": offer.dated,
        "price_source": offer.source,
        "speed_source": _speed_source(one.purchase, problem.cluster),
    }


def _speed_source(purchase: Purchase, cluster: Cluster) -> str | None:
    """Where the speed of a box comes from; None for what is no box."""
    from edgepart.planner.devices.boards import KINDS
    from edgepart.planner.devices.offers import BoxOffer, measured_kind

    offer = purchase.offer
    if not isinstance(offer, BoxOffer):
        return None
    return "as measured in this cluster" if measured_kind(offer, cluster) else KINDS[offer.kind].source


def _basket_document(objective: str, today: Expected, basket: Basket) -> dict[str, Any]:
    return {
        "buy": [str(one) for one in basket.purchases],
        **_expected_document(objective, basket.expected),
        **_gain(today, basket.expected, basket.price_eur),
    }


def _print_tables(document: Mapping[str, Any], reasons: bool) -> None:
    objective, today, offers = document["objective"], document["today"], document["offers"]
    key = "predicted_latency_s" if objective == "latency" else "predicted_throughput_per_s"
    now = today[key]
    said = (
        f"{_value(objective, now)} {'a request' if objective == 'latency' else 'requests'}"
        if now
        else "fits nowhere"
    )
    say(f"{document['model']} · {document['strategy']} today: {said} ({today['limit']})", prose=True)
    helpful = [row for row in offers if row["helps"]]
    if helpful:
        columns = ("buy", "about EUR", "as of", "joins at", objective, "faster", "per 100 EUR")
        rows = [_cells(objective, key, row) for row in helpful]
        console().print(table(columns, rows, (*columns[1:2], *columns[3:])))
    else:
        say("Nothing in the catalogue is predicted to help.")
    if document["together"] is not None:
        say(_said_together(document, key), prose=True)
    if len(helpful) < len(offers):
        say("Would not help:")
        for why, names in _by_reason(offers).items():
            say(f"  {'; '.join(names)}: {why}", prose=True)
    say(document["prices"], prose=True)
    if reasons:
        for row in offers:
            speed = f" Speed: {row['speed_source']}." if row["speed_source"] else ""
            say(f"{row['buy']}: price of {row['dated']}, {row['price_source']}.{speed}", prose=True)


def _by_reason(offers: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The offers that would not help, with their prices, by the reason."""
    found: dict[str, list[str]] = {}
    for row in offers:
        if not row["helps"]:
            said = f"{row['buy']} ({format_figure(row['price_eur'], 4)} EUR)"
            found.setdefault(row["why_not"], []).append(said)
    return found


def _value(objective: str, value: float) -> str:
    return _figure(objective, 1 / value if objective == "latency" else value)


def _cells(objective: str, key: str, row: Mapping[str, Any]) -> Sequence[str]:
    joins, part = row["joins_bits_per_s"], row["gain_per_100_eur"]
    return (
        row["buy"],
        format_figure(row["price_eur"], 4),
        row["dated"],
        f"{format_figure(joins / 1e6)} Mbit/s" if joins else "",
        _value(objective, row[key]),
        "it fits" if row["times"] is None else f"{row['times']:.2f}x",
        "" if part is None else f"+{part:.0%}",
    )


def _said_together(document: Mapping[str, Any], key: str) -> str:
    """A sentence on what to buy at once."""
    together, most = document["together"], format_figure(document["spend_eur"], 6)
    if not together["buy"]:
        return f"For {most} EUR nothing that helps can be had."
    price, value = format_figure(together["price_eur"], 6), _value(document["objective"], together[key])
    times = "" if together["times"] is None else f", {together['times']:.2f}x as fast as today"
    return (
        f"For {most} EUR: {', '.join(together['buy'])}, {price} EUR together: {value}{times}. (Found greedily: what gives "
        "most for its price first; other combinations were not tried.)"
    )
