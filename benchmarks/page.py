"""Writes the tables of docs/benchmarks.md: each has the output of one command, with command, commit, day and machine.

    python -m benchmarks.page latency "make latency" results/latency.md ...    writes what these files hold into the page
    python -m benchmarks.page --check                                          names the tables that are stale

A table is stale if it can no longer be traced to the code that it was measured with: its commit is not in the history,
the benchmark that made it has changed since, or it is older than half a year.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

from benchmarks.machine import commit, sentence
from edgepart.planner.errors import InternalError

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"
OLD = timedelta(days=183)
GAINS = {"vgg19": "VGG-19", "resnet50": "ResNet-50"}
"""Models in the README's table, with their common names."""

_SECTION = re.compile(r"<!-- table (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)
_SOURCE = re.compile(
    r"\*`(?P<command>[^`]+)`, commit (?P<commit>[0-9a-f]{7,40}), (?P<day>\d{4}-\d\d-\d\d), .+\.\*"
)


@dataclass(frozen=True)
class Source:
    """The origin of a table."""

    table: str
    command: str
    commit: str
    day: date


def replaced(document: str, begin: str, end: str, text: str) -> str:
    """Return the document with that text between the two marks. Raises InternalError unless it has exactly
    one such place."""
    head, *found = re.split(f"{re.escape(begin)}\\n.*?{re.escape(end)}", document, flags=re.DOTALL)
    if len(found) != 1:
        raise InternalError(
            f"the document has {len(found)} places between {begin!r} and {end!r}; one is wanted"
        )
    return f"{head}{begin}\n{text}\n{end}{found[0]}"


def rewritten(page: str, table: str, command: str, commit: str, day: date, printed: str) -> str:
    """Return the page with the output of `command` in place of that table. Raises InternalError if it has no
    place for it."""
    source = f"*`{command}`, commit {commit}, {day}, {sentence()}.*"
    return replaced(page, f"<!-- table {table} -->", "<!-- end -->", f"{source}\n\n{printed.strip()}")


def with_place(page: str, table: str, command: str, makefile: str) -> str:
    """Return the page with a place for that table: the one that it has, or a section at its end, which is called what
    the Makefile says of the target. Raises InternalError if the Makefile has no such target."""
    if f"<!-- table {table} -->" in page:
        return page
    target = command.split()[1]
    purpose = re.search(rf"^{re.escape(target)}:.*## (?:as root: )?([^;\n]+)", makefile, re.MULTILINE)
    if purpose is None:
        raise InternalError(f"the Makefile does not say what `{command}` is for")
    head = purpose[1][0].upper() + purpose[1][1:]
    return f"{page.rstrip()}\n\n## {head}\n\n<!-- table {table} -->\n<!-- end -->\n"


def sources(page: str) -> Iterator[Source]:
    """Yield the origin of each table. Raises InternalError for a table without one."""
    for match in _SECTION.finditer(page):
        found = _SOURCE.match(match[2])
        if found is None:
            raise InternalError(f"the table {match[1]!r} does not say its command, commit, day and machine")
        yield Source(match[1], found["command"], found["commit"], date.fromisoformat(found["day"]))


def gains(page: str) -> str:
    """Return the README's table, made from the page's table "latency"."""
    found = next(match[2] for match in _SECTION.finditer(page) if match[1] == "latency")
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in found.splitlines()
        if line.startswith("|")
    ]
    heads, rows = (
        cells[0],
        [dict(zip(cells[0], row, strict=True)) for row in cells[2:] if len(row) == len(cells[0])],
    )
    assert {"model", "hosts", "speed-up", "latency", "bare session"} <= set(heads)
    lines = ["| one request of | on one box | on several | sooner |", "| --- | ---: | ---: | ---: |"]
    for row in rows:
        if row["model"] in GAINS:
            where = f"{row['latency']} on {row['hosts']} boxes"
            lines.append(f"| {GAINS[row['model']]} | {row['bare session']} | {where} | {row['speed-up']} |")
    return "\n".join(lines)


def unplaced(page: str) -> list[str]:
    """Return rows of tables outside of the places that commands write."""
    return [line for line in _SECTION.sub("", page).splitlines() if line.startswith("|")]


def modules(makefile: str, command: str) -> tuple[str, ...]:
    """Return the benchmarks that `make TARGET ...` runs."""
    target = re.search(rf"^{re.escape(command.split()[1])}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    if target is None:
        raise InternalError(f"the Makefile has no target for `{command}`")
    return tuple(name for name in re.findall(r"-m benchmarks\.(\w+)", target[1]) if name != "page")


def stale(found: Source, today: date) -> str | None:
    """Return why that table is stale; None if it is not."""
    if _git("merge-base", "--is-ancestor", found.commit, "HEAD").returncode:
        return f"its commit {found.commit} is not in the history"
    if today - found.day > OLD:
        return f"it was measured on {found.day}"
    files = [f"benchmarks/{name}.py" for name in modules((ROOT / "Makefile").read_text(), found.command)]
    changed = _git("diff", "--name-only", found.commit, "HEAD", "--", *files).stdout.split()
    return f"{', '.join(changed)} changed since" if changed else None


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="name stale tables, and fail where there are any"
    )
    parser.add_argument("table", nargs="?")
    parser.add_argument("command", nargs="?")
    parser.add_argument("printed", nargs="*", type=Path)
    options = parser.parse_args(given)
    page = PAGE.read_text()
    if options.check:
        found = [(source, stale(source, date.today())) for source in sources(page)]
        for source, why in found:
            if why is not None:
                print(
                    f"docs/benchmarks.md: the table {source.table!r} is stale: {why}. Run `{source.command}` again."
                )
        return int(any(why for _, why in found))
    printed = "\n\n".join(file.read_text().strip() for file in options.printed)
    if "\n|" not in printed:  # Not made for documents: keep its columns.
        printed = f"```\n{printed}\n```"
    page = with_place(page, options.table, options.command, (ROOT / "Makefile").read_text())
    page = rewritten(page, options.table, options.command, commit(), date.today(), printed)
    PAGE.write_text(page)
    if options.table == "latency":
        README.write_text(
            replaced(README.read_text(), "<!-- gains -->", "<!-- /gains -->", f"\n{gains(page)}\n")
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
