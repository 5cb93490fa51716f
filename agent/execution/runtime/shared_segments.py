"""Shared segments: the sessions that programs share. Equal segments share one session, which is freed with the last program
that uses it. A door: it makes sessions.

With a compiler (compiler.py), segments are optimised once and kept on disk. Without one, and where compiling fails, a
session is made of the segment as it is in the plan.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from edgepart.agent.execution.nchwc_array import KeptBlocked
from edgepart.agent.execution.runtime.loaded_segments import (
    LoadedSegment,
    load_segment,
    warm_up,
    wrap_session,
)
from edgepart.agent.execution.runtime.segment_weights import HeldWeights, Weight
from edgepart.agent.host.process_memory import give_back
from edgepart.planner.errors import EdgepartError
from edgepart.planner.plans.plan import Program, Segment, Transfer

log = logging.getLogger(__name__)


class NotCompiled(EdgepartError):
    """A segment has no compiled form on this device. That is no fault: the segment is loaded as it is in the plan."""


class SegmentCompiler(Protocol):
    """The interface of compiler.py for `Sessions`. `weights` is called only if something was not compiled before."""

    def keep(
        self,
        program: Program,
        transfers: Sequence[Transfer],
        weights: Callable[[Segment], Mapping[str, Weight]],
    ) -> KeptBlocked: ...

    def load(
        self, segment: Segment, ports: frozenset[str], weights: Callable[[Segment], Mapping[str, Weight]]
    ) -> LoadedSegment: ...

    def make_room(self) -> None: ...


class SharedSegments:
    """The sessions that are held, each with the number of programs that it is held for. Not thread-safe."""

    def __init__(
        self,
        weights: HeldWeights,
        compiler: SegmentCompiler | None,
        threads: int,
        level: Any,
        *,
        warmed: bool,
    ) -> None:
        """`level` and `warmed` are as for `Sessions`."""
        self._weights = weights
        self._compiler = compiler
        self._threads = threads
        self._level = level
        self._warmed = warmed
        self._loaded: dict[tuple[str, str, frozenset[str]], LoadedSegment] = {}
        """Sessions by engine, digest of the segment, and blocked ports."""

    def __len__(self) -> int:
        return len(self._loaded)

    def hold(self, segment: Segment, ports: frozenset[str]) -> LoadedSegment:
        """The segment's session, whose `ports` are blocked, held for one more program until `drop`. Raises InternalError if
        ONNX Runtime refuses the segment, and NotCompiled if the ports cannot be blocked."""
        loaded = self._loaded.get((segment.engine, segment.digest, ports))
        if loaded is None:
            loaded = self._compile(segment, ports) or self._load_as_planned(segment)
            give_back()  # Making a session takes twice its weights for a moment; the next session needs that memory.
            loaded.ports = ports
            self._loaded[segment.engine, segment.digest, ports] = loaded
        loaded.programs += 1
        return loaded

    def drop(self, held: Sequence[LoadedSegment]) -> None:
        """Undo one `hold` of each of these sessions."""
        for loaded in held:
            loaded.programs -= 1
            if loaded.programs == 0:
                del self._loaded[loaded.segment.engine, loaded.segment.digest, loaded.ports]
                if loaded.holds_weights:
                    self._weights.drop(loaded.segment)

    def _compile(self, segment: Segment, ports: frozenset[str]) -> LoadedSegment | None:
        """The compiled segment; None if there is no compiler, the segment is the whole model, is for an engine, or has no
        compiled form.
        Raises NotCompiled in the last case if `ports` are to be blocked, because an uncompiled session has no blocked
        ports."""
        if self._compiler is None or segment.whole or segment.engine:
            return None
        try:
            loaded = self._compiler.load(segment, ports, self._weights.read)
            if self._warmed:
                warm_up(loaded)
            return loaded
        except NotCompiled as error:
            if ports:
                raise
            log.warning("%s; it is loaded as it is in the plan", error)
            return None

    def _load_as_planned(self, segment: Segment) -> LoadedSegment:
        values = self._weights.hold(segment)
        try:
            same = self._find_same_model(segment)
            loaded = (
                wrap_session(segment, same.session, same.weights)
                if same is not None
                else load_segment(segment, values, self._threads, self._level)
            )
            loaded.holds_weights = True
            if self._warmed:
                warm_up(loaded)
            return loaded
        except BaseException:
            self._weights.drop(segment)
            raise

    def _find_same_model(self, segment: Segment) -> LoadedSegment | None:
        """The session of the same whole model with other shapes, which takes any that the model's file leaves free."""
        digests = [ref.digest for ref in segment.weights]
        for one in self._loaded.values() if segment.whole else ():
            other = one.segment
            alike = (other.engine, other.model) == (segment.engine, segment.model)
            if other.whole and alike and [ref.digest for ref in other.weights] == digests:
                return one
        return None
