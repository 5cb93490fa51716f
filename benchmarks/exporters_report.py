"""What came of each decoder that `make exporters` tried: trials, and the table that shows them. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from textwrap import shorten

from rich.table import Table

from benchmarks.exporters_cases import ARCHITECTURES, VARIANTS, Variant
from benchmarks.machine import as_markdown
from edgepart.agent.text.decoder import common_start
from edgepart.cli.output import table

PROGRAMS: Mapping[str, str] = {"optimum": "optimum-onnx", "torch": "torch", "genai": "onnxruntime-genai"}
"""What an exporter is called in the table, and by pip."""


BEGIN, END = "<!-- figures: written by `make exporters` -->", "<!-- end of figures -->"


MOST_CHARACTERS = 160
"""The longest reason beside the table."""


class Ending(StrEnum):
    """What came of a trial."""

    EQUAL = "equal"
    """The texts are those that they have to be."""
    AS_ONE_SESSION = "as one session"
    """They are those of one session over the file, and not those of transformers: the export has lost something."""
    NEAR = "as far as it rounds"
    """They differ as those of one session do that reads the prompt in other steps: the model rounds activations by the rows
    of a step."""
    DIFFERENT = "different"
    REFUSED = "refused by edgepart"
    NOT_EXPORTED = "not exported"
    FAILED = "failed"
    """An error that says neither what to do nor that anything is not supported."""


WORSE = (Ending.EQUAL, Ending.AS_ONE_SESSION, Ending.NEAR, Ending.DIFFERENT)
"""What may come of a text, from the best to the worst."""


@dataclass(frozen=True)
class Trial:
    """One variant of one architecture."""

    name: str
    exporter: str
    variant: str
    architecture: str
    ending: Ending
    equal_tokens: int = 0
    """How many tokens the texts begin with that are those of the text that they are compared with."""
    itself_tokens: int = 0
    """How many of those that one session says are the same if it reads the prompt in other steps."""
    tokens: int = 0
    """How many there are in all texts."""
    in_blocks: bool = False
    """Whether the longer prompt was read in fewer steps than it has tokens."""
    kept_tokens: int = 0
    """How many tokens of a second turn were not read again."""
    devices: tuple[str, ...] = ()
    """The devices that computed."""
    why: str = ""
    """What was said where there is no text."""
    version: str = ""
    """The exporter's version, with those that it works with."""
    commit: str = ""
    """The commit of the source that ran."""

    @property
    def is_fault(self) -> bool:
        return self.ending in (Ending.DIFFERENT, Ending.FAILED)

    @property
    def label(self) -> str:
        """The architecture, and how much of the text is equal if not all of it is."""
        label = ARCHITECTURES[self.architecture].name
        if self.ending not in (Ending.NEAR, Ending.DIFFERENT):
            return label
        return f"{label} ({self.equal_tokens} of {self.tokens} tokens; one session with itself {self.itself_tokens})"


COLUMNS = tuple(Ending)


def ending_of(
    variant: Variant,
    got: Sequence[int],
    by_transformers: Sequence[int],
    alone: Sequence[int],
    same: int,
) -> tuple[Ending, int]:
    """Return what came of a text, and how many tokens it begins with that are right. `alone` is the text of one session, of
    which the first `same` tokens do not depend on how it reads the prompt."""
    wanted = by_transformers if variant.exact else alone
    equal = common_start(got, wanted)
    if equal == len(wanted):
        return Ending.EQUAL, equal
    if variant.exact and common_start(got, alone) == len(alone):
        return Ending.AS_ONE_SESSION, len(alone)
    return (Ending.NEAR if same < len(alone) and not variant.exact else Ending.DIFFERENT), equal


def tabled(trials: Mapping[str, Trial]) -> Table:
    """Return a table with a row for each variant, whose cells name architectures."""
    used = [one for one in COLUMNS if any(trial.ending is one for trial in trials.values())]
    rows = []
    for variant in VARIANTS:
        mine = [
            one for one in trials.values() if (one.exporter, one.variant) == (variant.exporter, variant.name)
        ]
        if mine:
            cells = (", ".join(one.label for one in mine if one.ending is ending) for ending in used)
            rows.append((f"{PROGRAMS[variant.exporter]}, {variant.what}", *cells))
    return table(("", *(one.value for one in used)), rows)


def sentences(trials: Iterable[Trial]) -> Iterator[str]:
    """Yield what the table does not show: versions, reasons, and how prompts were read."""
    every = list(trials)
    for version in dict.fromkeys(one.version for one in every if one.version):
        programs = dict.fromkeys(PROGRAMS[one.exporter] for one in every if one.version == version)
        yield f"{' and '.join(programs)}: {version}."
    texts = [one for one in every if one.tokens]
    for words, named in (
        ("Not read in blocks", [one for one in texts if not one.in_blocks]),
        ("A second turn read everything again", [one for one in texts if not one.kept_tokens]),
        ("Computed by one device", [one for one in texts if len(one.devices) < 2]),
    ):
        if named:
            yield f"{words}: {', '.join(one.name for one in named)}."
    reasons: dict[str, list[str]] = {}
    for one in every:
        if one.why:
            why = shorten(one.why, MOST_CHARACTERS, placeholder=" ...")
            reasons.setdefault(f"{one.ending.value}: {why}", []).append(one.name)
    for reason, names in reasons.items():
        yield f"{', '.join(names)}: {reason}"


def page(trials: Mapping[str, Trial], day: date) -> str:
    """Return the part of the document between `BEGIN` and `END`."""
    lines = ["", f"Last written on {day}.", "", *as_markdown(tabled(trials)), ""]
    lines += [f"- {_cleaned(line)}" for line in sentences(trials.values())]
    return "\n".join([*lines, ""])


def _cleaned(text: str) -> str:
    """Return the text on one line, escaped for Markdown."""
    return " ".join(text.split()).replace("<", "&lt;").replace("|", "\\|")
