"""The outcome of every model under every strategy on real agents: cells, and the page that shows them. Does
no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.machine import as_markdown
from benchmarks.page import replaced
from edgepart.cli.output import table
from edgepart.planner.figures import format_figure

BEGIN, END = "<!-- figures: written by `make models` -->", "<!-- end of figures -->"

Key = tuple[str, str, int]
"""Model, strategy, devices."""


class Outcome(StrEnum):
    """The outcome of one cell."""

    RIGHT = "right"
    WRONG = "wrong"
    """An answer differs from the model's."""
    REFUSED = "refused"
    """The cluster tried the strategy's plan, found its answers wrong, and served another plan."""
    NOT_PLANNED = "not planned"
    """The planner gave a reason why the strategy has no plan."""
    FAILED = "failed"


@dataclass(frozen=True)
class Cell:
    """One model under one strategy on a number of devices."""

    model: str
    strategy: str
    devices: int
    """Number of devices offered to the planner."""
    outcome: Outcome
    used: tuple[str, ...] = ()
    """Devices that computed a part."""
    difference: float | None = None
    """Largest over requests and outputs, relative to each output's largest magnitude; None if there is no answer."""
    allowed: float | None = None
    """Tolerance of a model that computes in less than float32; None means the tolerance of the outputs' types."""
    text: str = ""
    """The differences, or the reason why there is no plan."""
    excuse: str = ""
    """Why an outcome that is not "right" is no fault."""
    telling: bool | None = None
    """Whether the model's answer to the inputs of one seed would be wrong for those of another; None if unknown."""
    seconds: float = 0.0
    """Seconds from deploying to undeploying."""
    commit: str = ""
    """Commit of the source that ran."""
    machine: str = ""
    """Description of the machine on which it ran."""

    @property
    def key(self) -> Key:
        return self.model, self.strategy, self.devices

    @property
    def is_fault(self) -> bool:
        return self.outcome in (Outcome.WRONG, Outcome.REFUSED, Outcome.FAILED) and not self.excuse

    @property
    def says_little(self) -> bool:
        """Whether the answer is right but the answer to other inputs would count as right too."""
        return self.outcome is Outcome.RIGHT and self.telling is False

    @property
    def mark(self) -> str:
        """The cell's text in the table: the number of devices that computed, if the answers are right."""
        match self.outcome:
            case Outcome.RIGHT:
                return str(len(self.used))
            case Outcome.NOT_PLANNED:
                return "-"
            case _:
                return f"**{self.outcome.value}**" if self.is_fault else self.outcome.value


Cells = Mapping[Key, Cell]


def page(cells: Cells, strategies: Sequence[str], counts: Sequence[int], date: str) -> str:
    """Return the part of the document between `BEGIN` and `END`."""
    where = "; ".join(
        f"at {', '.join(sorted(commits))} on {machine}" for machine, commits in _measured(cells).items()
    )
    lines = [f"Last written on {date}. Measured {where}.", ""]
    lines += [f"{sentence}" for sentence in summary(cells)]
    lines += ["", *_rows(cells, strategies, counts), ""]
    lines += [f"- {line}" for line in notes(cells)]
    return "\n".join(lines).rstrip()


def _measured(cells: Cells) -> dict[str, set[str]]:
    """Return the commits that were measured on each machine."""
    found: dict[str, set[str]] = {}
    for cell in cells.values():
        found.setdefault(cell.machine, set()).add(cell.commit or "no known commit")
    return found


def summary(cells: Cells) -> Iterator[str]:
    """Yield the summary's sentences."""
    counted = Counter(cell.outcome for cell in cells.values())
    models = {cell.model for cell in cells.values()}
    several = sum(len(cell.used) > 1 for cell in cells.values() if cell.outcome is Outcome.RIGHT)
    little = sum(cell.says_little for cell in cells.values())
    rest = ", ".join(f"{counted[one]} {one.value}" for one in Outcome if one is not Outcome.RIGHT)
    yield (
        f"{len(models)} models, {len(cells)} cells: {counted[Outcome.RIGHT]} right ({several} of them computed by more "
        f"than one device), {rest}."
    )
    if little:
        yield (
            f"{little} of the right ones say little, for the model's answer to other inputs would count as right too: "
            "below it is said which models these are."
        )


def notes(cells: Cells) -> Iterator[str]:
    """Yield a note on each fault, on cells without a plan, on right answers that say little, and on wider
    tolerances."""
    for cell in cells.values():
        if cell.is_fault:
            yield f"{cell.model} under {cell.strategy} on {cell.devices}: {cell.outcome.value}: {_cleaned(cell.text)}"
    excused = [cell for cell in cells.values() if cell.excuse]
    for reason, named in _grouped(
        excused, lambda cell: f"{cell.outcome.value}, and no fault: {cell.excuse}"
    ).items():
        yield f"{reason} ({', '.join(named)})"
    unplanned = [cell for cell in cells.values() if cell.outcome is Outcome.NOT_PLANNED]
    for reason, named in _grouped(unplanned, lambda cell: _cleaned(cell.text)).items():
        yield f"No plan, as the planner says: {reason} ({', '.join(named)})"
    if little := dict.fromkeys(cell.model for cell in cells.values() if cell.says_little):
        yield (
            "Right answers say little, for what the model answers to the inputs of two seeds is nearer to one another than "
            f"what is allowed: {', '.join(little)}."
        )
    wide = [cell for cell in cells.values() if cell.allowed is not None and cell.model not in little]
    for allowed, named in _grouped(wide, lambda cell: format_figure(cell.allowed or 0)).items():
        models = dict.fromkeys(name.partition(" ")[0] for name in named)
        yield f"Computed in less than float32, where {allowed} is allowed: {', '.join(models)}."


def _grouped(cells: Sequence[Cell], by: Callable[[Cell], str]) -> dict[str, list[str]]:
    """Return the cells' names, grouped by the text that `by` gives."""
    found: dict[str, list[str]] = {}
    for cell in cells:
        found.setdefault(by(cell), []).append(f"{cell.model} {cell.strategy} {cell.devices}")
    return found


def _rows(cells: Cells, strategies: Sequence[str], counts: Sequence[int]) -> Iterator[str]:
    """Yield the lines of a table with one row for each model."""
    rows = []
    for model in dict.fromkeys(cell.model for cell in cells.values()):
        mine = {key[1:]: cell for key, cell in cells.items() if key[0] == model}
        marks = (
            ", ".join(mine[strategy, count].mark if (strategy, count) in mine else "?" for count in counts)
            for strategy in strategies
        )
        rows.append((model, *marks, _worst(list(mine.values()))))
    asked = " and ".join(map(str, counts))
    columns = ("model", *strategies, "largest difference")
    made = table(columns, rows, right=[*strategies, "largest difference"])
    made.title = f"How many devices computed, of {asked}"
    yield from as_markdown(made)


def _worst(cells: Sequence[Cell]) -> str:
    """Return the largest difference of all answers of a model."""
    found = [cell.difference for cell in cells if cell.difference is not None]
    return f"{max(found):.0e}" if found else "-"


def _cleaned(text: str) -> str:
    """Return the text on one line, escaped for a Markdown table."""
    return " ".join(text.split()).replace("<", "&lt;").replace("|", "\\|")


def rewritten(document: str, figures: str) -> str:
    """Return the document with new figures in place of the old ones."""
    return replaced(document, BEGIN, END, f"\n{figures}\n")
