"""Sessions: makes, shares and runs the ONNX Runtime sessions of the programs that this device holds. A door: the only
module that runs sessions, and with compiler.py the only one that makes them.

Segments whose plan names an engine get sessions on it (agent/engines); all others, which this text is about, on the CPU.

With a compiler (compiler.py), segments are optimised once and kept on disk, and tensors that go from segment to segment
stay in the order that convolutions compute in. Without one, and where compiling fails, a session is made of the segment as
it is in the plan:

Weights are not in a segment's model. ONNX Runtime gets those that the store has as files by their paths: it maps each
file, packs the weights into memory of its own, and unmaps the file, so that a session holds its weights once. (Given
OrtValues, it would copy them and keep the mapped file beside the copy.) Equal segments share one session, which is freed
with the last program that uses it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import RLock
from typing import Any, Protocol

import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto, TensorProto, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as ort_types

from edgepart.agent.engines.provider_sessions import ENGINE_ERRORS, ORT_ERRORS, make_engine_session
from edgepart.agent.execution.copies import Scratch
from edgepart.agent.execution.nchwc_array import PLAIN, KeptBlocked
from edgepart.agent.execution.nchwc_choice import ports_of
from edgepart.agent.execution.prepared import describe_segment
from edgepart.agent.host.process_memory import give_back
from edgepart.agent.wire.dtypes import element_dtype, is_native, is_sub_byte, onnx_number
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import EdgepartError, InternalError, ModelError, RequestError
from edgepart.planner.plans.plan import Program, Segment, Transfer, WeightRef
from edgepart.planner.region import Array

log = logging.getLogger(__name__)

_CPU = ort_types.OrtDevice(ort_types.OrtDevice.cpu(), ort_types.OrtDevice.default_memory(), 0)
LOG_FATAL_ONLY = 4
"""ONNX Runtime's log level: only fatal errors, as its log bypasses ours. Requests cause the other messages, and the
errors that are raised contain them."""
TIMED_RUNS = 3
"""Number of runs by which a segment is timed before its plan serves; the best time counts."""

WeightSource = Callable[[WeightRef], Array | Path]
"""Returns a weight's bytes: a file that holds nothing else, or a contiguous array of any type and shape with `nbytes`
bytes."""

Weight = Any
"""An OrtValue, or the Path of a file."""

_EXACT_PRODUCTS = "session.x64quantprecision"
_NAMES_TWICE, _NAMED_TWICE = "QDQS8ToU8Transformer", "Attempt to replace the existing tensor"
"""An optimiser of ONNX Runtime 1.32, and the error where it gives two weights one name."""


@dataclass(eq=False)
class LoadedModel:
    """A session, and the facts that are needed to run it."""

    called: str
    """The model's name in errors."""
    session: Any
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    dtypes: Mapping[str, np.dtype[Any] | None]
    """The dtypes of inputs and outputs, by their names in the segment's model; None for a value that is no tensor."""
    weights: tuple[Any, ...]
    """OrtValues, which must live as long as the session: it keeps only their addresses."""
    plain: bool
    """Whether numpy knows the types of all inputs and outputs."""

    def run(self, inputs: Sequence[Value], options: Any = None) -> list[Value]:
        """Run the model and return its outputs in their order. `options` are ort.RunOptions, by which another thread can
        end the run. Raises RequestError, which says why ONNX Runtime could not run with these inputs."""
        try:
            if self.plain:
                feed = dict(zip(self.input_names, inputs, strict=True))
                return list(self.session.run(self.output_names, feed, options))
            return self._run_bound(inputs, options)
        except ORT_ERRORS as error:
            raise self.to_request_error(error) from error

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> BoundRun:
        """A run that reads and writes these arrays and can be repeated. numpy must know all their types."""
        return BoundRun(self, _ort_values(inputs), _ort_values(outputs), [_CPU] * len(outputs))

    def to_request_error(self, error: Exception) -> RequestError:
        """The error for the client, made from what ONNX Runtime raised."""
        if "bad_alloc" in str(error) or isinstance(error, MemoryError):
            return RequestError(
                f"this device has not the memory for this request: {self.called} was refused more"
            )
        return RequestError(f"ONNX Runtime could not run {self.called} on this request's inputs: {error}")

    def _run_bound(self, inputs: Sequence[Value], options: Any) -> list[Value]:
        binding = self.session.io_binding()
        memory = []  # The binding does not keep the values alive.
        for name, value in zip(self.input_names, inputs, strict=True):
            if isinstance(value, np.ndarray) and is_native(value.dtype):
                binding.bind_cpu_input(name, value)
            elif isinstance(value, np.ndarray) and is_sub_byte(value.dtype):
                memory.append(packed := _pack(value))
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
    """A run that writes its outputs into the caller's arrays, so that nothing is copied."""

    loaded: LoadedModel
    feeds: Any
    fetches: Any
    devices: Sequence[Any]

    def run(self, options: Any = None) -> None:
        """Compute the outputs. Raises RequestError as LoadedModel.run does, also if an output has another shape than its
        array."""
        loaded = self.loaded
        try:
            loaded.session.run_with_ortvaluevector(
                options, loaded.input_names, self.feeds, loaded.output_names, self.fetches, self.devices
            )
        except ORT_ERRORS as error:
            raise loaded.to_request_error(error) from error


