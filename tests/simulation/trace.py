"""Events of a simulated cluster as lines, and the report of a failing seed."""

from __future__ import annotations

from collections.abc import Callable


class Broken(AssertionError):
    """A rule that must hold did not."""


def short(node: str) -> str:
    """Return a node id in its readable form."""
    return node.lstrip("0")


class Trace:
    """`lines` has everything that was noted. With `show`, each line is shown at once, and messages too."""

    def __init__(self, show: Callable[[str], None] | None = None) -> None:
        self._noted: list[tuple[float, str, str | Callable[[], str]]] = []
        self.show = show

    @property
    def lines(self) -> list[str]:
        return [_line(*noted) for noted in self._noted]

    def note(self, now: float, text: str | Callable[[], str], node: str = "") -> None:
        """Note a text about a box, or about all. A text that is slow to make is made when it is read."""
        self._noted.append((now, node, text))
        if self.show is not None:
            self.show(_line(now, node, text))

    def message(self, now: float, a: str, b: str, message: object) -> None:
        """Show a message, if messages are shown; without `show` it costs nothing."""
        if self.show is not None:
            self.show(f"{now:8.3f}   {short(a)} -> {short(b)}: {str(message)[:300]}")


def _line(now: float, node: str, text: str | Callable[[], str]) -> str:
    said = text if isinstance(text, str) else text()
    return f"{now:8.3f} {short(node)} {said}" if node else f"{now:8.3f} {said}"
