"""Certificate renewal: keeps this agent's charter and certificate up to date. Door: the event loop, STATE/identity; it
reaches other members through its arguments.

The whole charter (charter.py) is sent to each member that comes in or comes back, to all members when it has
grown, and to a member that sends an older one. A command that changes it on disk (`edgepart revoke`) is
noticed within a second. Links to revoked nodes are closed at once. A member that holds the CA's key renews
the certificate, over the link to that member; later connections show the new certificate.

All methods belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from edgepart.agent.cluster.state.events import Member
from edgepart.agent.security import certificates, charter, charter_file
from edgepart.agent.security.certificates import WARNED_BELOW
from edgepart.agent.security.charter import Charter
from edgepart.agent.security.identity import Identity, read_charter
from edgepart.agent.wire.queries import Renewed, WantCertificate
from edgepart.planner.errors import EdgepartError, NotAuthorised, Unavailable

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often the CertificateRenewal checks whether a command has changed the charter, or the certificate is due for
renewal."""
AGAIN_S = 600.0
"""The time until a renewal is tried again. It is tried sooner if a member with the CA's key comes in."""
WARN_S = 24 * 3600.0
"""How often the log repeats the warnings for people."""
CA_WARNED_BELOW_S = 365 * 24 * 3600.0

Tell = Callable[[str, Charter], None]
"""Called with (node, charter): sends the charter on the control channel. Raises Unavailable."""
Ask = Callable[[str, WantCertificate], Awaitable[tuple[Any, memoryview]]]
"""Called with (node, question): returns the answer. Raises Unavailable."""


REVOKED = "this device was revoked: it is put out of its cluster"


class RenewalLinks(Protocol):
    """The part of Transport (agent/net/transport.py) that the CertificateRenewal uses."""

    def close(self, node_id: str, why: str = ...) -> None: ...
    def linked_nodes(self) -> frozenset[str]: ...
    def renew(self) -> None: ...


