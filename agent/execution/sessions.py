"""Sessions: the ONNX Runtime sessions of the programs that this device holds. A door: the only module that runs them, and
with compiler.py the only one that makes them.

Where it is given a Compiler (compiler.py), segments are optimised once and kept on disk, and what goes from segment to
segment stays in the order that convolutions compute in. Else, and where that fails, a session is made of the segment as
it is in the plan, as described here:

Weights are not in a segment's model. Those that the store has as files are given to ONNX Runtime as such: it maps
them, packs what it computes with into memory of its own, and lets the file go again, so that a session takes its weights
once. (OrtValues it copies, and keeps the mapped file beside the copy.) Equal segments share one session, which is let go
with the last program that uses it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto, TensorProto, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as ort_types

from edgepart.agent.execution.copies import Scratch
from edgepart.agent.execution.nchwc_array import PLAIN, KeptBlocked
from edgepart.agent.execution.nchwc_choice import ports_of
from edgepart.agent.execution.prepared import describe
from edgepart.agent.host.process_memory import give_back
from edgepart.agent.wire.dtypes import element_dtype, is_native, is_sub_byte, onnx_number
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import EdgepartError, InternalError, ModelError, RequestError
from edgepart.planner.plans.plan import Program, Segment, Transfer, WeightRef
from edgepart.planner.region import Array

log = logging.getLogger(__name__)

_CPU = ort_types.OrtDevice(ort_types.OrtDevice.cpu(), ort_types.OrtDevice.default_memory(), 0)
SILENT = 4
"""Of ONNX Runtime's log, which goes past ours: only what it dies of. Requests cause the rest, and the errors say it."""
TIMED_RUNS = 3
"""Of a segment before its plan serves; the best counts."""

WeightSource = Callable[[WeightRef], Array | Path]
"""Gives a weight's bytes: a file that holds just these, or an array of any type and shape with `nbytes` bytes,
contiguous."""

Weight = Any
"""An OrtValue, or the Path of a file."""

ORT_ERRORS: tuple[type[Exception], ...] = (
    ort_types.Fail,
    ort_types.InvalidArgument,
    ort_types.InvalidGraph,
    ort_types.InvalidProtobuf,
    ort_types.NoModel,
    ort_types.NoSuchFile,
    ort_types.NotImplemented,
    ort_types.EPFail,
    ort_types.EngineError,
    ort_types.RuntimeException,
    RuntimeError,
    TypeError,
    ValueError,
    MemoryError,
)
"""What ONNX Runtime's Python front raises; its errors have no common ancestor but Exception."""

_EXACT_PRODUCTS = "session.x64quantprecision"


@dataclass(eq=False)
class LoadedModel:
    """A session with what it needs to be called."""

    called: str
    """What errors call it."""
    session: Any
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    dtypes: Mapping[str, np.dtype[Any] | None]
    """By the value's name in the segment's model; None for what is no tensor."""
    weights: tuple[Any, ...]
    """OrtValues: they must live as long as the session, which keeps only their addresses."""
    plain: bool
    """Whether numpy knows every type that goes in or out."""

    def run(self, inputs: Sequence[Value], options: Any = None) -> list[Value]:
        """Outputs in their order. RequestError says what ONNX Runtime did not like about these
        inputs. `options` are ort.RunOptions, by which another thread can end the run."""
        try:
            if self.plain:
                feed = dict(zip(self.input_names, inputs, strict=True))
                return list(self.session.run(self.output_names, feed, options))
            return self._run_bound(inputs, options)
        except ORT_ERRORS as error:
            raise self.refused(error) from error

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> BoundRun:
        """A run with these arrays, all of types that numpy knows, as often as wanted."""
        return BoundRun(self, _ort_values(inputs), _ort_values(outputs), [_CPU] * len(outputs))

    def refused(self, error: Exception) -> RequestError:
        """What ONNX Runtime raised, as it is told."""
        if "bad_alloc" in str(error) or isinstance(error, MemoryError):
            return RequestError(
                f"this device has not the memory for this request: {self.called} was refused more"
            )
        return RequestError(f"ONNX Runtime could not run {self.called} on this request's inputs: {error}")

    def _run_bound(self, inputs: Sequence[Value], options: Any) -> list[Value]:
        binding = self.session.io_binding()
        memory = []  # of the values bound, which the binding does not keep
        for name, value in zip(self.input_names, inputs, strict=True):
            if isinstance(value, np.ndarray) and is_native(value.dtype):
                binding.bind_cpu_input(name, value)
            elif isinstance(value, np.ndarray) and is_sub_byte(value.dtype):
                memory.append(packed := _packed(value))
                kind = onnx_number(value.dtype)
                binding.bind_input(name, "cpu", 0, kind, value.shape, packed.ctypes.data)
            else:
                binding.bind_ortvalue_input(name, as_ort_value(value))
        for name in self.output_names:
            binding.bind_output(name)
        self.session.run_with_iobinding(binding, options)
        return [
            _as_array(value, self.dtypes[name])
            for name, value in zip(self.output_names, binding.get_outputs(), strict=True)
        ]