def _ort_values(arrays: Sequence[Array]) -> Any:
    """OrtValues that use the arrays' own memory."""
    values = ort_types.OrtValueVector()
    for array in arrays:
        values.push_back(ort_types.OrtValue.ortvalue_from_numpy(array, _CPU))
    return values


AS_PLANNED = "as planned"
"""The form of a session that was made of the segment as it is in the plan."""


@dataclass(eq=False)
class LoadedSegment(LoadedModel):
    """The session of a segment, shared by all programs that hold an equal one."""

    segment: Segment
    form: str = AS_PLANNED
    """The way in which the session was made, in words for the log."""
    ports: frozenset[str] = frozenset()
    """Names of the ports that read or write blocked arrays."""
    holds_weights: bool = False
    """Whether `Sessions` holds the segment's weights for this session."""
    programs: int = 0
    """Number of prepared programs that use the session."""


@dataclass(eq=False)
class PreparedProgram:
    """A program whose sessions are made. It can be run as long as anything refers to it, also after `Sessions.release`."""

    program: Program
    loaded: tuple[LoadedSegment, ...]
    dtypes: Mapping[str, np.dtype[Any]] = field(default_factory=dict)
    """The dtype of each of the plan's tensors that a segment here reads or writes. Sequences, maps and optionals are
    missing."""
    kept: KeptBlocked = PLAIN
    """The tensors that its segments read and write blocked."""

    def run(
        self,
        segment: int,
        inputs: Sequence[Value],
        wanted: Callable[[], bool] = lambda: True,
        overwrites: Sequence[tuple[int, int]] = (),
    ) -> list[Value]:
        """Run segment number `segment` on a value for each input port, and return one for each output port. Raises
        RequestError. `wanted` is not called: it is for programs whose runs may have to wait (segment_runs.py). Nothing is
        overwritten."""
        return self.loaded[segment].run(inputs)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """The same as `RunnableProgram.empty`."""
        return np.empty(shape, dtype)

    def stop(self) -> None:
        """Does nothing: a run in this process cannot be ended."""

    def scratch(self) -> Scratch:
        """Memory in which a run's inputs are put together."""
        return Scratch()

    def best_s(self, segment: int, budget_s: float) -> float | None:
        """Seconds that a segment takes on made-up inputs, the best of TIMED_RUNS runs or of those that fit into
        `budget_s`; None if no time is left or inputs cannot be made up."""
        inputs = make_up_inputs(self.loaded[segment]) if budget_s > 0 else None
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


_Key = tuple[str, str, tuple[int, ...]]
"""Digest, dtype and shape of a weight; segments that agree on all three share its value. The digest alone is not enough,
as the same bytes may be weights of several shapes (zeros, mostly)."""


