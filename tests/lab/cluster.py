"""Real agents on a lab's hosts, driven like those on loopback: the same LocalCluster at other places. Does I/O."""

from __future__ import annotations

from collections.abc import Sequence

from edgepart.agent.options import HTTP_PORT, LISTEN_PORT
from edgepart.cli.local import LocalCluster, Place
from tests.lab.lab import Lab

OPTIONS = ("--threads", "1")
"""One thread, because the slow-down is computed from the CPU time of one thread."""


def place(lab: Lab, host: str) -> Place:
    """Return the place of a host, with an agent's default ports. HTTP is open to the whole lab: clients send
    the credential."""
    address = lab.address(host)
    return Place(
        lab.prefix(host), lab.environment(host), f"{address}:{LISTEN_PORT}", f"{address}:{HTTP_PORT}"
    )


def cluster(lab: Lab, names: Sequence[str] | None = None, *, options: Sequence[str] = ()) -> LocalCluster:
    """Return a cluster of agents on these hosts, or on all; `cluster.add(name)` starts one on a host that was
    added later.

    `with Lab([...]) as lab, cluster(lab) as running:`
    """
    return LocalCluster(
        tuple(lab.hosts) if names is None else names,
        options=(*OPTIONS, *options),
        folder=lab.folder,
        places=lambda name: place(lab, name),
    )