@dataclass(eq=False)
class BoundRun:
    """A run whose outputs are written where the caller wants them, so that nothing is copied."""

    loaded: LoadedModel
    feeds: Any
    fetches: Any
    devices: Sequence[Any]

    def run(self, options: Any = None) -> None:
        """RequestError as LoadedModel.run, also where an output has another shape than its array."""
        loaded = self.loaded
        try:
            loaded.session.run_with_ortvaluevector(
                options, loaded.input_names, self.feeds, loaded.output_names, self.fetches, self.devices
            )
        except ORT_ERRORS as error:
            raise loaded.refused(error) from error


def _ort_values(arrays: Sequence[Array]) -> Any:
    """Over the arrays' own memory."""
    values = ort_types.OrtValueVector()
    for array in arrays:
        values.push_back(ort_types.OrtValue.ortvalue_from_numpy(array, _CPU))
    return values


AS_PLANNED = "as planned"
"""The form of a session that ONNX Runtime has made of the segment as it is in the plan."""


@dataclass(eq=False)
class LoadedSegment(LoadedModel):
    """Shared by all programs that hold an equal segment."""

    segment: Segment
    form: str = AS_PLANNED
    """How it was made, for people."""
    ports: frozenset[str] = frozenset()
    """Names of those that take and give blocked arrays."""
    holds_weights: bool = False
    """Whether `Sessions` holds its weights for it."""
    programs: int = 0
    """How many prepared programs use it."""


@dataclass(eq=False)
class PreparedProgram:
    """A program whose sessions are made. It can be run until it is garbage, also after `Sessions.release`."""

    program: Program
    loaded: tuple[LoadedSegment, ...]
    dtypes: Mapping[str, np.dtype[Any]] = field(default_factory=dict)
    """By tensor of the plan, for those that go in or out of a segment here and are tensors."""
    kept: KeptBlocked = PLAIN
    """What its segments give and take blocked."""

    def run(
        self, segment: int, inputs: Sequence[Value], wanted: Callable[[], bool] = lambda: True
    ) -> list[Value]:
        """Run segment number `segment`: values per input port in, values per output port out.
        RequestError. `wanted` is for programs whose runs may have to wait (supervisor.py)."""
        return self.loaded[segment].run(inputs)

    def stop(self) -> None:
        """A run in this process cannot be ended."""

    def scratch(self) -> Scratch:
        """Memory for what a run's inputs are made in."""
        return Scratch()

    def best_s(self, segment: int, budget_s: float) -> float | None:
        """Seconds that a segment takes on made-up inputs, the best of some runs; None where there is no time left, or it
        cannot be run before requests come."""
        inputs = made_up_inputs(self.loaded[segment]) if budget_s > 0 else None
        if inputs is None:
            return None
        best, began_s = float("inf"), time.perf_counter()
        for _ in range(TIMED_RUNS):
            run_s = time.perf_counter()
            self.loaded[segment].run(inputs)
            best = min(best, time.perf_counter() - run_s)
            if time.perf_counter() >= began_s + budget_s:
                break
        return best


