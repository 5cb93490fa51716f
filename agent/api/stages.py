"""Stages: names of a deployment's progress that programs know. Facts, which need no other module."""

from __future__ import annotations

WEIGHTS_ON = "weights on "
"""What stages begin with that are told beside the others while devices load: the name of a device follows, and `done` of
`total` bytes of the weights that it needs are on its disk."""
