"""Device choice: which devices a deployment may be told to use, and what to say about those that are not
here. Rules, without I/O."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from edgepart.planner.errors import Unavailable, UsageError


def check_devices(chosen: Sequence[str], here: Collection[str], away: Collection[str]) -> None:
    """Check a user's choice of devices. `away`: members that were lost or left lately; a chosen device that
    is away is used when it is back. Raises UsageError if a chosen name is not known, and Unavailable if none
    of the chosen devices is here.

    >>> check_devices(["pi-a", "pi-b"], here=["pi-a"], away=["pi-b"])
    """
    known = ", ".join(sorted(here)) or "none"
    if unknown := [name[:64] for name in chosen if name not in here and name not in away]:
        called = ", ".join(map(repr, unknown))
        raise UsageError(f"devices: no device is called {called}; here are {known}. Nothing was deployed")
    if chosen and not set(chosen) & set(here):
        raise Unavailable(
            f"devices: {describe_missing(chosen)} here now; here are {known}. Nothing was deployed: "
            "start one of them first",
            retry_after_s=60.0,
        )


def describe_missing(names: Sequence[str]) -> str:
    """The start of a sentence about devices that are missing.

    >>> describe_missing(["pi-g"]), describe_missing(["pi-f", "pi-g"])
    ('pi-g is not', 'none of pi-f, pi-g is')
    """
    return f"{names[0]} is not" if len(names) == 1 else f"none of {', '.join(names)} is"
