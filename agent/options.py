"""AgentOptions: how one agent is to run, and the readers of what people type (addresses, sizes, folders).

Facts and rules: the environment is an argument, and no file or socket is opened here. Each start of an agent reads its
options before the agent is imported, so this imports little.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgepart.agent.engines.choice import AUTO, parse_providers
from edgepart.agent.mqtt.broker import Broker
from edgepart.agent.wire.address import Address, mqtt_node
from edgepart.agent.wire.vocabulary import LOCAL, MOST_BATCH_DELAY_S, OPENNESS, TRANSPORTS
from edgepart.planner.errors import UsageError

LISTEN_PORT = 7433
HTTP_PORT = 8433
GRPC_PORT = HTTP_PORT + 1
"""It is the port after that of HTTP, as with Triton's server."""
MOST_PROFILE_BUDGET_S = 600.0
MOST_CPUS = 4096


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """How one agent is to run. The options are read once, when the agent starts."""

    state: Path
    """Folder of this device's identity and store."""
    name: str | None = None
    """The device's name for people; None takes the host's name."""
    listen: Address = ("", LISTEN_PORT)
    """The address at which other agents connect: "" (and "::") is every address, of IPv4 and IPv6. A narrower host
    keeps other networks out, and the devices on them."""
    http: Address = ("127.0.0.1", HTTP_PORT)
    """The address at which clients connect. It is loopback by default: HTTP is not encrypted, so open it only to a
    network that you trust."""
    grpc: Address | None = ("127.0.0.1", GRPC_PORT)
    """The address at which clients connect with gRPC, not encrypted either; None turns gRPC off."""
    inference: str = LOCAL
    """Who may infer without the cluster's credential: "open" is everybody who reaches `http` or `grpc`, "local" programs on
    this machine, "closed" nobody."""
    client_rate: float = 100.0
    """The requests per second that another address may send without a credential; beyond that it is told to
    wait. A higher rate serves busier clients; a lower one leaves more to others."""
    peers: tuple[Address, ...] = ()
    """Members to dial besides those that mDNS finds; for networks without multicast."""
    mdns: bool = True
    """Whether to announce this device and look for others by multicast."""
    mqtt: Broker | None = None
    """A broker through which members announce themselves to each other, in addition to mDNS."""
    transport: str = "tcp"
    """How members reach each other: "tcp", or "mqtt" through the broker alone, which is slower. It must be
    the same for all members."""
    threads: int | None = None
    """The threads of ONNX Runtime; None takes every core that this process may use. Fewer leave room for other work on
    the box."""
    cpus: str | None = None
    """The CPUs on which this agent and its processes run, such as "0-3"; None is every one that this process may use."""
    leave_cores: int = 0
    """The number of cores on which ONNX Runtime starts no thread, so that others find them free."""
    nice: int = 0
    """By how much the priority of what computes is lower than usual, as nice(1) counts: 0 to 19. More leaves the box to
    others when they need it; requests then wait for them."""
    providers: tuple[str, ...] = (AUTO,)
    """The engines to compute with beside the CPU, by the names of agent/engines/catalogue.py: "auto" alone tries all that
    ONNX Runtime offers here and that compute as exactly as the CPU; "cpu" alone tries none."""
    memory_limit_bytes: int | None = None
    """The memory that the agent may take of this device, plans included; None leaves plans most of the free
    memory."""
    profile_budget_s: float = 10.0
    """How long this device times the segments of a plan before that plan may replace another. With more time,
    slow segments are noticed before they serve; with less, fewer computations are made that nobody asked for.
    0 times none."""
    measured: Path | None = None
    """A file that keeps the measurement of this device, for agents that share a machine; None keeps it in the state folder.
    An agent that starts again reads it, and measures again later, while nothing is computed."""
    compiled_bytes: int = 2 << 30
    """Disk space for segments as ONNX Runtime has optimised them for this processor. With more, plans that
    come back load quicker, also after a restart; with less, they are optimised again. 0 turns the cache off;
    values are then not kept in the blocked layout that convolutions prefer."""

    spares: int | None = None
    """The most contingency plans that are kept ready for each deployment while this agent leads; None keeps
    one for each device that serves, 0 keeps none. With more, more losses take only one message; with fewer,
    the devices load less that may never serve."""

    @property
    def device_measured(self) -> Path:
        """The file that keeps the measurement of this device."""
        return self.state / "measured.json" if self.measured is None else self.measured

    @property
    def engines_measured(self) -> Path:
        """The file that keeps the measurement of the engines. Agents that share a device's measurement share this one."""
        return self._beside("engines")

    @property
    def cores_measured(self) -> Path:
        """The file that keeps which cores are quickest; it is shared as well."""
        return self._beside("cores")

    def _beside(self, what: str) -> Path:
        if self.measured is None:
            return self.state / f"{what}.json"
        return self.measured.with_name(f"{self.measured.name}.{what}")

    def __post_init__(self) -> None:
        if self.name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", self.name):
            raise UsageError(
                f"--name {self.name!r}: up to 63 letters, digits, '.', '_', '-'; a letter or digit first"
            )
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise UsageError(f"--threads {self.threads}: give 1 to 1024, or leave it out for every core")
        if self.cpus is not None:
            parse_cpus(self.cpus)
        if self.leave_cores < 0 or (self.leave_cores and self.threads is not None):
            raise UsageError(
                f"--leave-cores {self.leave_cores}: give a number of cores, and no --threads, which says the same"
            )
        if not 0 <= self.nice <= 19:
            raise UsageError(f"--nice {self.nice}: give 0 to 19; higher priorities are the system's to give")
        parse_providers(",".join(self.providers))
        if self.memory_limit_bytes is not None and self.memory_limit_bytes <= 0:
            raise UsageError(f"--memory-limit {self.memory_limit_bytes}: give a positive number of bytes")
        if self.compiled_bytes < 0:
            raise UsageError(f"--compiled {self.compiled_bytes}: give a number of bytes, or 0 for none")
        if self.spares is not None and self.spares < 0:
            raise UsageError(f"--spares {self.spares}: give a number of plans, or 0 for none")
        if not 0 <= self.profile_budget_s <= MOST_PROFILE_BUDGET_S:
            raise UsageError(
                f"--profile-budget {self.profile_budget_s:g}: give 0 to {MOST_PROFILE_BUDGET_S:g} seconds"
            )
        if self.inference not in OPENNESS:
            raise UsageError(f"--inference {self.inference!r}: give one of {', '.join(OPENNESS)}")
        if not 0.5 <= self.client_rate <= 1e6:
            raise UsageError(f"--client-rate {self.client_rate:g}: give 0.5 to 1000000 requests a second")
        if self.transport not in TRANSPORTS:
            raise UsageError(f"--transport {self.transport!r}: give one of {', '.join(TRANSPORTS)}")
        if self.transport == "mqtt" and self.mqtt is None:
            raise UsageError("--transport mqtt: name the broker with --mqtt mqtt://HOST")
        for peer in self.peers:
            if mqtt_node(peer) is not None and self.transport != "mqtt":
                raise UsageError(f"--peer {peer[0]}: is reached through a broker: give --transport mqtt")
            if mqtt_node(peer) is None and self.transport == "mqtt":
                raise UsageError("--peer: with --transport mqtt a peer is mqtt:NODE, and needs not be named")
            if mqtt_node(peer) is None and peer[1] == 0:
                raise UsageError("--peer: port 0 is nobody's; give the port the peer listens on")


