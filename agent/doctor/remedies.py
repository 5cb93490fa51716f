"""Remedies: the text for the user about each fault, and the order in which several faults count. Facts: no rule, no door.

In the texts, {address} is the address that was tried, {its_port} its port, {port} this agent's port, and {text} the error's
text. {here} and {there} are the versions of this agent and the other one.
"""

from __future__ import annotations

from edgepart.agent.net.faults import Fault

NO_CONNECTION = (Fault.REFUSED, Fault.SILENT, Fault.UNREACHABLE, Fault.UNKNOWN_NAME)

FAULT_ORDER: tuple[Fault | None, ...] = (
    None,
    Fault.NO_WAY_BACK,
    Fault.TURNED_AWAY,
    Fault.OURS_REVOKED,
    Fault.REVOKED,
    Fault.OURS_EXPIRED,
    Fault.OURS_NOT_TAKEN,
    Fault.EXPIRED,
    Fault.NOT_YET_VALID,
    Fault.PROTOCOL,
    Fault.CLOSED,
    Fault.REFUSED,
    Fault.SILENT,
    Fault.OTHER_CLUSTER,
    Fault.NO_TLS,
    Fault.OTHER_NODE,
    Fault.UNREACHABLE,
    Fault.UNKNOWN_NAME,
    Fault.ITSELF,
)
"""Faults in the order in which they count: the address whose try got furthest tells most. The answer of a wrong box tells
less than silence at the right one's address, because many boxes share the address of a container's bridge."""

_CLOCKS = "set the clocks of both boxes right (`timedatectl`); where they are, it has to join anew"

REMEDIES: dict[Fault, tuple[str, str]] = {  # The reason, and what to do.
    Fault.REFUSED: (
        "{address} refuses: nobody listens there, or a firewall says so",
        "start its agent; if it runs, look at its --listen, and let its port in (`ufw allow {its_port}/tcp`)",
    ),
    Fault.SILENT: (
        "{address} does not answer: a firewall, an address of another network, or an agent that stands still",
        "on it, let TCP port {its_port} in; on Wi-Fi, turn off the access point's client isolation",
    ),
    Fault.UNREACHABLE: (
        "this device has no way to {address}",
        "bring both to one network, or name an address that is reached with --peer",
    ),
    Fault.UNKNOWN_NAME: (
        "the name in {address} is not known here",
        "give --peer an address, or a name that `getent hosts` knows",
    ),
    Fault.NO_TLS: (
        "what answers at {address} is no agent of this kind: {text}",
        "look at what listens on that port, and at --peer",
    ),
    Fault.OTHER_CLUSTER: (
        "{address} shows a certificate of another cluster",
        "let it join this one: delete its identity/, then `edgepart join TOKEN`; or take it out of --peer",
    ),
    Fault.NOT_YET_VALID: ("its certificate is not valid yet, by this device's clock", _CLOCKS),
    Fault.EXPIRED: ("its certificate has expired, by this device's clock", _CLOCKS),
    Fault.OURS_EXPIRED: ("by its clock, this device's certificate has expired", _CLOCKS),
    Fault.OURS_NOT_TAKEN: (
        "it does not take this device's certificate: {text}",
        "compare the clocks; if they agree, this device is in another cluster, and has to join anew",
    ),
    Fault.REVOKED: (
        "it was put out of the cluster (revoked)",
        "nothing, if that is meant; else delete its identity/ and let it join anew: it gets another id",
    ),
    Fault.OURS_REVOKED: (
        "it says that this device was put out of the cluster",
        "delete identity/ here and join anew",
    ),
    Fault.OTHER_NODE: (
        "another member answers at {address}",
        "take the old address out of --peer; was a state folder copied, or an address given to another box?",
    ),
    Fault.ITSELF: (
        "{address} is this agent itself",
        "take it out of --peer; was the state folder copied to another box, let that one join anew",
    ),
    Fault.NO_WAY_BACK: (
        "this device reaches it, but it does not reach this device",
        "here, let TCP port {port} in; on a router or in a container, members need a way to this device, too",
    ),
    Fault.TURNED_AWAY: ("it refuses the link: {text}", "do what it says"),
    Fault.PROTOCOL: (
        "it sends what this version does not understand (it runs {there}, this device {here})",
        "upgrade the older one",
    ),
    Fault.CLOSED: (
        "it closes the connection without a word (it runs {there}, this device {here})",
        "look at its log: this device may be put out there, or one of them is too old",
    ),
}
