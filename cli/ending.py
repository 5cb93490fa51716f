"""How any command ends that failed: what it says, and its exit status."""

from __future__ import annotations

import json
import sys

from edgepart.planner.errors import EdgepartError, Infeasible, InternalError, Removed, StillGoing, UsageError

DONE, FAILED, WRONG_USAGE, GOES_ON = 0, 1, 2, 3


def exit_status(error: EdgepartError) -> int:
    if isinstance(error, Removed):
        return error.exit_status
    if isinstance(error, StillGoing):
        return GOES_ON
    return WRONG_USAGE if isinstance(error, UsageError) else FAILED


def report(error: EdgepartError, as_json: bool) -> None:
    """What was wrong, to stderr for people; with `--json`, {"error", "kind"} to stdout for programs as well, and, where
    they are known, by device the bytes that it lacks."""
    if as_json:
        lacking = error.short_bytes if isinstance(error, Infeasible) else {}
        short = {"short_bytes": lacking} if lacking else {}
        print(json.dumps({"error": str(error), "kind": type(error).__name__, **short}))
    print(f"error: {error}", file=sys.stderr)
    if isinstance(error, InternalError):
        print("This is a fault of edgepart itself; please report it.", file=sys.stderr)
