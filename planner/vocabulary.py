"""The words that options take: objectives, axes that a user may force, and the names of the strategies. Facts, and one rule
that checks a word against them; light, so that it can be read before any model is."""

from __future__ import annotations

from collections.abc import Sequence

from edgepart.planner.errors import UsageError

OBJECTIVES = ("latency", "throughput")

AXES = ("height", "width", "channel", "batch")
"""That a deployment can be forced along."""

STRATEGIES = (
    "single",
    "modnn",
    "deepthings",
    "bbgrap",
    "data",
    "model",
    "owt",
    "optcnn",
    "tofu",
    "pipeline",
    "replicas",
    "expert",
    "heft",
    "m-etf",
    "m-sct",
    "getf",
    "metis",
    "moirai",
    "auto",
)
"""In the order of `edgepart plan --compare`."""


def one_of(word: str, allowed: Sequence[str], option: str) -> str:
    """`word`. UsageError where it is none of those allowed.

    >>> one_of("latency", OBJECTIVES, "--objective")
    'latency'
    """
    if word not in allowed:
        raise UsageError(f"{option} {word[:64]!r}: give one of {', '.join(allowed)}")
    return word