class Sessions:
    """Makes, shares and frees sessions. Thread-safe; programs are prepared one after the other, or one while another one
    rests."""

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
        """`level` is an ort.GraphOptimizationLevel; None is ONNX Runtime's default, which is also the compiler's.
        Sessions that are not `warmed` are ready sooner, and slower in their first run. `rest` is called after each session
        with the seconds that making it took, and may wait, so that requests served meanwhile get their share of the
        device."""
        self._rest = rest
        self._unwanted: deque[Sequence[LoadedSegment]] = deque()
        self._compiler = compiler
        self._threads = threads
        self._level = level
        self._warmed = warmed
        self._read_weight = weights
        self._loaded: dict[tuple[str, str, frozenset[str]], LoadedSegment] = {}
        """Sessions by engine, digest of the segment, and blocked ports."""
        self._weights: dict[_Key, tuple[Any, int]] = {}
        self._lock = RLock()
        """Reentrant, as another program may be prepared during `rest`."""

    def prepare(self, program: Program, transfers: Sequence[Transfer] = ()) -> PreparedProgram:
        """Make the sessions of all segments, and warm them up. `transfers` are the plan's; without them nothing is kept
        blocked. Raises InternalError, which names the segment that ONNX Runtime refuses; then nothing is held."""
        try:
            with self._lock:
                held, kept = self._prepare(program, transfers)
        finally:
            give_back()
            self._drop_unwanted()
        # Pairs with the program's own segments, as the segment of a shared session may name other tensors.
        pairs = zip(program.segments, held, strict=True)
        ports = [(port, one) for segment, one in pairs for port in (*segment.inputs, *segment.outputs)]
        found = {port.piece.tensor: one.dtypes[port.name] for port, one in ports}
        dtypes = {tensor: dtype for tensor, dtype in found.items() if dtype is not None}
        if self._compiler is not None:
            log.info("a program of %d segments: %s", len(held), _forms(held, kept))
        return PreparedProgram(program, tuple(held), dtypes, kept)

    def leave_engine(self, prepared: PreparedProgram, number: int) -> PreparedProgram:
        """The program with a session on the CPU in place of the one that segment `number` has on an engine, which is
        released. Raises InternalError if the CPU refuses the segment."""
        left = prepared.loaded[number]
        segment = replace(left.segment, engine="")
        with self._lock:
            held = self._hold(segment, frozenset())
        self._unwanted.append((left,))
        self._drop_unwanted()

        def put(items: tuple[Any, ...], one: Any) -> tuple[Any, ...]:
            return (*items[:number], one, *items[number + 1 :])

        program = replace(prepared.program, segments=put(prepared.program.segments, segment))
        return replace(prepared, program=program, loaded=put(prepared.loaded, held))

    def release(self, prepared: PreparedProgram) -> None:
        """Forget a program: sessions that no other program uses are freed as soon as no run uses them. Never waits: if a
        program is being prepared, the thread that prepares it frees the sessions afterwards."""
        self._unwanted.append(prepared.loaded)
        self._drop_unwanted()

    def _prepare(
        self, program: Program, transfers: Sequence[Transfer]
    ) -> tuple[list[LoadedSegment], KeptBlocked]:
        kept = PLAIN
        if self._compiler is not None and transfers:
            kept = self._compiler.keep(program, transfers, self._weights_of)
        try:
            held = self._hold_all(program, kept)
        except NotCompiled as error:
            log.warning("%s; nothing is kept in blocks between this program's segments", error)
            held, kept = self._hold_all(program, PLAIN), PLAIN
        if self._compiler is not None:
            self._compiler.make_room()
        return held, kept

    def _drop_unwanted(self) -> None:
        while self._unwanted and self._lock.acquire(blocking=False):
            try:
                self._drop(self._unwanted.popleft())
                give_back()
            except IndexError:  # Another thread took the last one.
                return
            finally:
                self._lock.release()

    @property
    def held(self) -> tuple[int, int]:
        """The numbers of distinct sessions and of distinct weights that are held now."""
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
        loaded = self._loaded.get((segment.engine, segment.digest, ports))
        if loaded is None:
            loaded = self._compile(segment, ports) or self._load_as_planned(segment)
            give_back()  # Making a session takes twice its weights for a moment; the next session needs that memory.
            loaded.ports = ports
            self._loaded[segment.engine, segment.digest, ports] = loaded
        loaded.programs += 1
        return loaded

    def _compile(self, segment: Segment, ports: frozenset[str]) -> LoadedSegment | None:
        """The compiled segment; None if there is no compiler, the segment is the whole model, is for an engine, or has no
        compiled form.
        Raises NotCompiled in the last case if `ports` are to be blocked, because an uncompiled session has no blocked
        ports."""
        if self._compiler is None or segment.whole or segment.engine:
            return None
        try:
            loaded = self._compiler.load(segment, ports, self._weights_of)
            if self._warmed:
                warm_up(loaded)
            return loaded
        except NotCompiled as error:
            if ports:
                raise
            log.warning("%s; it is loaded as it is in the plan", error)
            return None

    def _load_as_planned(self, segment: Segment) -> LoadedSegment:
        values = self._hold_weights(segment)
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
            self._drop_weights(segment)
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

    def _weights_of(self, segment: Segment) -> dict[str, Weight]:
        """The segment's weights by initializer name, for the compiler."""
        return weight_values(segment, self._read_weight)

    def _drop(self, held: Sequence[LoadedSegment]) -> None:
        for loaded in held:
            loaded.programs -= 1
            if loaded.programs == 0:
                del self._loaded[loaded.segment.engine, loaded.segment.digest, loaded.ports]
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


