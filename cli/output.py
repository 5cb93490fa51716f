"""What people see: tables, figures with units, progress bars. Documents go to stdout; all else to stderr."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def print_json(document: Any) -> None:
    """Exactly one JSON document on stdout."""
    print(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def say(text: str, *, prose: bool = False) -> None:
    """A line for people, on stdout; no markup is read in it. Prose is wrapped between words on a terminal;
    anything else may be copied, and is left whole."""
    out = console()
    out.print(text, markup=False, soft_wrap=not (prose and out.is_terminal))


def note(text: str) -> None:
    """A line for people that is no result, on stderr."""
    console(stderr=True).print(text, markup=False, style="dim")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> Table:
    """`right` names the columns of figures."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def seconds(value: float | None) -> str:
    """
    >>> seconds(0.00042), seconds(0.0421), seconds(3.14159), seconds(None)
    ('0.42 ms', '42.1 ms', '3.14 s', '-')
    """
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s" if value < 100 else f"{value:.0f} s"


def nbytes(value: float | None) -> str:
    """
    >>> nbytes(999), nbytes(1_170_000), nbytes(3.5e9)
    ('999 B', '1.17 MB', '3.5 GB')
    """
    if value is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def shape(value: Sequence[int] | None) -> str:
    """
    >>> shape([1, 3, -1, 224]), shape([]), shape(None)
    ('1x3x?x224', 'scalar', '?')
    """
    if value is None:
        return "?"
    return "x".join("?" if extent < 0 else str(extent) for extent in value) or "scalar"


class Bar(Protocol):
    """Told what is done of which stage; total 0 where it is not known."""

    def __call__(self, stage: str, done: float, total: float) -> None: ...


@contextmanager
def progress(units: Mapping[str, str]) -> Iterator[Bar]:
    """A bar on a terminal; elsewhere one line for each stage. `units` tells the stages counted in bytes
    ("bytes")."""
    target = console(stderr=True)
    if not target.is_terminal:
        yield _Lines()
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[part]}"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=target, transient=True) as bars:
        task = bars.add_task("", total=None, part="")

        def update(stage: str, done: float, total: float) -> None:
            part = ""
            if total and units.get(stage) == "bytes":
                part = f"{nbytes(done)} of {nbytes(total)}"
            elif total:
                part = f"{done:.0f} of {total:.0f}"
            bars.update(task, description=stage, completed=done, total=total or None, part=part)

        yield update


class _Lines:
    def __init__(self) -> None:
        self._stage = ""

    def __call__(self, stage: str, done: float, total: float) -> None:
        if stage != self._stage:
            self._stage = stage
            note(stage)
