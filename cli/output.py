"""The output of commands: tables, figures with units, progress bars, errors, and the exit status that goes with an error.
Results go to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from edgepart.planner.errors import EdgepartError, Infeasible, InternalError, Removed, StillGoing, UsageError
from edgepart.planner.figures import format_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from rich.table import Table


FAILED, WRONG_USAGE, GOES_ON, DIFFERS = 1, 2, 3, 5
"""Exit statuses; 0 is success, and `Removed` has 4. GOES_ON: the time to wait is up, and the work goes on. DIFFERS: the
cluster is not as described."""

_above_bars: list[Console] = []
"""The console on which progress bars are shown, if any are: what another one prints would get between them."""
PIPE_COLUMNS = 200
"""The width of what is no terminal. rich would take 80 columns, and break words of tables that programs and files get."""


def print_json(document: Any) -> None:
    """Prints exactly one JSON document to stdout."""
    print(_laid_out(document, "\n"))


def _laid_out(value: Any, line_end: str) -> str:
    """JSON with a line for each entry, but lists of values, and lists of such lists, in one line: arrays have thousands of
    numbers.

    >>> print(_laid_out({"shape": [1, 2], "rows": [{"a": []}]}, "\\n"))
    {
      "shape": [1, 2],
      "rows": [
        {
          "a": []
        }
      ]
    }
    """
    deeper = line_end + "  "
    if isinstance(value, Mapping) and value:
        entries = [
            f"{json.dumps(str(key), ensure_ascii=False)}: {_laid_out(value[key], deeper)}" for key in value
        ]
        return "{" + deeper + ("," + deeper).join(entries) + line_end + "}"
    if isinstance(value, list | tuple) and _holds_entries(value):
        return "[" + deeper + ("," + deeper).join(_laid_out(item, deeper) for item in value) + line_end + "]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _holds_entries(values: Sequence[Any]) -> bool:
    """Whether there is a mapping in the list, or in a list in it."""
    return any(
        isinstance(item, Mapping) or (isinstance(item, list | tuple) and _holds_entries(item))
        for item in values
    )


def console(*, stderr: bool = False, soft_wrap: bool = True) -> Console:
    """The only console of the program. It prints text as it is, even if brackets in it look like markup. Tables that go to
    a file or a pipe are PIPE_COLUMNS wide, unless COLUMNS says otherwise."""
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False, soft_wrap=soft_wrap, markup=False, emoji=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = PIPE_COLUMNS
    return made


def say(text: str, *, prose: bool = False) -> None:
    """Prints a line to stdout, without reading markup in it. On a terminal, prose is wrapped between words; other lines are
    left whole, so that they can be copied."""
    out = console()
    out.print(text, soft_wrap=not (prose and out.is_terminal))


_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""All control characters but tabs and line ends."""


def say_part(text: str) -> None:
    """Prints a part of a line to stdout at once. On a terminal, control characters are replaced: what a model writes must
    not move the cursor, or change what was printed before."""
    if sys.stdout.isatty():
        text = _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)
    sys.stdout.write(text)
    sys.stdout.flush()


def note(text: str) -> None:
    """Prints a line that is not a result to stderr."""
    (_above_bars[-1] if _above_bars else console(stderr=True)).print(text, style="dim")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> Table:
    """A table of texts. `right` names the columns of figures, which are aligned to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def shape(value: Sequence[int] | None) -> str:
    """A shape as text; -1 stands for a free dimension.

    >>> shape([1, 3, -1, 224]), shape([]), shape(None)
    ('1x3x?x224', 'scalar', '?')
    """
    if value is None:
        return "?"
    return "x".join("?" if extent < 0 else str(extent) for extent in value) or "scalar"


class ProgressBar(Protocol):
    """Reports that `done` of `total` of a stage is complete; a total of 0 means that it is unknown."""

    def __call__(self, stage: str, done: float, total: float) -> None: ...


@contextmanager
def progress(units: Mapping[str, str], beside: str = "") -> Iterator[ProgressBar]:
    """A progress bar on a terminal; elsewhere one line for each stage. `units` maps stages that are counted in bytes to
    "bytes". Stages that begin with `beside` go on at the same time as the others, and are counted in bytes: each has a bar
    of its own on a terminal, and elsewhere a line when it is complete."""
    target = console(stderr=True, soft_wrap=False)
    if not target.is_terminal:
        yield _Lines(beside)
        return
    from rich.console import Group
    from rich.live import Live

    bars, others = _bars(target), _bars(target)
    first = bars.add_task("", total=None, part="")
    tasks: dict[str, TaskID] = {}

    def update(stage: str, done: float, total: float) -> None:
        part, own = "", bool(beside) and stage.startswith(beside)
        if own and stage not in tasks:
            tasks[stage] = others.add_task(stage, total=None, part="")
        if total and (own or units.get(stage) == "bytes"):
            part = f"{format_bytes(done)} of {format_bytes(total)}"
        elif total:
            part = f"{done:.0f} of {total:.0f}"
        rows, task = (others, tasks[stage]) if own else (bars, first)
        rows.update(task, description=stage, completed=done, total=total or None, part=part)

    with Live(Group(bars, others), console=target, transient=True):
        _above_bars.append(target)
        try:
            yield update
        finally:
            _above_bars.remove(target)


def _bars(target: Console) -> Progress:
    """Rows of a spinner, a text, a bar and figures, whose columns are as wide as they need."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[part]}", markup=False),
        TimeElapsedColumn(),
        console=target,
    )


class _Lines:
    def __init__(self, beside: str) -> None:
        self._stage = ""
        self._beside = beside
        self._complete = set[tuple[str, float]]()

    def __call__(self, stage: str, done: float, total: float) -> None:
        if self._beside and stage.startswith(self._beside):
            if done >= total and (stage, total) not in self._complete:
                self._complete.add((stage, total))
                note(f"{stage}: {format_bytes(total)}")
        elif stage != self._stage:
            self._stage = stage
            note(stage)


def exit_status(error: EdgepartError) -> int:
    """The exit status of a command that ended with this error."""
    if isinstance(error, Removed):
        return error.exit_status
    if isinstance(error, StillGoing):
        return GOES_ON
    return WRONG_USAGE if isinstance(error, UsageError) else FAILED


def print_error(error: EdgepartError, as_json: bool) -> None:
    """Prints the error to stderr. With `as_json`, it also prints {"error", "kind"} to stdout, and "short_bytes", the bytes
    that each device lacks, if they are known."""
    if as_json:
        lacking = error.short_bytes if isinstance(error, Infeasible) else {}
        short = {"short_bytes": lacking} if lacking else {}
        print(json.dumps({"error": str(error), "kind": type(error).__name__, **short}))
    print(f"error: {error}", file=sys.stderr)
    if isinstance(error, InternalError):
        print("This is a fault of edgepart itself; please report it.", file=sys.stderr)
