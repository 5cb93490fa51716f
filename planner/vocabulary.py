"""The words that options accept: objectives, axes that a user may force, types of weights, and names of
strategies. Facts, and one rule that checks a word against them.

The module imports next to nothing, so that options can be checked before the libraries for models are loaded."""

from __future__ import annotations

from collections.abc import Sequence

from edgepart.planner.errors import UsageError

OBJECTIVES = ("latency", "throughput")

AXES = ("height", "width", "channel", "batch")
"""The axes that a user may force for a deployment."""

WEIGHTS = ("int8", "int4")
"""The types to which weights can be quantised before a model is sent."""

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
    "climb",
    "learned",
    "moirai",
    "placeto",
    "gdp",
    "auto",
)
"""The strategies in the order of `edgepart plan --compare`."""

GUIDED = ("learned", "placeto", "gdp")
"""The strategies that a trained network guides."""

ON_ALL_DEVICES = frozenset({"modnn", "deepthings", "bbgrap", "data", "model", "owt"})
"""The strategies that divide over all devices that there are. The others choose devices, by what they find to be best."""


def check_word(word: str, allowed: Sequence[str], option: str) -> str:
    """`word` itself. Raises UsageError if it is not among `allowed`.

    >>> check_word("latency", OBJECTIVES, "--objective")
    'latency'
    """
    if word not in allowed:
        raise UsageError(f"{option} {word[:64]!r}: give one of {', '.join(allowed)}")
    return word
