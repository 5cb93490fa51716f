"""What happened in a simulated cluster, as lines; and what a failing seed leaves behind."""

from __future__ import annotations

from collections.abc import Callable


class Broken(AssertionError):
    """A rule that must hold did not."""


def short(node: str) -> str:
    """A node id as people read it."""
    return node.lstrip("0")


class Trace:
    """`lines` has all that was noted. With `show`, each line goes there at once, and messages too."""

    def __init__(self, show: Callable[[str], None] | None = None) -> None:
        self.lines: list[str] = []
        self.show = show

    def note(self, now: float, text: str) -> None:
        line = f"{now:8.3f} {text}"
        self.lines.append(line)
        if self.show is not None:
            self.show(line)

    def message(self, now: float, a: str, b: str, message: object) -> None:
        """For those who want to see everything; the rest pays nothing for it."""
        if self.show is not None:
            self.show(f"{now:8.3f}   {short(a)} -> {short(b)}: {str(message)[:300]}")
