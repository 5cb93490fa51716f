"""Access maps: what an operator reads to write a region of its outputs (Tofu's TDL), declared once for each operator.

`access_of(operator, graph)` returns the declaration bound to one operator. The axes that can be split, the halos, the
FLOPs, the slices of weights and the local nodes all come from it. An operator without a declaration is opaque: it runs
whole.

May import: planner/access/attention, planner/access/declare, planner/access/operators, planner/errors, planner/model,
planner/region.
"""

from edgepart.planner.access.declare.protocol import Access, Axis, Local, LocalNode, Outputs
from edgepart.planner.access.registry import access_of, accesses

__all__ = ["Access", "Axis", "Local", "LocalNode", "Outputs", "access_of", "accesses"]
