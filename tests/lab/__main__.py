"""A cluster to try things on: `python -m tests.lab --hosts 4 --slow 8 --rate 1gbit`, as root, until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from edgepart.cli.local import LocalCluster
from edgepart.cli.output import console, table
from edgepart.planner.errors import EdgepartError
from tests.lab import claims
from tests.lab.cluster import cluster
from tests.lab.hosts import OUTSIDE, LabError, numbered
from tests.lab.lab import Lab
from tests.lab.orders import obey
from tests.lab.system import missing


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    made.add_argument("--hosts", type=int, default=4, help="how many (4)")
    made.add_argument("--slow", default="8", help="times as slow as this machine; or for each: 4,8,8,16 (8)")
    made.add_argument(
        "--slow-python", type=float, help="times as slow as this machine for Python, TLS and the network (1)"
    )
    made.add_argument(
        "--rate", help="what each sends at, such as 1gbit, 100mbit or 20mbit (as fast as it goes)"
    )
    made.add_argument("--memory", help="what all processes of a host take at most, such as 1G")
    made.add_argument("--disk", help="the size of each host's state folder, such as 512M; kept in memory")
    made.add_argument(
        "--clean", action="store_true", help="remove labs whose owners are gone, and do nothing else"
    )
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    given = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _stop)
    try:
        if reason := missing():
            raise LabError(reason)
        if given.clean:
            removed = claims.clean()
            print(f"removed: {', '.join(removed)}" if removed else "there was nothing to remove")
            return
        hosts = numbered(
            given.hosts,
            given.slow,
            slow_python=given.slow_python,
            rate=given.rate,
            memory=given.memory,
            disk=given.disk,
        )
        print(
            f"Making {len(hosts)} hosts; each starts an agent, and they find each other. Some seconds for each."
        )
        with Lab(hosts) as lab, cluster(lab) as running:
            _tell(lab, running)
            _listen(lab, running)
    except KeyboardInterrupt:
        print("\nThe lab is gone.")
    except (LabError, EdgepartError) as error:
        sys.exit(f"error: {error}")


def _stop(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _tell(lab: Lab, running: LocalCluster) -> None:
    """Print how to reach the hosts."""
    for note in running.notes:
        print(f"! {note}")
    rows = [
        (
            name,
            f"{host.slow:g}x",
            host.rate or "free",
            running.agents[name].url,
            str(running.agents[name].state),
        )
        for name, host in lab.hosts.items()
    ]
    console().print(table(("host", "slow", "rate", "HTTP", "state folder"), rows))
    first = running.first
    print(
        f"This machine is {lab.address(OUTSIDE)} to them. From another terminal, as root:\n\n"
        f"  export EDGEPART_STATE={first.state}\n"
        f"  edgepart status\n"
        f"  edgepart deploy MODEL.onnx --name photos\n"
        f"  edgepart bench photos\n"
        f"  tail -f {first.log}\n\n"
        "Here: `cut box-1 box-2`, `heal`, `freeze box-1`, `kill box-1`, `start box-1`; `help` lists all orders.\n"
        "Ctrl-C ends the lab."
    )


def _listen(lab: Lab, running: LocalCluster) -> None:
    """Obey orders line by line; at the end of the input, wait to be stopped."""
    for line in sys.stdin:
        try:
            print(obey(lab, running, line))
        except (LabError, EdgepartError) as error:
            print(error)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
