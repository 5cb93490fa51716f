"""Spans, and the recorder that hot paths ask whether anybody wants them.

May import: agent/wire, planner/errors.
"""

__all__ = ["recorder", "spans"]
