"""Sketches: big architectures without their weights, operator for operator, with every shape. Placed, never run.

Moirai's table IV gives layers, hidden sizes, heads and operators of its models; in every row the operators are exactly
layers x (11 + 12 x heads), if GPT-3 1.3B has 24 layers, as it does, and not the 32 printed. So the paper's graphs
compute each attention head by operators of its own, and so do these; heads are what there is to place side by side.
"""

from benchmarks.models.sketches.table import OTHERS, SIZES, TABLE, Size, sketch

__all__ = ["OTHERS", "SIZES", "TABLE", "Size", "sketch"]
