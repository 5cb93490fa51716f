"""Candidate metrics: what this agent has seen of the candidates of deployments. Rules over cards; no door.

The label `model` is the deployment's name. The counters begin anew with each candidate, and end with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from edgepart.agent.api.model_card import ModelCard

_GAUGES = (
    ("candidate_version", "Number of the version that is tried beside the one that serves"),
    ("candidate_share_ratio", "Share of the requests that the candidate answers"),
    ("candidate_shadow", "1 while the candidate gets copies of requests"),
    ("candidate_ready", "1 while the candidate can answer"),
    (
        "candidate_largest_difference_ratio",
        "Largest difference of numbers over all copies, as a share of the output's largest magnitude",
    ),
)
_COUNTERS = (
    ("candidate_answers", "Requests, or copies of requests, that the candidate has answered"),
    ("candidate_seconds", "Time that these answers took, from arrival to answer"),
    ("candidate_serving_answers", "Requests that the version that serves has answered meanwhile"),
    ("candidate_serving_seconds", "Time that these answers took, from arrival to answer"),
    (
        "candidate_fallbacks",
        "Requests of the candidate's share that it could not answer; the other version did",
    ),
    ("candidate_compared", "Copies that the candidate has answered"),
    ("candidate_different", "Copies of which the candidate has answered another choice"),
    ("candidate_copy_errors", "Copies that the candidate could not answer"),
    ("candidate_copies_dropped", "Requests of which no copy was made, as too many were under way"),
)


def collect_candidates(cards: Sequence[ModelCard]) -> Iterator[Metric]:
    """The figures of each deployment that has a candidate."""
    found: dict[str, GaugeMetricFamily | CounterMetricFamily] = {
        name: kind(f"edgepart_{name}", text, labels=["model"])
        for kind, listed in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS))
        for name, text in listed
    }
    for card in cards:
        if (trial := card.candidate) is None:
            continue
        values = {
            "candidate_version": float(trial.version),
            "candidate_share_ratio": trial.share / 100,
            "candidate_shadow": trial.shadow,
            "candidate_ready": not trial.trouble,
            "candidate_largest_difference_ratio": trial.largest_difference,
            "candidate_answers": trial.answers,
            "candidate_seconds": trial.answers * (trial.mean_s or 0.0),
            "candidate_serving_answers": trial.serving_answers,
            "candidate_serving_seconds": trial.serving_answers * (trial.serving_mean_s or 0.0),
            "candidate_fallbacks": trial.fallbacks,
            "candidate_compared": trial.compared,
            "candidate_different": trial.different,
            "candidate_copy_errors": trial.copy_errors,
            "candidate_copies_dropped": trial.copies_dropped,
        }
        for name, value in values.items():
            found[name].add_metric([card.name], float(value))
    yield from found.values()
