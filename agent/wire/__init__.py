"""The messages between agents and their bytes: frames, the codec, tensors, control messages, questions and versions.

May import: planner/errors, planner/figures, planner/plans, planner/region, planner/vocabulary.
"""

__all__ = [
    "address",
    "bounds",
    "codec",
    "control",
    "dtypes",
    "frames",
    "inference",
    "likely_entries",
    "queries",
    "reduced_precision",
    "tensors",
    "transfer_headers",
    "trials",
    "versions",
    "vocabulary",
]
