"""Writes docs/operators.md: the axes along which each operator can be split, or why not, and the zoo's FLOPs by axis.

    python -m benchmarks.operators [--check]

The operators' tables come from the registry of declarations, bound to uses (benchmarks/uses.py); the models' table from
the FLOPs of their operators. `--check` writes nothing, and exits with 1 if the page is not up to date.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import onnx.defs

from benchmarks.costs import Costs, costs_of
from benchmarks.models import ZOO, zoo_model
from benchmarks.models.exported import EXPORTS
from benchmarks.uses import Found, Key, all_found
from edgepart.cli.output import note
from edgepart.planner.access.registry import DECLARED, OPAQUE
from edgepart.planner.model.load import load_graph

PAGE = Path(__file__).parents[1] / "docs" / "operators.md"

TITLES = {
    "": "ai.onnx",
    "ai.onnx.ml": "ai.onnx.ml",
    "com.microsoft": "com.microsoft",
    "ai.onnx.preview": "ai.onnx.preview",
    "ai.onnx.preview.training": "ai.onnx.preview.training",
}
"""Titles of the domains, in the page's order."""

ORDER = ("batch", "channel", "depth", "height", "width", "sequence", "feature", "head", "key")
"""Axes that come first, in this order."""

EVERY = "every axis"

SHOWN = 0.005
"""Minimum share of a model's FLOPs with which an axis is shown."""

AIM = 0.02
"""Share of the FLOPs in opaque operators from which the worst of them are named."""

MODELS_HEADING = "## Models"

HEAD = """# What can be split along what

Made by `make docs`; do not edit.

Each operator is declared once, in planner/access/, and the law that its declaration must satisfy is a test. The tables say
what the declarations make of the uses in the onnx project's node tests and in ours: **along** are axes of what the operator
writes, each device making a part (*every axis*: in every use, each that has more than one index); **reduced** are axes that
are summed (or otherwise combined) away, each device making an addend, with what combines them. Names of axes go by the
rank: (batch, channel, height, width) of four, (batch, sequence, feature) of three and so on, or as its declaration says.
*Not where* gives uses of an operator that run whole.

Always whole, on one device, while the rest of the model is split: an operator of a domain that is not listed, unless a
user [describes](tdl.md) it; a value whose shape is known only at run time, and what reads it; what writes no elements;
sequences, maps and optionals.
"""

MODELS = """
For each model of the zoo (benchmarks/models), the share of its FLOPs in operators that can be split along an axis: what
forcing that axis could reach. *Opaque* is the share in operators that cannot be split at all (recurrent and looping ones
counted with all their steps); *whole here* that of operators which can, but not at these shapes (a batch of one).

| model | GFLOP | can be split along | opaque | whole here |
|---|--:|---|--:|--:|
"""


@dataclass(frozen=True)
class Row:
    """The row of one operator."""

    key: Key
    along: tuple[str, ...]
    reduced: tuple[tuple[str, str], ...]
    """Pairs of a reducer and an axis."""
    reasons: tuple[str, ...]

    @property
    def text(self) -> str:
        reduced = (
            f"{reducer}: {', '.join(name for _, name in group)}"
            for reducer, group in groupby(self.reduced, key=lambda one: one[0])
        )
        cells = (
            self.key[1],
            ", ".join(self.along) or "-",
            "; ".join(reduced) or "-",
            "; ".join(self.reasons),
        )
        return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def rows(found: Iterable[Found]) -> dict[Key, Row]:
    """Return the row of each declared operator, which combines all of its uses."""
    uses: dict[Key, list[Found]] = {}
    for one in found:
        uses.setdefault(one.key, []).append(one)
    return {key: _row(key, uses.get(key, [])) for key in DECLARED}