class Uncompiled(EdgepartError):
    """A segment has no compiled form here. Nobody is at fault: it is loaded as it is in the plan."""


class SegmentCompiler(Protocol):
    """What compiler.py does for sessions; `weights` are only asked for where something was not compiled before."""

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


_Key = tuple[str, str, tuple[int, ...]]
"""What one value is shared by: the same bytes may be weights of several shapes (zeros, mostly)."""


class Sessions:
    """Makes, shares and lets go of sessions. Thread-safe; preparations happen one after the other."""

    def __init__(
        self,
        threads: int,
        weights: WeightSource,
        *,
        level: Any = None,
        warmed: bool = True,
        compiler: SegmentCompiler | None = None,
        rest: Callable[[float], None] = lambda took_s: None,
    ) -> None:
        """`level` is an ort.GraphOptimizationLevel, None ONNX Runtime's default, which a compiler goes by. Sessions that
        are not `warmed` are ready sooner, and slower the first time. `rest` is called after each session that took so
        long to make: it may wait, so that what is served meanwhile gets its share of the device."""
        self._rest = rest
        self._unwanted: deque[Sequence[LoadedSegment]] = deque()
        self._compiler = compiler
        self._threads = threads
        self._level = level
        self._warmed = warmed
        self._read_weight = weights
        self._loaded: dict[tuple[str, frozenset[str]], LoadedSegment] = {}
        self._weights: dict[_Key, tuple[Any, int]] = {}
        self._lock = Lock()

    def prepare(self, program: Program, transfers: Sequence[Transfer] = ()) -> PreparedProgram:
        """Sessions for all segments, warmed up; `transfers` are the plan's, without which nothing is kept blocked.
        InternalError names the segment that ONNX Runtime refuses; then nothing is held."""
        try:
            with self._lock:
                held, kept = self._prepared(program, transfers)
        finally:
            give_back()
            self._let_go()
        pairs = zip(
            program.segments, held, strict=True
        )  # A shared session's own segment may name other tensors.
        ports = [(port, one) for segment, one in pairs for port in (*segment.inputs, *segment.outputs)]
        found = {port.piece.tensor: one.dtypes[port.name] for port, one in ports}
        dtypes = {tensor: dtype for tensor, dtype in found.items() if dtype is not None}
        if self._compiler is not None:
            log.info("a program of %d segments: %s", len(held), _forms(held, kept))
        return PreparedProgram(program, tuple(held), dtypes, kept)

    def release(self, prepared: PreparedProgram) -> None:
        """Forget a program: what no other program uses is freed as soon as a run in progress lets go of
        it. Never waits: while a program is prepared, the one that prepares it does this afterwards."""
        self._unwanted.append(prepared.loaded)
        self._let_go()

    def _prepared(
        self, program: Program, transfers: Sequence[Transfer]
    ) -> tuple[list[LoadedSegment], KeptBlocked]:
        kept = PLAIN
        if self._compiler is not None and transfers:
            kept = self._compiler.keep(program, transfers, self._weights_of)
        try:
            held = self._hold_all(program, kept)
        except Uncompiled as error:
            log.warning("%s; nothing is kept in blocks between this program's segments", error)
            held, kept = self._hold_all(program, PLAIN), PLAIN
        if self._compiler is not None:
            self._compiler.make_room()
        return held, kept

    def _let_go(self) -> None:
        while self._unwanted and self._lock.acquire(blocking=False):
            try:
                self._drop(self._unwanted.popleft())
                give_back()
            except IndexError:  # another thread took the last one
                return
            finally:
                self._lock.release()

    @property
    def held(self) -> tuple[int, int]:
        """How many distinct sessions and weights are held now."""
        return len(self._loaded), len(self._weights)

    def _hold_all(self, program: Program, kept: KeptBlocked) -> list[LoadedSegment]:
        held: list[LoadedSegment] = []
        try:
            for segment in program.segments:
                began_s = time.perf_counter()
                held.append(self._hold(segment, ports_of(segment, kept)))
                self._rest(time.perf_counter() - began_s)
        except BaseException:
            self._drop(held)
            raise
        return held

    def _hold(self, segment: Segment, ports: frozenset[str]) -> LoadedSegment:
        loaded = self._loaded.get((segment.digest, ports))
        if loaded is None:
            loaded = self._compiled(segment, ports) or self._as_planned(segment)
            give_back()  # Making a session takes twice its weights for a moment, and the next one is to have that.
            loaded.ports = ports
            self._loaded[segment.digest, ports] = loaded
        loaded.programs += 1
        return loaded

    def _compiled(self, segment: Segment, ports: frozenset[str]) -> LoadedSegment | None:
        """None where there is no compiled form, or is to be none; Uncompiled where ports should be blocked, too."""
        if self._compiler is None or segment.whole:
            return None
        try:
            loaded = self._compiler.load(segment, ports, self._weights_of)
            if self._warmed:
                warm_up(loaded)
            return loaded
        except Uncompiled as error:
            if ports:
                raise
            log.warning("%s; it is loaded as it is in the plan", error)
            return None

    def _as_planned(self, segment: Segment) -> LoadedSegment:
        values = self._hold_weights(segment)
        try:
            loaded = load_segment(segment, values, self._threads, self._level)
            loaded.holds_weights = True
            if self._warmed:
                warm_up(loaded)
            return loaded
        except BaseException:
            self._drop_weights(segment)
            raise

    def _weights_of(self, segment: Segment) -> dict[str, Weight]:
        """By initializer name, to compile with."""
        return {ref.name: _weight_value(ref, self._read_weight(ref)) for ref in segment.weights}

    def _drop(self, held: Sequence[LoadedSegment]) -> None:
        for loaded in held:
            loaded.programs -= 1
            if loaded.programs == 0:
                del self._loaded[loaded.segment.digest, loaded.ports]
                if loaded.holds_weights:
                    self._drop_weights(loaded.segment)

    def _hold_weights(self, segment: Segment) -> dict[str, Any]:
        values: dict[str, Any] = {}
        fresh = {_key(ref): ref for ref in segment.weights if _key(ref) not in self._weights}
        made = {key: _weight_value(ref, self._read_weight(ref)) for key, ref in fresh.items()}
        for ref in segment.weights:
            value, users = self._weights.get(_key(ref), (made.get(_key(ref)), 0))
            self._weights[_key(ref)] = (value, users + 1)
            values[ref.name] = value
        return values

    def _drop_weights(self, segment: Segment) -> None:
        for ref in segment.weights:
            value, users = self._weights.pop(_key(ref))
            if users > 1:
                self._weights[_key(ref)] = (value, users - 1)


