"""Layout, Strategy and Problem: what a strategy is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from edgepart.planner.devices.cluster import Cluster
from edgepart.planner.model.graph import Graph
from edgepart.planner.region import Interval, Region


@dataclass(frozen=True, slots=True)
class Layout:
    """The region of one tensor that each device *computes*. Regions may overlap (a recomputed halo) or be equal
    (copies). A device that is not named, or whose region is empty, sits out. Together they cover the tensor, save for
    parts that nobody reads.

    Regions may overlap (a recomputed halo) or be equal (copies). A device that is not named, or whose region is
    empty, sits out. Together they cover the tensor, save for parts that nobody reads.
    """

    regions: Mapping[str, Region]
    """The region of each device, by its name."""


@dataclass(frozen=True, slots=True)
class Parted:
    """How an operator is divided along a reduced axis: each device makes the addends of its part, and who has a region
    of the output in its layout makes that region of them."""

    axis: str
    """Name of the reduced axis."""
    parts: tuple[tuple[str, Interval], ...]
    """Devices and their parts, which follow one another and make up the axis."""


class Sync(Enum):
    """How data moves between two layers, before the graph optimiser is let loose on it."""

    BROADCAST = "broadcast"
    """Every device gets everything after every layer: BBGraP's initial partition (section 3.2)."""
    HUB = "hub"
    """Through one device after every layer, which hands each its input tile: MoDNN's mapper."""
    NEEDED = "needed"
    """Only the missing boxes, straight from whoever has them."""


@dataclass(frozen=True)
class Strategy:
    """A layout for every tensor that an operator writes, and how data moves."""

    name: str
    layouts: Mapping[str, Layout]
    """By tensor name; graph inputs are not in here (the gateway has them)."""
    sync: Sync = Sync.NEEDED
    hub: str | None = None
    """The device that everything goes through with Sync.HUB."""
    layers: Mapping[str, int] = field(default_factory=dict)
    """By operator name, the layer it belongs to (planner/layers/coarsen.py). BROADCAST and HUB move data only between
    different layers; inside a layer data moves as NEEDED. Operators that are not named are layers of their own."""
    why: str = ""
    """One sentence that a user understands."""
    parted: Mapping[str, Parted] = field(default_factory=dict)
    """By name, the operators that are divided along a reduced axis; the layout of their output says where the addends
    are combined."""
    early: frozenset[str] = frozenset()
    """Tensors of which what is sent to other devices is computed and sent before the rest
    (planner/lowering/borders_first.py)."""
    detours: frozenset[str] = frozenset()
    """Tensors that go around slow links (planner/lowering/detours.py)."""
    order: Mapping[int, float] = field(default_factory=dict)
    """By layer, what begins first, where a device's work is not to go by levels (planner/lowering/by_order.py); only with
    Sync.NEEDED."""
    replicas: tuple[Strategy, ...] = ()
    """The strategies of the replicas, which are on different devices and share the requests. If there are any, all
    other fields but `name` and `why` are empty."""

    @cached_property
    def all_layouts(self) -> Mapping[str, Layout]:
        """The layouts, those of all replicas together: for people."""
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
    """Requests dealt out to these strategies, which are on different devices."""
    return Strategy(name, {}, why=why, replicas=tuple(replicas))


@dataclass(frozen=True)
class Problem:
    """What `plan(problem) -> Strategy` is asked."""

    graph: Graph
    cluster: Cluster
    gateway: str
    """The device at which requests come in and answers go out; a device of the cluster."""
    objective: str = "latency"
    """"latency" of one request, or "throughput"."""
    axis: str | None = None
    """Forces the direction of the split: "height", "width", "channel", "batch"; None leaves it to the strategy."""
    memory_limit_bytes: Mapping[str, float] = field(default_factory=dict)
    """Per device, where it is to be less than the device's own `memory_bytes`."""
    search_budget_s: float = 10.0
    """What a strategy may spend; by count of candidates, as rules have no clock (see strategies/auto.py)."""
    transfer_dtype: str = "float32"
    """What float32 numbers may be rounded to on their way from device to device (planner/plans/reduced_precision.py)."""
    borders_first: bool = False
    """Whether the best plan of any strategy computes and sends borders first where that is faster; `auto`'s does anyway."""
    relays: bool = False
    """Whether the best plan of any strategy sends data around slow links where that is faster; `auto`'s does anyway."""
    fusion: bool = True
    """Whether strategies that place whole operators keep together what the runtime computes as one
    (planner/layers/runtime_fusion.py); else they place layers, of which no plan cuts any."""
    clock: Callable[[], float] | None = field(default=None, compare=False, repr=False)
    """Seconds that pass, for searches that go on until their budget is spent. None counts how often they look."""
