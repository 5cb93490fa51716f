"""The demo: agents on this machine, as slow boxes, read a page together, lose one, gain one, and chat.

May import: cli/emulation, cli/local, cli/options, cli/output, cli/tensors, client,
planner/errors, planner/figures, planner/region, planner/report.
"""

__all__ = ["command"]