def load_model(model: Path | bytes, *, level: Any = None, threads: int = 0) -> LoadedModel:
    """One session over a whole model: what every plan's answer is compared with. ModelError if ONNX Runtime refuses
    it."""
    source, called = (model, "the model") if isinstance(model, bytes) else (str(model), model.name)
    options = session_options(threads, {}, level)
    try:
        session = made_session(source, options)
    except ORT_ERRORS as error:
        raise ModelError(f"ONNX Runtime {ort.__version__} cannot load {called}: {error}") from error
    names = [arg.name for arg in session.get_inputs()], [arg.name for arg in session.get_outputs()]
    types, plain = _types(session)
    return LoadedModel(called, session, tuple(names[0]), tuple(names[1]), types, (), plain)


def load_segment(
    segment: Segment, weights: Mapping[str, Weight], threads: int, level: Any = None
) -> LoadedSegment:
    """A session; `weights` by initializer name. InternalError if ONNX Runtime refuses it."""
    values = {name: value for name, value in weights.items() if not isinstance(value, Path)}
    files = {name: value for name, value in weights.items() if isinstance(value, Path)}
    options = session_options(threads, values, level)
    model = external(onnx.load_model_from_string(segment.model), files, options) if files else segment.model
    try:
        session = made_session(model, options)
    except ORT_ERRORS as error:
        raise InternalError(
            f"ONNX Runtime {ort.__version__} cannot load {describe(segment)}: {error}"
        ) from error
    return loaded_segment(segment, session, tuple(values.values()))


