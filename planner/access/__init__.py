"""Access maps: what an operator reads to write a region of its outputs (Tofu's TDL), declared once for each operator.

`access_of(operator, graph)` returns the declaration bound to one operator. The axes that can be split, the halos, the
FLOPs, the slices of weights and the local nodes all come from it. Users describe operators that are not declared here
(planner/tdl). An operator with neither is opaque: it runs whole.

May import: planner/access/attention, planner/access/declare, planner/access/operators, planner/errors, planner/model,
planner/region, planner/tdl.
"""

from edgepart.planner.access.declare.protocol import Access, Axis, Local, LocalNode, Outputs
from edgepart.planner.access.registry import access_of, accesses, check_described

__all__ = ["Access", "Axis", "Local", "LocalNode", "Outputs", "access_of", "accesses", "check_described"]
