"""TDL: descriptions of operators that edgepart does not know, so that they are divided too (docs/tdl.md).

from edgepart.tdl import Sum, operator

@operator("my.domain", "Conv1D")
def conv1d(data, filters):
    return lambda b, co, x: Sum(lambda ci, dx: data[b, ci, x + dx] * filters[ci, co, dx])
"""

from edgepart.planner.tdl.description import OperatorDescription
from edgepart.planner.tdl.language import Max, Min, Opaque, Prod, Sum, operator, padded

__all__ = ["Max", "Min", "Opaque", "OperatorDescription", "Prod", "Sum", "operator", "padded"]