class CertificateRenewal:
    """Keeps the charter and the certificate of one agent up to date."""

    def __init__(
        self,
        identity: Identity,
        links: RenewalLinks,
        tell: Tell,
        ask: Ask,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Read the charter. Raises UsageError if the files on disk are damaged."""
        self._identity = identity
        self._links = links
        self._tell = tell
        self._ask = ask
        self._clock = clock
        self.put_out: Callable[[str], None] = lambda why: None
        """Called with the reason when this device itself is revoked."""
        self._members: dict[str, Member] = {}
        self._stamp = self._file_stamps()
        self.charter = read_charter(identity.directory)
        self.revoked_nodes = identity.revoked_nodes()
        """The ids of revoked nodes: those in the charter, and those put out by hand (revoked.json)."""
        self._certificate = identity.certificate
        self._try_at = self._warn_at = 0.0

    @property
    def credential(self) -> str:
        """The credential that opens the management API now."""
        held = self.charter.credential
        return held.secret if held else self._identity.admin

    # The charter

    def members(self, members: Sequence[Member]) -> None:
        """Note which members are in now, and send the charter to those that have just come in."""
        before, me = self._members, self._identity.node_id
        self._members = {member.node: member for member in members if member.node != me}
        for node, member in self._members.items():
            if before.get(node) != member:
                self._send(node)
        if any(
            charter.is_issuer(self._members[node].version) for node in self._members.keys() - before.keys()
        ):
            self._try_at = 0.0

    def came(self, node: str, told: Charter) -> None:
        """Take a member's charter. If the CA did not sign all of it, the link to the member ends."""
        if node in self.revoked_nodes:
            return  # it may have sent this before its link ended
        try:
            # Check before the lock is taken, so that no member can delay commands that need the lock.
            if charter.accept(self.charter, told, self._identity.ca) != self.charter:
                rule = lambda held: self._renew_credential(charter.accept(held, told, self._identity.ca))  # noqa: E731
                self._changed(charter_file.change(self._identity.directory, rule))
        except NotAuthorised as error:
            log.warning("the link to %s ends: %s", node, error)
            self._links.close(node, str(error))
            return
        if charter.merge(told, self.charter) != told:
            self._send(node)

    def _renew_credential(self, held: Charter) -> Charter:
        """The charter, with a new credential if a revoked node may know the present one and this device holds
        the CA's key. Two holders of the key may have revoked at the same time, and a node that one of them
        revoked may know the other's credential."""
        return charter_file.renew_credential(held, self._identity) if self._identity.is_issuer else held

    def _changed(self, now: Charter) -> None:
        before, self.charter = self.charter, now
        self.revoked_nodes = self._identity.revoked_nodes()
        self._stamp = self._file_stamps()
        for entry in now.revocations:
            if entry.node not in before.revoked:
                log.warning("node %s is revoked", entry.node)
        if now.credential != before.credential:
            log.info("the management credential was renewed: it is in %s", self._identity.directory / "admin")
        self._put_out()
        for node in self._members:
            self._send(node)

    def _put_out(self) -> None:
        """End the links to revoked nodes; new links are refused at the handshake. If this device is revoked,
        say so."""
        for node in self._links.linked_nodes() & self.revoked_nodes:
            self._tell_last(node)
            self._links.close(node, "revoked")
        if self._identity.node_id in self.revoked_nodes:
            self.put_out(REVOKED)

    def _tell_last(self, node: str) -> None:
        """Tell a node that the CA has revoked it, so that it stops serving. It is told nothing else of the
        charter, and no credential."""
        member = self._members.get(node)
        told = self._identity.revocation_of(node)
        if told == Charter() or member is None or not charter.understands(member.version):
            return
        try:
            self._tell(node, told)
        except Unavailable as error:
            log.info("%s is not told that it is revoked: %s", member.name, error)

    def _send(self, node: str) -> None:
        member = self._members.get(node)
        if member is None or node in self.revoked_nodes or not charter.understands(member.version):
            return
        if self.charter == Charter():
            return
        try:
            self._tell(node, self.charter)
        except Unavailable as error:
            log.debug("%s is not told the charter now: %s", node, error)  # it is when its link is back

    def _file_stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        """A stamp that changes whenever one of the charter's files changes."""
        found: list[tuple[int, int, int] | None] = []
        for name in ("charter.json", "revoked.json"):
            try:
                stat = (self._identity.directory / name).stat()
                found.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
            except FileNotFoundError:
                found.append(None)
        return tuple(found)

    # The certificate

    async def sign(self, node: str, asked: WantCertificate) -> Renewed:
        """Renew the certificate of a member that asks for it; the answer says why if that is refused."""
        if node in self.revoked_nodes:
            return Renewed(asked.ticket, b"", "you are revoked")
        try:
            made = await asyncio.to_thread(self._identity.issue, asked.request, self._clock(), node)
        except EdgepartError as error:
            return Renewed(asked.ticket, b"", str(error))
        log.info("renewed the certificate of node %s", node)
        return Renewed(asked.ticket, made)

    async def run(self) -> None:
        """Watch the charter and the certificate until cancelled."""
        while True:
            try:
                self._look()
                await self._take_back_if_early()
                await self._renew_if_due()
            except (
                EdgepartError,
                OSError,
            ) as error:  # a full disk, a damaged file: what is in memory still counts
                log.error("who is in, and for how long, may be out of date: %s", error)
                self._stamp = self._file_stamps()
            await asyncio.sleep(LOOK_S)

    def _look(self) -> None:
        if self._file_stamps() != self._stamp:
            self._changed(read_charter(self._identity.directory))

    async def _take_back_if_early(self) -> None:
        """Take the previous certificate again if this one is not valid yet, because other devices refuse such
        a one."""
        now = self._clock()
        if not certificates.not_yet_valid(self._certificate, now):
            return
        before = await asyncio.to_thread(self._identity.take_back, now)
        if before is None:
            return
        self._certificate = before
        self._links.renew()
        log.warning(
            "this device's certificate was renewed by a clock that was wrong, and is not valid yet: the one before it was "
            "taken again"
        )

    async def _renew_if_due(self) -> None:
        now = self._clock()
        if self._warn_at > now + WARN_S or self._try_at > now + AGAIN_S:  # The clock went back.
            self._warn_at = self._try_at = 0.0
        if now >= self._warn_at and (told := self.warnings()):
            self._warn_at = now + WARN_S
            for line in told:
                log.warning("%s", line)
        if now < self._try_at or not certificates.due(self._certificate, now):
            return
        self._try_at = now + AGAIN_S
        if self._identity.is_issuer and self._too_late(now):
            return  # the warnings say so
        request = await asyncio.to_thread(self._identity.renewal)
        if self._identity.is_issuer:
            made = await asyncio.to_thread(self._identity.issue, request, now, self._identity.node_id)
            await self._keep(made)
            return
        issuers_first = sorted(self._members, key=lambda n: not charter.is_issuer(self._members[n].version))
        for node in issuers_first:
            if charter.understands(self._members[node].version) and await self._renew_through(node, request):
                return
        log.info("nobody who is here can renew this device's certificate: the CA's key is elsewhere")

    async def _renew_through(self, node: str, request: bytes) -> bool:
        try:
            answer, _ = await self._ask(node, WantCertificate(0, request))
            if not isinstance(answer, Renewed) or answer.error:
                log.debug("%s does not renew the certificate: %s", node, getattr(answer, "error", "nonsense"))
                return False
            await self._keep(answer.certificate)
        except (Unavailable, NotAuthorised) as error:
            log.info("%s did not renew the certificate: %s", node, error)
            return False
        return True

    async def _keep(self, encoded: bytes) -> None:
        self._certificate = await asyncio.to_thread(self._identity.keep, encoded, self._clock())
        self._links.renew()
        days = certificates.seconds_left(self._certificate, self._clock()) / 86400
        log.info("this device's certificate was renewed: it is good for %.0f days", days)

    def _too_late(self, now: float) -> str:
        return certificates.too_late(self._identity.ca, self._certificate, now)

    # For people

    def warnings(self) -> list[str]:
        """The problems that somebody should solve, one sentence each."""
        now = self._clock()
        if why := self._too_late(now) if self._identity.is_issuer else "":
            return [why]  # By a wrong clock, the warnings below would be wrong too.
        found = []
        if certificates.not_yet_valid(self._certificate, now):
            found.append(
                "this device's certificate is not valid yet by its clock, so others refuse it: if the clock is right, "
                "delete `identity/` and join anew"
            )
        left_s = certificates.seconds_left(self._certificate, now)
        if left_s < WARNED_BELOW.total_seconds():
            when = f"ends in {left_s / 86400:.0f} days" if left_s > 0 else "has ended: new links are refused"
            found.append(
                f"this device's certificate {when}; it is renewed as soon as a device with the CA's key is here "
                "(`edgepart ca import` makes one of this, given a copy)"
            )
        if certificates.seconds_left(self._identity.ca, now) < CA_WARNED_BELOW_S:
            found.append("the cluster's CA ends within a year: make a new cluster before that")
        return found

    def document(self) -> dict[str, Any]:
        """The part of `edgepart status` about certificates. It holds no secret."""
        issuers = [m.name for m in self._members.values() if charter.is_issuer(m.version)]
        return {
            "certificate_ends_at": self._certificate.not_valid_after_utc.timestamp(),
            "holds_ca_key": self._identity.is_issuer,
            "issuers": sorted(issuers),
            "revoked": sorted(self.revoked_nodes),
            "credential_number": self.charter.credential.number if self.charter.credential else 0,
            "warnings": self.warnings(),
        }
