"""The disk: atomic files, the store of models and weights by digest, and the queue that writes state files.

May import: planner/errors, planner/json_text, planner/model, planner/region.
"""

__all__ = ["atomic_files", "integrity", "private_files", "store", "write_queue"]