def loaded_segment(
    segment: Segment, session: Any, weights: tuple[Any, ...], form: str = AS_PLANNED
) -> LoadedSegment:
    """InternalError where the session lacks a port."""
    types, plain = _types(session)
    names = tuple(p.name for p in segment.inputs), tuple(p.name for p in segment.outputs)
    if absent := {*names[0], *names[1]} - set(types):
        raise InternalError(
            f"{describe(segment)} has no input or output {sorted(absent)}, which its ports name"
        )
    return LoadedSegment(
        describe(segment), session, *names, types, weights, plain, segment=segment, form=form
    )


def _forms(held: Sequence[LoadedSegment], kept: KeptBlocked) -> str:
    """How many sessions are of which form, and what is kept."""
    counted = Counter("compiled" if one.form.startswith("compiled") else one.form for one in held)
    forms = ", ".join(f"{count} {form}" for form, count in counted.items())
    return f"{forms}; {len(kept.tensors)} tensors stay in blocks of {kept.block} channels between them"


def external(model: ModelProto, files: Mapping[str, Path], options: Any) -> bytes:
    """The model, changed to have its external initializers in these files. ONNX Runtime takes them from one folder and
    what is below it, links followed."""
    found = {name: path.resolve() for name, path in files.items()}
    folder = os.path.commonpath([path.parent for path in found.values()])
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data if tensor.name in found else ():
            if entry.key == "location":
                entry.value = os.path.relpath(found[tensor.name], folder)
    return bytes(model.SerializeToString())


def _types(session: Any) -> tuple[dict[str, np.dtype[Any] | None], bool]:
    """Of each input and output by its name, and whether numpy knows them all."""
    types = {arg.name: _port_dtype(arg.type) for arg in (*session.get_inputs(), *session.get_outputs())}
    return types, all(dtype is None or is_native(dtype) for dtype in types.values())


def session_options(threads: int, weights: Mapping[str, Any], level: Any = None) -> Any:
    """`threads` of our own (0: as many as there are cores) and none that spin: a device has other work, and its
    neighbour may be the gateway."""
    options = ort.SessionOptions()
    if level is not None:
        options.graph_optimization_level = level
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    # An arena of each session would keep the most that it ever took, and sessions run one at a time. What is freed
    # after a run the next one finds in the C library's heap, as fast.
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    options.log_severity_level = SILENT  # what is wrong is in the error that is raised
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    multiply_exactly(options)
    if weights:
        options.add_external_initializers(list(weights), list(weights.values()))
    return options


def multiply_exactly(options: Any) -> None:
    """Has 8-bit products give the same integers on every processor.

    With AVX2 or AVX-512 and without VNNI, ONNX Runtime adds two products of a uint8 and an int8 in 16 bits, which are too
    few for them. Told so, its optimiser makes constant int8 weights uint8 there, from the extended level on: those products
    are exact. On other processors nothing changes, and nothing is slower."""
    options.add_session_config_entry(_EXACT_PRODUCTS, "1")


