"""A member that lies: a device that was let in, with the agents' own transport, that says whatever a test wants."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgepart.agent.admission import joining
from edgepart.agent.net.dispatch import CONTROL_KINDS
from edgepart.agent.net.links import CONTROL, DATA
from edgepart.agent.security.charter import CHARTERS
from edgepart.agent.security.identity import Identity
from edgepart.agent.wire.address import parse_address
from edgepart.agent.wire.codec import frame_to_message, message_to_frame
from edgepart.agent.wire.control import DRAINS, LEAVES, Heartbeat, Hello, Report
from edgepart.agent.wire.frames import Frame
from edgepart.cli.local import LocalAgent, LocalCluster
from edgepart.planner.errors import EdgepartError, Unavailable
from tests.agent.net.linked import Station

BEAT_S = 0.3


class Liar:
    """Beats and answers as a member does, so that the others take it for one; what else it says is the test's."""

    def __init__(self, me: Identity, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._station = Station(me, handle=self._heard)
        self.node = me.node_id
        self.hello = Hello(
            me.node_id,
            "liar",
            self._station.transport.boot,
            1,
            (f"127.0.0.1:{self._station.address[1]}",),
            "",
            f"0.1.0+traces.{LEAVES}.{DRAINS}.{CHARTERS}",
        )
        self.heard: dict[str, dict[str, Any]] = {}
        """By node, its last message of each kind."""
        self.computed: list[str] = []
        """Kinds of the frames of requests that it was sent."""
        self._ended = threading.Event()
        self._beating = threading.Thread(target=self._beat, daemon=True)
        self._beating.start()

    def _heard(self, node: str, channel: str, frame: Frame) -> None:
        if channel == DATA:
            if frame.kind == "Echo":
                self._send(node, DATA, Frame("Echoed", frame.header, frame.payload))
            elif frame.kind in ("Tensors", "Cancel"):
                self.computed.append(frame.kind)
            return
        message = frame_to_message(frame, CONTROL_KINDS)
        self.heard.setdefault(node, {})[frame.kind] = message
        if isinstance(message, Hello) and not message.reply:
            self._send(node, CONTROL, message_to_frame(replace(self.hello, reply=True)))

    def _beat(self) -> None:
        """It follows whom the others follow."""
        while not self._ended.wait(BEAT_S):
            for node in self._station.transport.linked_nodes():
                told = self.heard.get(node, {}).get("Heartbeat")
                leader, term, seen = (told.leader, told.term, told.seen_term) if told else ("", 0, 0)
                self.say(Heartbeat(self.hello.boot, 1, seen, leader, term), node)
                if node == leader:
                    self.say(Report(self.hello.boot, (), (), ()), node)

    def _send(self, node: str, channel: str, frame: Frame) -> None:
        with suppress(Unavailable):  # a lie may have ended the link
            self._station.transport.send(node, channel, frame)

    def say(self, message: Any, *to: str) -> None:
        """To these, or to all that it is linked with."""
        for node in to or self._station.transport.linked_nodes():
            self._send(node, CONTROL, message_to_frame(message))

    def say_frame(self, frame: Frame) -> None:
        """To all that it is linked with; what no dataclass holds, too."""
        for node in self._station.transport.linked_nodes():
            self._send(node, CONTROL, frame)

    def meet(self) -> None:
        """Until every agent counts it as a member."""

        def met() -> bool:
            for agent in self._cluster.living:
                with suppress(EdgepartError):
                    port = int(str(agent.addresses["listen"]).rpartition(":")[2])
                    node = self._station.transport.connect(None, [parse_address(f"127.0.0.1:{port}")])
                    self.say(self.hello, node)
            return all(self.state(agent) == "alive" for agent in self._cluster.living)

        self._cluster.wait(met, "the liar to be a member")

    def state(self, agent: LocalAgent) -> str:
        """What that agent takes it for."""
        return str(self.row(agent).get("state", "no member"))

    def row(self, agent: LocalAgent) -> dict[str, Any]:
        """Of that agent's members, its own."""
        members: list[dict[str, Any]] = self._cluster.status(agent)["members"]
        return next((row for row in members if row["node"] == self.node), {})

    def stop(self) -> None:
        self._ended.set()
        self._beating.join()
        self._station.transport.stop(0.0)


@contextmanager
def lying(cluster: LocalCluster, state: Path) -> Iterator[Liar]:
    """One more member of the cluster."""
    token = cluster.first.type("token", "create")["token"]
    port = int(str(cluster.first.addresses["listen"]).rpartition(":")[2])
    liar = Liar(joining.join(token, state, [("127.0.0.1", port)], "liar"), cluster)
    try:
        liar.meet()
        yield liar
    finally:
        liar.stop()
