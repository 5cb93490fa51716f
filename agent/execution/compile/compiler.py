"""Compiling: optimises segments once, with the ports that a program keeps blocked, and loads the optimised models. Door:
ONNX Runtime, /proc, the files of cache.py.

Sessions are run by the room runtime/. This module makes only the sessions that optimise a segment and those that load the
result. A segment that cannot be compiled is refused with the reason, and shared_segments.py has an ordinary session made of
it.
"""

from __future__ import annotations

import hashlib
import logging
import platform
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from edgepart.agent.engines.provider_sessions import ORT_ERRORS
from edgepart.agent.execution.compile import nchwc
from edgepart.agent.execution.compile.cache import MAKING, Compiled, CompiledEntry, entry_key
from edgepart.agent.execution.compile.nchwc_crops import crop_in_blocks, shapes_of
from edgepart.agent.execution.nchwc_array import PLAIN, KeptBlocked, to_blocked, to_plain
from edgepart.agent.execution.nchwc_choice import has_pictures, in_blocks, keep
from edgepart.agent.execution.prepared import describe_segment
from edgepart.agent.execution.runtime.cpu_sessions import make_session, read_weights_below, session_options
from edgepart.agent.execution.runtime.loaded_segments import LoadedSegment, wrap_session
from edgepart.agent.execution.runtime.segment_weights import Weight, give_weights
from edgepart.agent.execution.runtime.shared_segments import NotCompiled
from edgepart.planner.plans.plan import Program, Segment, Transfer

log = logging.getLogger(__name__)

Weights = Callable[[Segment], Mapping[str, Weight]]

_BLOCKS = (4, 8, 16, 32, 64)
"""The numbers of channels per block that are tried: ONNX Runtime uses one of them, depending on the processor."""
_APART_BYTES = 1024
"""Initializers of at least this size are files of their own; smaller ones stay in the model."""
FAULTS: tuple[type[Exception], ...] = (*ORT_ERRORS, OSError, LookupError)
"""Errors to expect from compiling: ONNX Runtime refuses a model, the disk is full, or a model has an unforeseen form."""
THROWAWAY_BYTES = 8 << 30
"""The most bytes that the entries of a throwaway compiler may take."""
_WAYS = "3"
"""The version of compiling. A new number makes all earlier entries invalid."""


class Compiler:
    """Compiles the segments of programs into one folder. One thread at a time."""

    def __init__(self, compiled: Compiled, threads: int) -> None:
        self._compiled = compiled
        self._threads = threads

    def keep(self, program: Program, transfers: Sequence[Transfer], weights: Weights) -> KeptBlocked:
        """Return the tensors that the program keeps blocked. This compiles the segments that were not compiled so before;
        `weights` returns the weights of a segment and is called only for those."""
        if not has_pictures(program):
            return PLAIN
        return keep(program, transfers, block(), partial(self._native, weights))

    def load(self, segment: Segment, ports: frozenset[str], weights: Weights) -> LoadedSegment:
        """Return a session whose `ports` are blocked. Raises NotCompiled, with the reason, if there is none."""
        model = self._model(segment, ports, weights)
        options = session_options(self._threads, ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
        read_weights_below(self._compiled.root.resolve(), options)
        try:
            session = ort.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except ORT_ERRORS as error:
            raise NotCompiled(
                f"ONNX Runtime cannot load what it optimised of {describe_segment(segment)}: {error}"
            ) from error
        form = f"compiled, {len(ports)} ports in blocks of {block()}" if ports else "compiled"
        return wrap_session(segment, session, (), form)

    def _model(self, segment: Segment, ports: frozenset[str], weights: Weights) -> ModelProto:
        """Return the model to load. A segment computes with plain ports in blocks, too, if other ports are blocked or if
        the runtime then has fewer operators to run: a sum becomes a part of the convolution before it, and its plain input
        is reordered for it. Raises NotCompiled."""
        whole = self._wrappable(segment)
        found = []
        for wrapped in (whole,) if ports else dict.fromkeys((ports, whole)):
            entry = self._entry(segment, wrapped, weights)
            if not ports <= entry.native:
                raise NotCompiled(f"{describe_segment(segment)} does not compute {sorted(ports)} in blocks")
            try:
                optimised = onnx.load_model_from_string(entry.model)
                found.append(nchwc.unwrap_ports(optimised, wrapped, ports))
            except FAULTS as error:
                raise NotCompiled(f"{describe_segment(segment)} cannot be compiled: {error}") from error
        return min(found, key=_operators)

    def make_room(self) -> None:
        """Delete the entries beyond the limit, after a program is loaded."""
        if gone := self._compiled.make_room():
            log.info("%d compiled segments made room for others", gone)

    def _native(self, weights: Weights, segment: Segment) -> frozenset[str]:
        if segment.engine:  # The order of blocks is the CPU provider's own.
            return frozenset()
        try:
            return self._entry(segment, self._wrappable(segment), weights).native
        except NotCompiled as error:
            log.warning("%s: its values are not kept in blocks", error)
            return frozenset()

    def _wrappable(self, segment: Segment) -> frozenset[str]:
        model = onnx.load_model_from_string(segment.model)
        found = nchwc.can_wrap(model)
        return found & in_blocks(segment, block()) if found else found

    def _entry(self, segment: Segment, ports: frozenset[str], weights: Weights) -> CompiledEntry:
        """Return the entry from the disk; if there is none, make and keep it now. Raises NotCompiled."""
        where = environment()
        key = entry_key(segment.digest, ports, where)
        try:
            entry = self._compiled.get(key, where)
            if entry is None:
                entry = self._compile_entry(segment, ports, weights(segment))
                self._compiled.put(key, entry)
            return entry
        except FAULTS as error:
            raise NotCompiled(f"{describe_segment(segment)} cannot be compiled: {error}") from error

    def _compile_entry(
        self, segment: Segment, ports: frozenset[str], weights: Mapping[str, Weight]
    ) -> CompiledEntry:
        self._compiled.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=self._compiled.root, prefix=MAKING) as making:
            model = nchwc.wrap_ports(onnx.load_model_from_string(segment.model), ports)
            # Shape inference costs the process megabytes that it never gives back, so it runs only if it is needed.
            crops = bool(ports) and any(node.op_type == "Slice" for node in model.graph.node)
            shapes = shapes_of(model) if crops else {}
            optimised = _optimise(model, weights, self._threads, Path(making))
            if crops:
                crop_in_blocks(optimised, block(), shapes)
            held = self._take_weights(optimised, Path(making), weights)
        native = nchwc.native(optimised, ports)
        return CompiledEntry(environment(), native, optimised.SerializeToString(), held)

    def _take_weights(
        self, model: ModelProto, making: Path, weights: Mapping[str, Weight]
    ) -> Mapping[str, int]:
        """Move the external initializers into the folder of weights and make the model refer to them there. Return their
        sizes in bytes, by digest."""
        held: dict[str, int] = {}
        for tensor in _initializers(model.graph):
            if tensor.data_location != TensorProto.EXTERNAL:
                continue
            at = {entry.key: entry.value for entry in tensor.external_data}
            nbytes = int(at["length"])
            data = np.memmap(making / at["location"], np.uint8, "r", int(at.get("offset", 0)), (nbytes,))
            like = weights.get(tensor.name)
            digest = self._compiled.put_weight(data.data, like if isinstance(like, Path) else None)
            held[digest] = nbytes
            del tensor.external_data[:]
            tensor.external_data.add(key="location", value=f"weights/{digest}")
            tensor.external_data.add(key="length", value=str(nbytes))
        return held