_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_delay(text: str, option: str = "--batch-delay") -> float:
    """The seconds of a short delay such as "5ms" or "0.1s". Raises UsageError, which names `option`.

    >>> parse_delay("5ms")
    0.005
    """
    found = re.fullmatch(r"([0-9]{1,5}(?:\.[0-9]{1,3})?)(ms|s)", text.strip())
    seconds = float(found[1]) * {"ms": 1e-3, "s": 1.0}[found[2]] if found else -1.0
    if not 0 <= seconds <= MOST_BATCH_DELAY_S:
        raise UsageError(
            f"{option} {text!r}: give a number and ms or s, such as 5ms; {MOST_BATCH_DELAY_S:g}s at most"
        )
    return seconds


def parse_bytes(text: str, *, option: str = "size") -> int:
    """Return the bytes that "2G", "512MiB", "1.5g" or "1000000" stands for; K, M, G and T are powers of 1024.
    Raises UsageError, which names `option`, if the text is no size.

    >>> parse_bytes("2G")
    2147483648
    """
    found = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    size = round(float(found[1]) * 1024 ** _UNITS[found[2]]) if found else 0
    if size <= 0:
        raise UsageError(
            f"{option} {text!r}: give a positive number of bytes, such as 2G, 512M or 1500000000"
        )
    return size


def parse_cpus(text: str, *, option: str = "--cpus") -> frozenset[int]:
    """The CPUs in a list such as "0-3,6". Raises UsageError, which names `option`.

    >>> sorted(parse_cpus("0-2,6"))
    [0, 1, 2, 6]
    """
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,4})(?:-([0-9]{1,4}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or last >= MOST_CPUS:
            raise UsageError(f"{option} {text!r}: give numbers of CPUs, such as 0-3 or 4,5,6")
        found.update(range(first, last + 1))
    return frozenset(found)


def parse_shapes(texts: list[str], *, option: str = "--shape") -> dict[str, tuple[int, ...]]:
    """Return shapes by input name, from texts such as "NAME=1,3,224,224" (names may contain "=" and ":";
    "NAME=" is a scalar's shape).

    >>> parse_shapes(["x=1,3,224,224"])
    {'x': (1, 3, 224, 224)}
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, equals, dims = text.rpartition("=")
        if not equals or not name or not re.fullmatch(r"(?:[0-9]{1,10}(?:,[0-9]{1,10})*)?", dims):
            raise UsageError(f"{option} {text!r}: give NAME=D0,D1,..., such as {option} x=1,3,224,224")
        if name in shapes:
            raise UsageError(f"{option}: input {name!r} is given twice; give it once")
        shapes[name] = tuple(int(dim) for dim in dims.split(",") if dim)
    return shapes


def state_folder(environ: Mapping[str, str], given: Path | None = None) -> Path:
    """The folder of the state: `given`, EDGEPART_STATE, systemd's STATE_DIRECTORY, or the user's XDG state folder."""
    if given is not None:
        return given
    if environ.get("EDGEPART_STATE"):
        return Path(environ["EDGEPART_STATE"])
    if environ.get("STATE_DIRECTORY"):
        return Path(environ["STATE_DIRECTORY"].split(":")[0])
    home = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME") or "/") / ".local" / "state")
    return Path(home) / "edgepart"
