"""What became of every model under every strategy on real agents: one cell each, and the page that says it. Rules only."""

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
    """Of one cell."""

    RIGHT = "right"
    WRONG = "wrong"
    """An answer is not the model's."""
    REFUSED = "refused"
    """The cluster tried the strategy's plan, did not like its answers, and served another one."""
    NOT_PLANNED = "not planned"
    """The planner says why that strategy has no plan."""
    FAILED = "failed"


@dataclass(frozen=True)
class Cell:
    """One model under one strategy on so many devices."""

    model: str
    strategy: str
    devices: int
    """Offered to the planner."""
    outcome: Outcome
    used: tuple[str, ...] = ()
    """Devices that computed a part."""
    difference: float | None = None
    """Largest over requests and outputs, relative to each output's largest magnitude; None where there is no answer."""
    allowed: float | None = None
    """Of a model that computes in less than float32; None: what the outputs' types allow."""
    text: str = ""
    """What is wrong, or why there is no plan."""
    excuse: str = ""
    """Of one that is not right: why that is no fault."""
    telling: bool | None = None
    """Whether the model's answer to the inputs of one seed would be wrong for those of another; None: not known."""
    seconds: float = 0.0
    """From deploying to undeploying."""
    commit: str = ""
    """Of the source that ran."""
    machine: str = ""
    """That it ran on, in words."""

    @property
    def key(self) -> Key:
        return self.model, self.strategy, self.devices

    @property
    def is_fault(self) -> bool:
        return self.outcome in (Outcome.WRONG, Outcome.REFUSED, Outcome.FAILED) and not self.excuse

    @property
    def says_little(self) -> bool:
        """Right, but so would be the answer to other inputs."""
        return self.outcome is Outcome.RIGHT and self.telling is False

    @property
    def mark(self) -> str:
        """In the table: how many devices computed where the answers are right."""
        match self.outcome:
            case Outcome.RIGHT:
                return str(len(self.used))
            case Outcome.NOT_PLANNED:
                return "-"
            case _:
                return f"**{self.outcome.value}**" if self.is_fault else self.outcome.value


Cells = Mapping[Key, Cell]


def page(cells: Cells, strategies: Sequence[str], counts: Sequence[int], date: str) -> str:
    """The part of the document between `BEGIN` and `END`."""
    where = "; ".join(
        f"at {', '.join(sorted(commits))} on {machine}" for machine, commits in _measured(cells).items()
    )
    lines = [f"Last written on {date}. Measured {where}.", ""]
    lines += [f"{sentence}" for sentence in summary(cells)]
    lines += ["", *_rows(cells, strategies, counts), ""]
    lines += [f"- {line}" for line in notes(cells)]
    return "\n".join(lines).rstrip()


def _measured(cells: Cells) -> dict[str, set[str]]:
    """The commits that were measured on each machine."""
    found: dict[str, set[str]] = {}
    for cell in cells.values():
        found.setdefault(cell.machine, set()).add(cell.commit or "no known commit")
    return found


def summary(cells: Cells) -> Iterator[str]:
    """In sentences."""
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
    """Each fault by name, and why some have no plan, or wider bounds."""
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
    """By that text, which cells."""
    found: dict[str, list[str]] = {}
    for cell in cells:
        found.setdefault(by(cell), []).append(f"{cell.model} {cell.strategy} {cell.devices}")
    return found


def _rows(cells: Cells, strategies: Sequence[str], counts: Sequence[int]) -> Iterator[str]:
    """A table with one line for each model."""
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
    """Of all answers to a model."""
    found = [cell.difference for cell in cells if cell.difference is not None]
    return f"{max(found):.0e}" if found else "-"


def _cleaned(text: str) -> str:
    """On one line of a document."""
    return " ".join(text.split()).replace("<", "&lt;").replace("|", "\\|")


def rewritten(document: str, figures: str) -> str:
    """The document with those figures instead of what it had."""
    return replaced(document, BEGIN, END, f"\n{figures}\n")
