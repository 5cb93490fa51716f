"""Predicted seconds on the devices of a cluster: of computing, of copying, and of messages.

Takes an operator and regions, or a number of bytes; gives seconds. The numbers come from the calibrated rates
of the cluster's devices, and from profiles of real segments if there are any. The level below is work.py,
which computes the work of an operator. Lowering and simulation ask here for single operators; searches ask
operator_cost.py, which remembers. Rules only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from edgepart.planner.access.declare.protocol import Access, Outputs
from edgepart.planner.cost.work import FUSED_BEHIND, NO_WORK, VIEWS, Work, work_of
from edgepart.planner.devices.cluster import Cluster, Link
from edgepart.planner.devices.engine import CPU, Engine
from edgepart.planner.model.graph import Graph, Operator
from edgepart.planner.plans.plan import Program, Segment
from edgepart.planner.region import Region

__all__ = ["Cost", "Profiles", "Work"]

Profiles = Mapping[tuple[str, str, int], float]
"""Measured seconds, by (`Segment.timed_as`, device pace, threads)."""


@dataclass
class Cost:
    """Seconds on the devices of one cluster for the operators of one graph."""

    cluster: Cluster
    graph: Graph
    profiles: Profiles = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._devices = {device.name: device for device in self.cluster.devices}
        self._work: dict[tuple[str, tuple[tuple[int, Region], ...]], Work] = {}
        self.free = _find_fused(self.graph)
        """Operators that cost nothing of their own: the runtime computes each together with the operator before it."""
        self._addends: dict[str, float] = {}

    def know(self, graph: Graph) -> None:
        """Adds the tensors of `graph`, which is this cost's own graph with partial sums written out."""
        for name, tensor in graph.tensors.items():
            if name not in self.graph.tensors:
                self._addends[name] = tensor.item_bytes

    def compute_s(
        self, op: Operator, access: Access, outputs: Outputs, device: str, engine: str | None = None
    ) -> float:
        """Seconds to write `outputs` of `op` on an engine of the device (None: on the quickest that can), without the start
        of its segment; infinite if the engine cannot run it."""
        work, here = self.work(op, access, outputs), self._devices[device]
        return work.seconds_on(here) if engine is None else work.seconds_with(here, engine)

    def segment_s(self, device: str, engine: str = CPU) -> float:
        """Seconds to start one segment."""
        return self._devices[device].engine(engine).segment_s

    def engines(self, device: str) -> Sequence[Engine]:
        """The engines of a device, without its CPU."""
        return self._devices[device].engines

    def copy_s(self, device: str, nbytes: float) -> float:
        """Seconds to read so many bytes and write them elsewhere in memory."""
        here = self._devices[device]
        return 2 * nbytes / (here.rates.bytes_per_s("border", nbytes) or here.memory_bytes_per_s)

    def profiled_s(self, timed_as: str, device: str) -> float | None:
        """The measured seconds of the segment on a device of this kind; None if it was not measured."""
        here = self._devices[device]
        return self.profiles.get((timed_as, here.pace, here.threads))

    def drift(self, device: str, engine: str = CPU) -> float:
        """The factor by which an engine of the device is predicted to be slower than calibrated. An engine that the device
        does not have any more drifts as its CPU does."""
        here = self._devices[device]
        return here.drift * next((one.drift for one in here.engines if one.name == engine), 1.0)

    def running_s(self, program: Program, segment: Segment) -> float:
        """Seconds of a segment of a plan that may be older than the newest measurements. They are the
        measured seconds on a device like this one if there are any, else the calibrated seconds, corrected by
        the device's drift and calibration since then."""
        measured = self.profiled_s(segment.timed_as, program.device) if segment.digest else None
        if measured is not None:
            return measured
        here = self._devices[program.device]
        now = self.drift(program.device, segment.engine) * here.slower_than(program.flops_per_s)
        return segment.calibrated_s * now if segment.calibrated_s else segment.compute_s

    def transfer_s(self, nbytes: float, link: Link) -> float:
        """Seconds from handing over a message until all of it has arrived, on an idle link."""
        return 2 * link.message_s + link.latency_s + nbytes / link.bytes_per_s

    def work(self, op: Operator, access: Access, outputs: Outputs) -> Work:
        """The work of `op` to write `outputs`; remembered."""
        key = (op.name, tuple(sorted(outputs.items(), key=lambda item: item[0])))
        found = self._work.get(key)
        if found is None:
            found = self._work[key] = self.measure(op, access, outputs, access.needs(outputs))
        return found

    def item_bytes(self, name: str) -> float:
        """Bytes per element of a tensor or constant."""
        found = self._item_bytes.get(name)
        return self._addends[name] if found is None else found

    @cached_property
    def _item_bytes(self) -> Mapping[str, float]:
        """Bytes per element of each tensor and constant of the graph, by name."""
        constants = self.graph.constants.items()
        known = {name: constant.nbytes / max(1, constant.region.size) for name, constant in constants}
        return {name: tensor.item_bytes for name, tensor in self.graph.tensors.items()} | known

    def measure(self, op: Operator, access: Access, outputs: Outputs, needs: Sequence[Region | None]) -> Work:
        """The work of `op` to write `outputs`, for which it reads the regions `needs` of its inputs; not remembered."""
        if op.op_type in VIEWS or op.name in self.free:
            return NO_WORK
        # What scatters into a state that is written in place reads nothing of it.
        unread = self.graph.in_place if op.op_type == "ScatterElements" else ()
        reads = [
            (name, region, region.size * self.item_bytes(name))
            for name, region in zip(op.inputs, needs, strict=True)
            if name and region is not None and name not in unread
        ]
        writes = [
            (region, region.size * self.item_bytes(op.outputs[index]))
            for index, region in outputs.items()
            if op.outputs[index] and op.outputs[index] not in self.graph.in_place
        ]
        return work_of(self.graph, op, access.family, access.flops(outputs), reads, writes)


def _find_fused(graph: Graph) -> frozenset[str]:
    """Names of the operators that cost nothing of their own: the runtime computes each together with the
    operator before it."""
    heads: dict[str, str] = {}
    for op in graph.operators:
        for name in op.inputs:
            before = graph.producers.get(name)
            if before is None or len(graph.consumers[name]) > 1 or name in graph.outputs:
                continue
            head = heads.get(before.name, before.op_type)
            if op.op_type in FUSED_BEHIND.get(head, ()) and _same_shape(graph, op, name):
                heads[op.name] = head
                break
    return frozenset(heads)


def _same_shape(graph: Graph, op: Operator, name: str) -> bool:
    return graph.tensors[name].shape == graph.tensors[op.outputs[0]].shape