def weight_values(segment: Segment, read: WeightSource) -> dict[str, Weight]:
    """The segment's weights by initializer name."""
    return {ref.name: _weight_value(ref, read(ref)) for ref in segment.weights}


def load_model(
    model: Path | bytes, *, level: Any = None, threads: int = 0, beside: Path | None = None
) -> LoadedModel:
    """One session over a whole model. Its answers are those that every plan's answers are compared with. `beside` is the
    folder of the external data of a model that is given as bytes. Raises ModelError if ONNX Runtime refuses the model."""
    source, called = (model, "the model") if isinstance(model, bytes) else (str(model), model.name)
    options = session_options(threads, {}, level)
    if beside is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(beside))
    try:
        session = make_session(source, options)
    except ORT_ERRORS as error:
        raise ModelError(f"ONNX Runtime {ort.__version__} cannot load {called}: {error}") from error
    names = [arg.name for arg in session.get_inputs()], [arg.name for arg in session.get_outputs()]
    types, plain = _types(session)
    return LoadedModel(called, session, tuple(names[0]), tuple(names[1]), types, (), plain)


def load_segment(
    segment: Segment, weights: Mapping[str, Weight], threads: int, level: Any = None
) -> LoadedSegment:
    """A session of the segment as it is, on its engine; `weights` are by initializer name. Raises InternalError if ONNX
    Runtime or the engine refuses it."""
    values = {name: value for name, value in weights.items() if not isinstance(value, Path)}
    files = {name: value for name, value in weights.items() if isinstance(value, Path)}
    options = session_options(threads, values, level)
    model = (
        with_external_weights(onnx.load_model_from_string(segment.model), files, options)
        if files
        else segment.model
    )
    try:
        session = (
            make_engine_session(segment.engine, model, options, threads)
            if segment.engine
            else make_session(model, options)
        )
    except ENGINE_ERRORS as error:
        where = f" on {segment.engine}" if segment.engine else ""
        raise InternalError(
            f"ONNX Runtime {ort.__version__} cannot load {describe_segment(segment)}{where}: {error}"
        ) from error
    return wrap_session(segment, session, tuple(values.values()), segment.engine or AS_PLANNED)


def wrap_session(
    segment: Segment, session: Any, weights: tuple[Any, ...], form: str = AS_PLANNED
) -> LoadedSegment:
    """The segment with its session. Raises InternalError if the session lacks one of the segment's ports."""
    types, plain = _types(session)
    names = tuple(p.name for p in segment.inputs), tuple(p.name for p in segment.outputs)
    if absent := {*names[0], *names[1]} - set(types):
        raise InternalError(
            f"{describe_segment(segment)} has no input or output {sorted(absent)}, which its ports name"
        )
    return LoadedSegment(
        describe_segment(segment), session, *names, types, weights, plain, segment=segment, form=form
    )


def _forms(held: Sequence[LoadedSegment], kept: KeptBlocked) -> str:
    """The number of sessions of each form, and the number of tensors kept in blocks, in words."""
    counted = Counter("compiled" if one.form.startswith("compiled") else one.form for one in held)
    forms = ", ".join(f"{count} {form}" for form, count in counted.items())
    return f"{forms}; {len(kept.tensors)} tensors stay in blocks of {kept.block} channels between them"


def with_external_weights(model: ModelProto, files: Mapping[str, Path], options: Any) -> bytes:
    """Make the model's external initializers refer to these files, and return the model's bytes. ONNX Runtime reads such
    files only from one folder and the folders below it, after resolving links; that folder is set in `options`."""
    found = {name: path.resolve() for name, path in files.items()}
    folder = os.path.commonpath([path.parent for path in found.values()])
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data if tensor.name in found else ():
            if entry.key == "location":
                entry.value = os.path.relpath(found[tensor.name], folder)
    return bytes(model.SerializeToString())


def _types(session: Any) -> tuple[dict[str, np.dtype[Any] | None], bool]:
    """The type of each input and output by its name, and whether numpy knows them all."""
    types = {arg.name: _port_dtype(arg.type) for arg in (*session.get_inputs(), *session.get_outputs())}
    return types, all(dtype is None or is_native(dtype) for dtype in types.values())


