"""Layout, Strategy and Problem: the input and the result of a strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from edgepart.planner.devices.cluster import Cluster
from edgepart.planner.model.graph import Graph
from edgepart.planner.placing.problem.networks import Networks
from edgepart.planner.region import Interval, Region


@dataclass(frozen=True, slots=True)
class Layout:
    """The region of one tensor that each device *computes*.

    Regions may overlap (a recomputed halo) or be equal (copies). A device that is not named, or whose region
    is empty, does not take part. Together the regions cover the tensor, except for parts that no device
    reads."""

    regions: Mapping[str, Region]
    """The region of each device, by its name."""


@dataclass(frozen=True, slots=True)
class Parted:
    """How an operator is divided along a reduced axis: each device makes the addends of its part, and each
    device that has a region of the output in its layout makes that region from the addends."""

    axis: str
    """Name of the reduced axis."""
    parts: tuple[tuple[str, Interval], ...]
    """Devices and their parts, which are consecutive and make up the axis."""


class Sync(Enum):
    """How data moves between two layers, before the graph optimiser changes it."""

    BROADCAST = "broadcast"
    """Every device gets everything after every layer: BBGraP's initial partition (section 3.2)."""
    HUB = "hub"
    """After every layer, data goes through one device, which sends each device its input tile: MoDNN's mapper."""
    NEEDED = "needed"
    """Only the missing boxes move, directly from a device that has them."""


@dataclass(frozen=True)
class Strategy:
    """A layout for every tensor that an operator writes, and how data moves."""

    name: str
    layouts: Mapping[str, Layout]
    """The layout of each tensor, by name. Graph inputs are not included (the gateway has them)."""
    sync: Sync = Sync.NEEDED
    hub: str | None = None
    """The device that all data goes through with Sync.HUB."""
    layers: Mapping[str, int] = field(default_factory=dict)
    """The layer of each operator, by name (planner/layers/coarsen.py). BROADCAST and HUB move data only
    between different layers; inside a layer data moves as with NEEDED. Operators that are not named are
    layers of their own."""
    why: str = ""
    """The reasons for the strategy, in words that a user understands."""
    parted: Mapping[str, Parted] = field(default_factory=dict)
    """The operators that are divided along a reduced axis, by name. The layout of their output says where the
    addends are combined."""
    early: frozenset[str] = frozenset()
    """Tensors whose regions for other devices are computed and sent before the rest
    (planner/lowering/borders_first.py)."""
    detours: frozenset[str] = frozenset()
    """Tensors that go around slow links (planner/lowering/detours.py)."""
    order: Mapping[int, float] = field(default_factory=dict)
    """The rank of each layer, if devices do not work by levels (planner/lowering/by_order.py): smaller ranks
    begin first. Only with Sync.NEEDED."""
    replicas: tuple[Strategy, ...] = ()
    """The strategies of the replicas, which are on different devices and share the requests. If there are
    any, all other fields except `name` and `why` are empty."""

    @cached_property
    def all_layouts(self) -> Mapping[str, Layout]:
        """The layouts, with those of all replicas together, for people."""
        if not self.replicas:
            return self.layouts
        names = dict.fromkeys(name for one in self.replicas for name in one.layouts)
        none = Layout({})
        return {
            name: Layout(
                {d: r for one in self.replicas for d, r in one.layouts.get(name, none).regions.items()}
            )
            for name in names
        }


def deal_to_replicas(name: str, replicas: Sequence[Strategy], why: str) -> Strategy:
    """A strategy that deals requests out to these strategies, which are on different devices."""
    return Strategy(name, {}, why=why, replicas=tuple(replicas))


@dataclass(frozen=True)
class Problem:
    """The input of `plan(problem) -> Strategy`."""

    graph: Graph
    cluster: Cluster
    gateway: str
    """The device of the cluster at which requests come in and answers go out."""
    objective: str = "latency"
    """"latency" of one request, or "throughput"."""
    axis: str | None = None
    """The axis along which the user forces the split: "height", "width", "channel", "batch"; None leaves it
    to the strategy."""
    memory_limit_bytes: Mapping[str, float] = field(default_factory=dict)
    """A device's memory limit in bytes, if it is to be less than the device's own `memory_bytes`."""
    search_budget_s: float = 10.0
    """Seconds that a strategy's search may take. They are converted to a number of candidates, because rules
    have no clock (see strategies/auto.py)."""
    transfer_dtype: str = "float32"
    """The type to which float32 numbers may be rounded on their way between devices
    (planner/plans/reduced_precision.py)."""
    sequences: int = 1
    """The most sequences whose states each device keeps at the same time, if the graph has states."""
    pinned: Mapping[str, Mapping[str, tuple[Region, ...]]] | None = None
    """What each device has to keep, by the state's output and the device, as other kinds of steps leave it there; None if
    devices keep what suits them."""
    answers: bool = True
    """Whether requests are answered. Those that only leave states behind compute nothing that only answers depend on."""
    answer_share: Mapping[str, float] = field(default_factory=dict)
    """The part of an output's bytes that devices send to the gateway, by its name. 1 if the output is left out: only of the
    logits of texts do devices send less (agent/wire/likely_entries.py)."""
    layer_of: Mapping[str, int] | None = None
    """The number of each operator's layer, as in the graph of another kind of steps; None if the graph's shapes decide."""
    borders_first: bool = False
    """Whether the best plan of any strategy computes and sends borders first if that is faster; `auto` does
    so anyway."""
    relays: bool = False
    """Whether the best plan of any strategy sends data around slow links if that is faster; `auto` does so anyway."""
    fusion: bool = True
    """Whether strategies that place whole operators keep operators together that the runtime computes as one
    (planner/layers/runtime_fusion.py). Otherwise they place layers, which no plan cuts."""
    clock: Callable[[], float] | None = field(default=None, compare=False, repr=False)
    """The clock, in seconds, for searches that run until their budget is spent. If None, each look at the
    clock counts as a fixed time (see strategies/placed.py)."""
    networks: Networks | None = field(default=None, compare=False, repr=False)
    """What runs the networks of strategies that are guided by one. If None, these strategies are not available."""
