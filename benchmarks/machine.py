"""What machine a benchmark ran on: printed with every table, because a number without it means nothing."""

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
    """Processor, cores that may be used, memory, and the versions that matter."""
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
    """The same for the head of a table."""
    it = describe()
    return (
        f"{it['processor']}, {it['cores']} cores, {it['memory_bytes'] / 2**30:.0f} GiB, {it['system']}, "
        f"Python {it['python']}, ONNX Runtime {it['onnxruntime']}"
    )


def commit() -> str:
    """Of the source; "" where this is no checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def show_table(table: Table, markdown: bool = False) -> None:
    """Prints a table as wide as it is, also where no terminal says how wide it may be; as documents have it, if wanted."""
    if markdown:
        print("\n".join(as_markdown(table)))
    else:
        Console(width=200, highlight=False).print(table)


def as_markdown(table: Table) -> Iterator[str]:
    """Line by line, as documents have it."""
    if table.title:
        yield from (f"**{table.title}**", "")
    columns = [list(column.cells) for column in table.columns]
    yield f"| {' | '.join(str(column.header) for column in table.columns)} |"
    marks = ("---:" if column.justify == "right" else "---" for column in table.columns)
    yield f"| {' | '.join(marks)} |"
    for cells in zip(*columns, strict=True):
        yield f"| {' | '.join(map(str, cells))} |"
