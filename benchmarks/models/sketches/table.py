"""Moirai's table IV: the figures of each model, and a sketch that matches them as closely as possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from benchmarks.models.sketches.evoformer import Widths, evoformer
from benchmarks.models.sketches.gpt import gpt
from benchmarks.models.sketches.swin import swin
from edgepart.planner.model.graph import Graph


@dataclass(frozen=True)
class Size:
    """A row of the table."""

    parameters: float
    operators: int
    coarsened: int
    """Operators that remain after the paper's own coarsening rules."""
    make: Callable[[], Graph]


TABLE: Mapping[str, Size] = MappingProxyType(
    {
        # How the layers are divided into stages is not printed. Of the divisions like Swin's own, only these
        # give the parameters.
        "swin-1.8B": Size(1.8e9, 6496, 5204, partial(swin, (2, 2, 26, 2), 512, 16)),
        "swin-6.6B": Size(6.6e9, 14352, 11512, partial(swin, (2, 2, 40, 4), 768, 24)),
        "swin-13B": Size(13e9, 22120, 17947, partial(swin, (2, 2, 48, 4), 1024, 32)),
        "gpt-330M": Size(330e6, 4872, 3682, partial(gpt, 24, 1024, 16)),
        # 32 layers are printed, but 24 layers give the printed parameters and operators, and are what GPT-3
        # has.
        "gpt-1.3B": Size(1.3e9, 9480, 7308, partial(gpt, 24, 2048, 32)),
        "gpt-2.7B": Size(2.7e9, 12640, 9825, partial(gpt, 32, 2560, 32)),
        "gpt-13B": Size(13e9, 19640, 15283, partial(gpt, 40, 5120, 40)),
        # Only one hidden size is printed. The widths of pairs and of outer products are those that give the
        # parameters.
        "evoformer-87M": Size(87e6, 5136, 3618, partial(evoformer, 48, Widths(256, 8, 128))),
        "evoformer-930M": Size(
            930e6, 12992, 9252, partial(evoformer, 64, Widths(512, 16, 512, outer=64, row_groups=16))
        ),
        "evoformer-2.4B": Size(
            2.4e9,
            37920,
            26824,
            partial(evoformer, 96, Widths(1024, 32, 448, row_groups=32, column_groups=16)),
        ),
        "evoformer-3.2B": Size(
            3.2e9,
            50560,
            35096,
            partial(evoformer, 128, Widths(1024, 32, 448, row_groups=32, column_groups=16)),
        ),
    }
)

SIZES = tuple(name for name in TABLE if name not in ("gpt-13B", "evoformer-3.2B"))
"""Three models of each kind."""

OTHERS: Mapping[str, Callable[[], Graph]] = MappingProxyType(
    {
        "gpt-tiny": partial(gpt, 2, 64, 4, tokens=128, words=1000),
        "swin-tiny": partial(swin, (2, 2), 32, 2, side=112),
        "evoformer-tiny": partial(evoformer, 2, Widths(64, 2, 64), 16, 32),
        "gpt-deep": partial(gpt, 248, 1024, 16),
        "evoformer-deep": partial(evoformer, 124, Widths(1024, 32, 448, row_groups=32, column_groups=16)),
    }
)
"""Small models, and two of more than 50,000 operators."""


def sketch(name: str) -> Graph:
    """Return the graph of a name in `TABLE` or `OTHERS`."""
    return TABLE[name].make() if name in TABLE else OTHERS[name]()


def parameters(graph: Graph) -> int:
    """Return how many trained numbers a graph has."""
    return sum(c.nbytes for n, c in graph.constants.items() if n.startswith("weight")) // 2