def session_options(threads: int, weights: Mapping[str, Any], level: Any = None) -> Any:
    """Options of a session with `threads` threads of its own (0: one for each core). They do not spin while they wait,
    because the device has other work to do."""
    options = ort.SessionOptions()
    if level is not None:
        options.graph_optimization_level = level
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    # Sessions run one at a time, and an arena for each would keep the most memory that its session ever took. Without
    # arenas, the next session reuses the memory that was freed to the C library's heap, and is as fast.
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    options.log_severity_level = LOG_FATAL_ONLY  # The errors that are raised say what is wrong.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    force_exact_int8_products(options)
    if weights:
        options.add_external_initializers(list(weights), list(weights.values()))
    return options


def force_exact_int8_products(options: Any) -> None:
    """Make 8-bit products give the same integers on every processor.

    With AVX2 or AVX-512 and without VNNI, ONNX Runtime adds two products of a uint8 and an int8 in 16 bits, which are too
    few. With this option its optimiser turns constant int8 weights into uint8 there, from the extended level on, and the
    products are exact. On other processors nothing changes, and nothing is slower."""
    options.add_session_config_entry(_EXACT_PRODUCTS, "1")


def make_session(model: str | bytes, options: Any) -> Any:
    """A session over the file or the bytes.

    With `force_exact_int8_products`, ONNX Runtime also turns weights into uint8 that quantised operators multiply with
    int8, for which it has no kernel. Products of two int8 are exact as they are, so such a model is loaded without the
    option. A weight that an operator multiplies with and that is an output as well gets one name twice, which ends the
    loading. Such a model is loaded without the optimiser that does so; products stay exact, because a later optimiser
    (Avx2WeightS8ToU8Transformer) turns the weights of fused products into uint8."""
    try:
        return _session(model, options)
    except ort_types.NotImplemented as error:
        log.info("loading again with int8 weights as they are, as ONNX Runtime says: %s", error)
        options.add_session_config_entry(_EXACT_PRODUCTS, "0")
        return _session(model, options)
    except ort_types.Fail as error:
        if _NAMED_TWICE not in str(error):
            raise
        log.info("loading again without %s, as ONNX Runtime says: %s", _NAMES_TWICE, error)
        return _session(model, options, disabled_optimizers=[_NAMES_TWICE])


def _session(model: str | bytes, options: Any, **more: Any) -> Any:
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"], **more)


def make_up_inputs(loaded: LoadedSegment) -> list[Array] | None:
    """Inputs with which a segment can run before requests come.

    None if they could do harm: integers may be indices, lengths or divisors (a division by zero kills the process), and a
    loop might not end. Also None if shapes or values cannot be made up."""
    inputs: list[Array] = []
    for port in loaded.segment.inputs:
        dtype = loaded.dtypes[port.name]
        if dtype is None or not (dtype.kind == "f" or not is_native(dtype)) or port.piece.region.rank == 0:
            return None
        inputs.append(np.ones(port.piece.region.shape, dtype))
    looping = any(node.op_type == "Loop" for node in onnx.load_from_string(loaded.segment.model).graph.node)
    return None if looping else inputs


def warm_up(loaded: LoadedSegment) -> None:
    """Run once on made-up inputs, so that the first request does not pay for first-time allocations."""
    inputs = make_up_inputs(loaded)
    if inputs is None:
        return
    try:
        loaded.run(inputs)
    except RequestError as error:
        log.info("no warm-up of %s: %s", describe_segment(loaded.segment), error)


def as_ort_value(value: Value) -> Any:
    """An OrtValue that uses the array's own memory, which must outlive it. Types that numpy lacks are possible, but none
    of less than a byte."""
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
    """The dtype of ONNX Runtime's "tensor(float)"; None for seq(...), map(...), optional(...)."""
    kind, _, rest = ort_type.partition("(")
    return element_dtype(rest.rstrip(")")) if kind == "tensor" else None


def _as_array(value: Any, dtype: np.dtype[Any] | None) -> Value:
    """A numpy array of an OrtValue; a copy if numpy lacks the type."""
    if dtype is None or is_native(dtype):
        return value.numpy()
    raw = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    if is_sub_byte(dtype):
        proto = TensorProto(data_type=onnx_number(dtype), dims=value.shape(), raw_data=raw)
        return numpy_helper.to_array(proto)
    return np.frombuffer(bytearray(raw), dtype).reshape(value.shape())


def _pack(array: Array) -> Array:
    """The bytes of an array whose elements are smaller than a byte, packed as ONNX does."""
    return np.frombuffer(numpy_helper.from_array(array).raw_data, np.uint8)