def made_session(model: str | bytes, options: Any) -> Any:
    """A session over the file or the bytes.

    `multiply_exactly` also makes those weights uint8 that quantised operators multiply with int8, for which ONNX Runtime
    then has no kernel. Products of two int8 are exact as they are: such a model is loaded without."""
    try:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except ort_types.NotImplemented as error:
        log.info("loading again with int8 weights as they are, as ONNX Runtime says: %s", error)
        options.add_session_config_entry(_EXACT_PRODUCTS, "0")
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def made_up_inputs(loaded: LoadedSegment) -> list[Array] | None:
    """To run a segment with before requests come.

    None where they could do harm: integers are indices, lengths or divisors (a division by zero kills the process), a
    loop might not end; and where shapes or values cannot be made up."""
    inputs: list[Array] = []
    for port in loaded.segment.inputs:
        dtype = loaded.dtypes[port.name]
        if dtype is None or not (dtype.kind == "f" or not is_native(dtype)) or port.piece.region.rank == 0:
            return None
        inputs.append(np.ones(port.piece.region.shape, dtype))
    looping = any(node.op_type == "Loop" for node in onnx.load_from_string(loaded.segment.model).graph.node)
    return None if looping else inputs


def warm_up(loaded: LoadedSegment) -> None:
    """One run on made-up inputs, so that the first request does not pay for first-time allocations."""
    inputs = made_up_inputs(loaded)
    if inputs is None:
        return
    try:
        loaded.run(inputs)
    except RequestError as error:
        log.info("no warm-up of %s: %s", describe(loaded.segment), error)


def as_ort_value(value: Value) -> Any:
    """An OrtValue over the array's own memory, which must outlive it. Also for types that numpy lacks."""
    array = np.asarray(value, order="C")
    if is_native(array.dtype):
        return ort.OrtValue.ortvalue_from_numpy(array)
    if is_sub_byte(array.dtype):
        raise TypeError(f"ONNX Runtime's Python front takes no {array.dtype} arrays")
    raw = array.view(np.dtype(f"u{array.dtype.itemsize}"))
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, onnx_number(array.dtype))


def _key(ref: WeightRef) -> _Key:
    return ref.digest, ref.dtype, ref.shape


def _weight_value(ref: WeightRef, blob: Array | Path) -> Weight:
    dtype = element_dtype(ref.dtype)
    if dtype is None or is_sub_byte(dtype):
        raise InternalError(f"weight {ref.name} is of {ref.dtype}, which has to be inside its segment")
    nbytes = blob.stat().st_size if isinstance(blob, Path) else blob.nbytes
    if nbytes != ref.nbytes:
        raise InternalError(
            f"weight {ref.name} ({ref.dtype}, cut from {ref.source}) has {nbytes} bytes in the store "
            f"and {ref.nbytes} in the plan"
        )
    if isinstance(blob, Path):
        return blob
    raw = np.asarray(blob).reshape(-1).view(np.uint8)
    return as_ort_value(raw.view(dtype).reshape(ref.shape))


def _port_dtype(ort_type: str) -> np.dtype[Any] | None:
    """Of ONNX Runtime's "tensor(float)"; None for seq(...), map(...), optional(...)."""
    kind, _, rest = ort_type.partition("(")
    return element_dtype(rest.rstrip(")")) if kind == "tensor" else None


def _as_array(value: Any, dtype: np.dtype[Any] | None) -> Value:
    """A numpy array of an OrtValue; copied where numpy lacks the type."""
    if dtype is None or is_native(dtype):
        return value.numpy()
    raw = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    if is_sub_byte(dtype):
        proto = TensorProto(data_type=onnx_number(dtype), dims=value.shape(), raw_data=raw)
        return numpy_helper.to_array(proto)
    return np.frombuffer(bytearray(raw), dtype).reshape(value.shape())


def _packed(array: Array) -> Array:
    """Elements under a byte as ONNX packs them, as bytes."""
    return np.frombuffer(numpy_helper.from_array(array).raw_data, np.uint8)
