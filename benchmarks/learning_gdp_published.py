"""What GDP's authors measured, as a lecture of March 2020 presents it. Facts, and ratios of their seconds.

The lecture's percentages are not all those of its seconds (AmoebaNet's 26.1 % over experts is 11.7 % by its seconds),
so that ratios are of seconds. Figures of GDP-batch are given as percentages alone; those of zero-shot and fine-tuned
placements are in a picture alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import geometric_mean


@dataclass(frozen=True)
class PublishedRow:
    """Seconds of a training step by each method; None where memory ran out."""

    kind: str
    """The kind of model, as learning_gdp.py has it; "" for none of them."""
    gdp_s: float
    expert_s: float
    metis_s: float | None
    hdp_s: float


PUBLISHED: Mapping[str, PublishedRow] = {
    "2-layer RNNLM (2)": PublishedRow("recurrent", 0.234, 0.257, 0.355, 0.243),
    "4-layer RNNLM (4)": PublishedRow("recurrent", 0.409, 0.48, None, 0.490),
    "2-layer GNMT (2)": PublishedRow("recurrent, attends", 0.301, 0.384, None, 0.376),
    "4-layer GNMT (4)": PublishedRow("recurrent, attends", 0.409, 0.469, None, 0.520),
    "8-layer GNMT (8)": PublishedRow("recurrent, attends", 0.649, 0.610, None, 0.693),
    "2-layer Transformer-XL (2)": PublishedRow("attention", 0.386, 0.473, None, 0.435),
    "4-layer Transformer-XL (4)": PublishedRow("attention", 0.580, 0.641, None, 0.621),
    "8-layer Transformer-XL (8)": PublishedRow("attention", 0.748, 0.813, None, 0.789),
    "Inception (2)": PublishedRow("inception", 0.405, 0.418, 0.423, 0.417),
    "AmoebaNet (4)": PublishedRow("cells", 0.394, 0.44, 0.426, 0.418),
    "2-stack 18-layer WaveNet (2)": PublishedRow("", 0.317, 0.376, None, 0.354),
    "4-stack 36-layer WaveNet (4)": PublishedRow("", 0.659, 0.988, None, 0.721),
}
"""By model and number of devices."""

BATCH_FASTER: Mapping[str, float] = {
    "2-layer RNNLM": 0.0,
    "4-layer RNNLM": 0.05,
    "2-layer GNMT": 0.0,
    "4-layer GNMT": 0.0,
    "2-layer Transformer-XL": 0.076,
    "4-layer Transformer-XL": 0.03,
    "8-layer Transformer-XL": 0.015,
    "Inception": 0.0,
    "AmoebaNet": -0.05,
    "4-stack 36-layer WaveNet": 0.033,
    "2-stack 18-layer WaveNet": 0.15,
}
"""By how much GDP-batch's placements are faster than GDP-one's."""


def published_ratio(method: str, kind: str | None = None) -> float | None:
    """Return the geometric mean of the method's seconds ("expert", "metis" or "hdp") over GDP-one's, for the models of a
    kind or for all; None if it ran out of memory on all of them."""
    rows = [row for row in PUBLISHED.values() if kind is None or row.kind == kind]
    both = [(seconds, row.gdp_s) for row in rows if (seconds := getattr(row, f"{method}_s")) is not None]
    return geometric_mean(theirs / ours for theirs, ours in both) if both else None


def published_batch() -> float:
    """Return the geometric mean of GDP-batch's seconds over GDP-one's."""
    return geometric_mean(1 / (1 + faster) for faster in BATCH_FASTER.values())
