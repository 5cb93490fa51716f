"""Death: the way in which a worker's process ended. Facts."""

from __future__ import annotations

import signal
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Death:
    """The way in which a worker process ended."""

    status: int
    """The exit status, or minus the signal that ended the process, as in subprocess."""
    why: str = ""
    """The reason for which the agent ended the process; "" if the agent did not."""

    @property
    def ordered(self) -> bool:
        return bool(self.why)

    @property
    def is_crash(self) -> bool:
        """Whether a model ended the process. SIGKILL is no crash: people send it, and the kernel if memory runs out."""
        return not self.ordered and self.status != -signal.SIGKILL

    def __str__(self) -> str:
        if self.ordered:
            return f"was ended ({self.why})"
        if self.status >= 0:
            return f"ended with status {self.status}"
        return f"ended with {signal.Signals(-self.status).name}"
