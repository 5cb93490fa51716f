"""Signed drains: has users' requests to drain and remove devices signed with the CA's key. Door: the event loop,
STATE/identity; it reaches other members through its arguments.

Users ask any agent. An agent without the key has a member sign that holds it. Every member, even a stolen
one, has the credential that users show, so what is signed for other devices is bounded: at most half of the
members are drained or removed in this way, and no holder of the key is removed. For more than that, users
have to ask a device that holds the key.

All methods except `genuine` belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from edgepart.agent.cluster.core.core import Core
from edgepart.agent.cluster.core.draining import Draining
from edgepart.agent.cluster.state import drains
from edgepart.agent.cluster.state.events import Member
from edgepart.agent.security.charter import is_issuer
from edgepart.agent.security.identity import Identity
from edgepart.agent.wire.control import DRAINED, DRAINS, IN, REMOVING, Drain
from edgepart.agent.wire.queries import Signed, WantSigned
from edgepart.agent.wire.versions import understands
from edgepart.planner.errors import EdgepartError, Unavailable, UsageError

log = logging.getLogger(__name__)

REMEMBERED_S = 3600.0
"""How long a removal that was signed for another device counts towards that bound."""
ASK_S = 4.0
"""How long one member may take to sign."""

Ask = Callable[..., Awaitable[tuple[Any, memoryview]]]
"""Called with (node, question, timeout_s=...): returns the answer. Raises Unavailable."""


def refusal(
    entry: Drain,
    asker: str,
    me: str,
    draining: Draining,
    members: Sequence[Member],
    removed: Mapping[str, float],
) -> str:
    """Why this device, `me`, which holds the CA's key, does not sign the entry for `asker`; "" if it does.
    `removed`: nodes whose removal this device has lately signed for others."""
    if entry.version.node != asker or entry.signature:
        return "it is written in another device's name"
    if entry.state not in (IN, DRAINED, REMOVING):
        return f"no user asks for {entry.state!r}"
    try:
        following = draining.map.next(asker, entry.node, entry.name, entry.state)
    except UsageError as error:
        return str(error)
    if following != entry:
        return "the two devices know different states of it; try again"
    if entry.state == IN:
        return ""
    holders = {m.node for m in members if is_issuer(m.version)} | {me}
    if entry.state == REMOVING and entry.node in holders:
        return f"{entry.name} holds the CA's key: ask for its removal there, or where else that key is"
    off = {m.node for m in members if draining.map.state(m.node) != IN} | removed.keys() | {entry.node}
    if 2 * len(off) > len(off | {m.node for m in members}):
        return "more than half of the devices would be drained or removed: ask for that on a device that holds the CA's key"
    return ""


class DrainSigner:
    """Has one agent's entries signed, and signs entries for other members."""

    def __init__(self, identity: Identity, ask: Ask, core: Callable[[], Core]) -> None:
        self._identity = identity
        self._ask = ask
        self._core = core
        self._removed: dict[str, float] = {}
        """The time when this device signed the removal of each node for another device, on the loop's
        clock."""
        ca = identity.ca
        self.genuine: Callable[[Drain], bool] = lru_cache(4096)(lambda entry: drains.is_signed(entry, ca))
        """Returns whether the CA has signed an entry. Any thread may call it."""

    async def seal(self, entry: Drain) -> Drain:
        """Return the entry, signed here or by a member. Raises Unavailable if no device that can be reached
        holds the key, and UsageError if those that hold it refuse to sign."""
        if self._identity.is_issuer:
            return await self._sign(entry)
        me, refused = self._identity.node_id, ""
        members = [m for m in self._core().membership.members() if m.node != me]
        able = [m for m in members if understands(m.version, DRAINS)]
        for member in sorted(able, key=lambda m: not is_issuer(m.version)):
            try:
                answer, _ = await self._ask(member.node, WantSigned(0, entry), timeout_s=ASK_S)
            except Unavailable as error:
                log.info("%s does not sign now: %s", member.name, error)
                continue
            if not isinstance(answer, Signed) or answer.error:
                refused = getattr(answer, "error", "") or refused
                continue
            signed = replace(entry, signature=answer.signature)
            if self.genuine(signed):
                return signed
        if refused:
            raise UsageError(f"{refused}. Nothing was changed")
        raise Unavailable(
            f"nobody is here who could sign that {entry.name} is {entry.state}: that takes the CA's key. Start the device "
            "that holds it, or `edgepart ca import` a copy of it here. Nothing was changed",
            retry_after_s=60.0,
        )

    async def answer(self, node: str, question: WantSigned) -> Signed:
        """Sign an entry that a member wants signed; the answer says why if that is refused."""
        if not self._identity.is_issuer:
            return Signed(question.ticket, b"")
        core, entry = self._core(), question.entry
        now = asyncio.get_running_loop().time()
        self._removed = {who: at for who, at in self._removed.items() if now < at + REMEMBERED_S}
        members, me = core.membership.members(), self._identity.node_id
        why = refusal(entry, node, me, core.draining, members, self._removed)
        if why:
            log.warning("node %s wants %s %s, which is not signed: %s", node, entry.name, entry.state, why)
            return Signed(question.ticket, b"", why)
        if entry.state == REMOVING:
            self._removed[entry.node] = now
        try:
            signed = await self._sign(entry)
        except (EdgepartError, OSError) as error:
            return Signed(question.ticket, b"", str(error))
        log.info("signed for node %s that %s is %s", node, entry.name, entry.state)
        return Signed(question.ticket, signed.signature)

    async def _sign(self, entry: Drain) -> Drain:
        identity = self._identity
        return await asyncio.to_thread(lambda: drains.sign(entry, identity.ca, identity.ca_key()))
