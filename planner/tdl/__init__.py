"""TDL (Tofu): descriptions that users write of their own operators, and how such operators can be divided.

A description says which elements of its inputs an operator reads for each element of its outputs; from that follow ways
to divide the operator. Users import `edgepart.tdl`. A description travels as data, in the model's own file, not as code.

May import: planner/errors, planner/json_text, planner/region.
"""

__all__ = ["analysis", "description", "document"]