@contextmanager
def throwaway(threads: int = 1) -> Iterator[Compiler]:
    """Yield a compiler whose folder is deleted afterwards. It serves to try plans as agents run them."""
    with tempfile.TemporaryDirectory(prefix="edgepart-", ignore_cleanup_errors=True) as root:
        yield Compiler(Compiled(Path(root), THROWAWAY_BYTES), threads)


def _operators(model: ModelProto) -> int:
    """The number of operators that do something with values, which a Reshape does not."""
    return sum(node.op_type != "Reshape" for node in model.graph.node)


def _initializers(graph: GraphProto) -> Iterator[TensorProto]:
    """Yield the initializers of a graph and of the graphs inside it."""
    yield from graph.initializer
    for attribute in (a for node in graph.node for a in node.attribute):
        for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from _initializers(inner)


def _optimise(model: ModelProto, weights: Mapping[str, Weight], threads: int, making: Path) -> ModelProto:
    """Return the model as ONNX Runtime optimises it for this processor. Its big initializers are in a file in `making`."""
    options = session_options(threads, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    data = give_weights(model, weights, options)
    options.optimized_model_filepath = str(making / "model.onnx")
    for name, value in (
        ("session.optimized_model_external_initializers_file_name", "initializers"),
        ("session.optimized_model_external_initializers_min_size_in_bytes", str(_APART_BYTES)),
        ("session.disable_prepacking", "1"),  # Only the session that runs the segment needs packed weights.
    ):
        options.add_session_config_entry(name, value)
    make_session(data, options)
    return onnx.load(making / "model.onnx", load_external_data=False)


@cache
def block() -> int:
    """The number of channels per block on this processor, found by trying; 0 if ONNX Runtime uses no blocks, or blocks of
    a size that is not in _BLOCKS."""
    shape = (1, 2 * max(_BLOCKS), 3, 5)
    chance = np.random.default_rng(0)
    x = chance.standard_normal(shape).astype(np.float32)
    weight = chance.standard_normal((shape[1], shape[1], 1, 1)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        "block",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    ports = frozenset({"x", "y"})
    with tempfile.TemporaryDirectory(prefix="edgepart-") as making:
        optimised = _optimise(nchwc.wrap_ports(model, ports), {}, 1, Path(making))
        if nchwc.native(optimised, ports) != ports:
            return 0
        onnx.load_external_data_for_model(optimised, making)
    opened = nchwc.unwrap_ports(optimised, ports, ports)
    options = session_options(1, ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    session = ort.InferenceSession(opened.SerializeToString(), options, providers=["CPUExecutionProvider"])
    expected = np.einsum("oc,nchw->nohw", weight[:, :, 0, 0], x)
    for size in _BLOCKS:
        (found,) = session.run(None, {"x": to_blocked(x, size)})
        if np.allclose(to_plain(found, size), expected, rtol=1e-3, atol=1e-3):
            return size
    log.warning("convolutions compute in blocks that are not known here: nothing is kept in blocks")
    return 0


@cache
def environment() -> str:
    """Everything that a compiled segment depends on besides the segment itself, as text."""
    return f"{_WAYS} onnxruntime {ort.__version__} {platform.machine()} {_features()}"


def _features(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """SHA-256 (hex) of the properties that this processor reports and that do not change while it runs."""
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError:
        text = platform.processor()
    names = "vendor_id|model name|flags|Features|CPU (?:implementer|architecture|variant|part)"
    found = sorted(set(re.findall(rf"^(?:{names})\s*:.*$", text, re.MULTILINE))) or [text]
    return hashlib.sha256("\n".join(found).encode()).hexdigest()
