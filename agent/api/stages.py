"""Stages: what is told of a deployment's progress, and the names of stages that programs know. Facts, which need no other
module."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float, float], None]
"""Called with (stage, done, total): the stage in plain words ("storing", "planning", "sending weights",
"warming up" ...), `done` and `total` in the stage's own unit, `total` 0 if it is not known. Any thread may
call it."""
WEIGHTS_ON = "weights on "
"""What stages begin with that are told beside the others while devices load: the name of a device follows, and `done` of
`total` bytes of the weights that it needs are on its disk."""
