"""Description of the machine that a benchmark ran on. It is printed with every table, because figures mean
nothing without it."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from rich.console import Console
from rich.table import Table


def describe() -> dict[str, Any]:
    """Return the processor, usable cores, memory, and the versions that matter."""
    cpuinfo = Path("/proc/cpuinfo").read_text(errors="replace") if Path("/proc/cpuinfo").exists() else ""
    names = [line.partition(":")[2].strip() for line in cpuinfo.splitlines() if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}",
        "python": platform.python_version(),
        "onnxruntime": onnxruntime.__version__,
        "numpy": np.__version__,
    }


def sentence() -> str:
    """Return the same as a sentence for the head of a table."""
    it = describe()
    return (
        f"{it['processor']}, {it['cores']} cores, {it['memory_bytes'] / 2**30:.0f} GiB, {it['system']}, "
        f"Python {it['python']}, ONNX Runtime {it['onnxruntime']}"
    )


def commit() -> str:
    """Return the commit of the source; "" if this is not a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def show_table(table: Table, markdown: bool = False) -> None:
    """Print a table at its full width even without a terminal, or as Markdown."""
    if markdown:
        print("\n".join(as_markdown(table)))
    else:
        Console(width=200, highlight=False).print(table)


def as_markdown(table: Table) -> Iterator[str]:
    """Yield the lines of a table as Markdown."""
    if table.title:
        yield from (f"**{table.title}**", "")
    columns = [list(column.cells) for column in table.columns]
    yield f"| {' | '.join(str(column.header) for column in table.columns)} |"
    marks = ("---:" if column.justify == "right" else "---" for column in table.columns)
    yield f"| {' | '.join(marks)} |"
    for cells in zip(*columns, strict=True):
        yield f"| {' | '.join(map(str, cells))} |"
