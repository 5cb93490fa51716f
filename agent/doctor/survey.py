"""Survey: finds out, on a device without a running agent, which boxes announce themselves and which answer at the addresses
of members. Door: sockets.

It announces nothing and changes nothing. Without an identity it only listens, because no box could prove its own identity.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgepart import __version__
from edgepart.agent.cluster.membership.roster import make_unique_names
from edgepart.agent.discovery.mdns import Announcement, Discovery
from edgepart.agent.doctor.checkup import BAD, GOOD, Check, check_box
from edgepart.agent.doctor.diagnosis import OwnAgent, diagnose, name_clash_notes
from edgepart.agent.doctor.report import box_document
from edgepart.agent.net import sightings
from edgepart.agent.net.dialer import DialAttempts, Dialer
from edgepart.agent.net.interfaces import interfaces
from edgepart.agent.net.sightings import AgentHint, Box, Sightings
from edgepart.agent.options import LISTEN_PORT
from edgepart.agent.security.identity import Identity, load
from edgepart.agent.state_files import StateFiles
from edgepart.agent.wire.address import format_address, mqtt_node, parse_address
from edgepart.planner.errors import EdgepartError, UsageError

log = logging.getLogger(__name__)

LISTEN_S = 4.0
"""Seconds to wait for announcements; they come within 1.3 s if multicast works."""
REACH_S = 3.0
"""The time limit, in seconds, of each step of connecting to an address."""


async def survey(state: Path, listen_s: float = LISTEN_S) -> dict[str, Any]:
    """Return the same document as DoctorReport.document, with "agent": {"running": False}."""
    identity, trouble = _identity(state)
    book = Sightings()
    if identity is not None:
        _remember(book, identity, state)
    heard = await _listen(book, identity, listen_s)
    if identity is not None:
        await asyncio.gather(*(asyncio.to_thread(_reach, identity, book, box) for box in book.all()))
    checks = await asyncio.to_thread(check_box, state, LISTEN_PORT)
    me = OwnAgent(
        node=identity.node_id if identity else "",
        name="",
        fingerprint=identity.fingerprint if identity else "",
        version=__version__,
        port=LISTEN_PORT,
        running=False,
    )
    now = time.time()
    found = book.all()
    said = [(box.node, box.name) for box in found if box.node]
    names = make_unique_names(said)
    return {
        "agent": {
            "name": None,
            "node": me.node or None,
            "version": me.version,
            "cluster": me.fingerprint[:16] or None,
            "running": False,
        },
        "boxes": [
            box_document(box, diagnose(box, None, me, now), now) | {"name": names.get(box.node, box.name)}
            for box in found
        ],
        "knocks": [],
        "checks": [asdict(check) for check in (*_own_checks(trouble, heard), *checks)],
        "notes": name_clash_notes(said),
    }


def _identity(state: Path) -> tuple[Identity | None, str]:
    try:
        return load(state), ""
    except UsageError as error:
        return None, str(error)


def _own_checks(trouble: str, heard: str | None) -> Iterable[Check]:
    yield Check(
        "agent",
        BAD,
        "no agent runs with this state",
        "run `edgepart agent`, or `systemctl start edgepart-agent`",
    )
    if trouble:
        yield Check("identity", BAD, trouble)
    if heard is None:
        yield Check("multicast", GOOD, "this box can listen for announcements")
    else:
        yield Check(
            "multicast", BAD, f"this box cannot listen for announcements: {heard}", "is a network up?"
        )


def _remember(book: Sightings, identity: Identity, state: Path) -> None:
    now = time.time()
    for address in identity.first_members:
        book.heard(sightings.SAVED, "", (format_address(address),), now)
    for node, addresses in StateFiles(state).members().items():
        book.heard(sightings.SAVED, node, addresses, now)


async def _listen(book: Sightings, identity: Identity | None, listen_s: float) -> str | None:
    """Listen for announcements. Return the reason if that is impossible, else None."""

    def on_seen(seen: AgentHint) -> None:
        if identity is None or seen.node_id != identity.node_id:
            addresses = tuple(map(format_address, seen.addresses))
            book.heard(
                sightings.MDNS,
                seen.node_id or "",
                addresses,
                time.time(),
                name=seen.name,
                fingerprint=seen.fingerprint,
                version=seen.version,
            )

    fingerprint = identity.fingerprint if identity is not None else ""
    listener = Discovery(Announcement("", fingerprint, "", "", ("", 0)), on_seen)
    try:
        async with asyncio.timeout(listen_s):
            await listener.listen_until(asyncio.Event())
    except TimeoutError:
        return None
    except (OSError, RuntimeError) as error:
        return str(error)
    return None


def _reach(identity: Identity, book: Sightings, box: Box) -> None:
    """Try every address of a box of this cluster; a link that comes up is closed at once."""
    if box.fingerprint and box.fingerprint != identity.fingerprint[:16]:
        return
    addresses = [parse_address(text) for text in box.addresses]
    tries = DialAttempts(box.node or None, _Notes(book))
    dialer = Dialer(identity, interfaces, REACH_S, REACH_S)
    usable = [address for address in addresses if mqtt_node(address) is None]
    for address, found in dialer.each(box.node or None, usable):
        if isinstance(found, EdgepartError):
            tries.refused(address, found)
        else:
            found[1].close()
            tries.led(address, found[0])


class _Notes:
    """Keeps the results of a survey's tries. Each box belongs to one thread, so no two threads write the same entry."""

    def __init__(self, book: Sightings) -> None:
        self._book = book

    def tried(self, node: str, address: str, fault: Any, text: str) -> None:
        self._book.tried(node, address, fault, text, time.time())

    def called(self, node: str, address: str) -> None:
        """Do nothing: no box can connect to a survey, which does not listen."""

    def knocked(self, address: str, why: str) -> None:
        """Do nothing: no box can connect to a survey, which does not listen."""
