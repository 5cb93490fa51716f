"""Access maps: what an operator reads to write a region of what it makes (Tofu's TDL), one file per
operator family.

`access_of(operator, graph)` gives the declaration bound to one operator: from it come the splittable axes,
the halos, the FLOPs, the weight slices and the local node. An operator with no declaration is opaque: it
runs whole.
"""

from edgepart.planner.access.declare.protocol import Access, Axis, Local, LocalNode, Outputs
from edgepart.planner.access.registry import access_of, accesses

__all__ = ["Access", "Axis", "Local", "LocalNode", "Outputs", "access_of", "accesses"]
