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
        self._noted: list[tuple[float, str, str | Callable[[], str]]] = []
        self.show = show

    @property
    def lines(self) -> list[str]:
        return [_line(*noted) for noted in self._noted]

    def note(self, now: float, text: str | Callable[[], str], node: str = "") -> None:
        """Of a box, or of all. A text that takes long is made when somebody reads it."""
        self._noted.append((now, node, text))
        if self.show is not None:
            self.show(_line(now, node, text))

    def message(self, now: float, a: str, b: str, message: object) -> None:
        """For those who want to see everything; the rest pays nothing for it."""
        if self.show is not None:
            self.show(f"{now:8.3f}   {short(a)} -> {short(b)}: {str(message)[:300]}")


def _line(now: float, node: str, text: str | Callable[[], str]) -> str:
    said = text if isinstance(text, str) else text()
    return f"{now:8.3f} {short(node)} {said}" if node else f"{now:8.3f} {said}"