def _row(key: Key, uses: Sequence[Found]) -> Row:
    axes = {axis for one in uses for axis in one.axes}
    along = sorted({name for name, reducer in axes if reducer is None}, key=_rank)
    if along and all(one.every for one in uses if any(reducer is None for _, reducer in one.axes)):
        along = [EVERY]
    reduced = sorted(
        {(reducer, name) for name, reducer in axes if reducer}, key=lambda a: (a[0], _rank(a[1]))
    )
    reasons = dict.fromkeys(sorted({one.reason for one in uses if one.reason}))
    return Row(key, tuple(along), tuple(reduced), tuple(reasons))


def _rank(name: str) -> tuple[int, str]:
    return (ORDER.index(name) if name in ORDER else len(ORDER), name)


def undeclared() -> dict[Key, str]:
    """Return the operators of onnx that are neither declared nor opaque, with that reason. They always run whole."""
    known = {
        (schema.domain, schema.name) for schema in onnx.defs.get_all_schemas() if schema.domain in TITLES
    }
    return {key: "it is not declared yet" for key in known if key not in DECLARED and key not in OPAQUE}


def operator_sections(found: Iterable[Found]) -> Iterator[str]:
    """Yield the head of the page and the tables, domain by domain."""
    declared, whole = rows(found), {**OPAQUE, **undeclared()}
    yield HEAD
    for domain, title in TITLES.items():
        split = sorted(row.text for key, row in declared.items() if key[0] == domain)
        never = sorted((name, reason) for (of, name), reason in whole.items() if of == domain)
        yield f"## {title}\n"
        if split:
            yield "| operator | along | reduced | not where |\n|---|---|---|---|\n" + "\n".join(split) + "\n"
        if never:
            lines = [f"| {name} | {_cell(reason)} |" for name, reason in never]
            yield "| always whole | because |\n|---|---|\n" + "\n".join(lines) + "\n"


def model_line(name: str) -> str:
    """Return the row of one model."""
    model = zoo_model(name)
    return line_of(name, costs_of(load_graph(model.path, shapes=model.shapes)))


def line_of(name: str, costs: Costs) -> str:
    shares = sorted(costs.shares.items(), key=lambda one: (-one[1], one[0]))
    axes = ", ".join(f"{axis} {_percent(share)}" for axis, share in shares if share >= SHOWN) or "-"
    worst = (
        ", ".join(f"{kind} {_percent(share)}" for kind, share in costs.worst) if costs.opaque >= AIM else ""
    )
    opaque = _percent(costs.opaque) + (f": {worst}" if worst else "")
    return f"| {name} | {costs.flops / 1e9:.3g} | {axes} | {opaque} | {_percent(costs.unsplit)} |"


def _percent(share: float) -> str:
    """Return a share in percent, rounded for reading.

    >>> _percent(0.123), _percent(0.0001), _percent(0)
    ('12 %', '< 0.1 %', '0 %')
    """
    if not share:
        return "0 %"
    return "< 0.1 %" if share < 1e-3 else f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.1f} %"


def model_lines(page: str) -> Mapping[str, str]:
    """Return the models' rows in a page, by model."""
    _, _, table = page.partition(MODELS_HEADING)
    lines = (line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| model "))
    return {line.split(" | ")[0].removeprefix("| "): line for line in lines}


def listed() -> list[str]:
    """Return the models that have a row. Torch exports have none, so that the page is the same with and
    without torch."""
    return [name for name in ZOO if name not in EXPORTS]


def whole_page() -> str:
    """Return the whole page. Makes every model of the zoo that is not in the cache yet."""
    parts = [*operator_sections(all_found()), MODELS_HEADING + "\n" + MODELS.rstrip("\n")]
    lines = []
    for name in listed():
        lines.append(model_line(name))
        note(lines[-1])
    return "\n".join([*parts, *lines]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.operators", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; say whether the page is up to date"
    )
    options = parser.parse_args(arguments)
    page = whole_page()
    if options.check:
        same = PAGE.read_text() == page
        print(f"{PAGE} is {'up to date' if same else 'not up to date: make docs'}")
        return int(not same)
    PAGE.write_text(page)
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
