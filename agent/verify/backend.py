"""Backend: the ONNX backend API (onnx.backend.base) over devices that are all in this process. Door: it makes sessions.

    from edgepart.agent import backend
    prepared = backend.prepare(model, shares=(0.5, 0.3, 0.2), axis="channel")
    prepared.run([x])
    prepared.report  # {"split": {node: axis}, "opaque": {node: reason}, "devices_used": 3}

Any program that takes a backend can thereby test plans, above all the test runner of the onnx package.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from onnx import (
    ModelProto,
    NodeProto,
    OptionalProto,
    SequenceProto,
    TensorProto,
    TypeProto,
    defs,
    helper,
    numpy_helper,
)
from onnx.backend.base import Backend, BackendRep, Device, DeviceType, namedtupledict

from edgepart.agent.execution.runtime.loaded_models import load_model
from edgepart.agent.verify.rehearsal import SHARES, DividedModel, Rehearsal
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import EdgepartError, ModelError, RequestError, UsageError
from edgepart.planner.lowering.segment import DEFAULT_OPSET
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph

BINDINGS = 8
"""Number of bindings for which a prepared model keeps sessions; the least recently used one is dropped."""

Model = ModelProto | bytes | Path | str
Bound = tuple[tuple[str, tuple[int, ...]], ...]
"""Input names and shapes, sorted by name."""


@dataclass(eq=False)
class _Binding:
    """The model with known shapes of its inputs."""

    rehearsal: Rehearsal
    axis: str | None

    @cached_property
    def divided(self) -> DividedModel:
        return self.rehearsal.divide(self.axis)


class PreparedModel(BackendRep):
    """A model divided over devices in this process. The inputs of each run bind its free dimensions."""

    def __init__(self, source: Path | bytes, shares: Sequence[float], axis: str | None, level: Any) -> None:
        self._source = source
        self._shares = shares
        self._axis = axis
        self._level = level
        self._bindings: OrderedDict[Bound, _Binding] = OrderedDict()
        graph = load_graph(source)
        self._latest = self._keep_binding(graph)
        if not graph.notes:  # No shapes were assumed, so errors can be raised now.
            _ = self._latest.divided

    @property
    def axes(self) -> tuple[str, ...]:
        """Every axis that can be forced, with the shapes of the last run; before the first, with free dimensions of 1."""
        return self._latest.rehearsal.axes

    @property
    def report(self) -> dict[str, Any]:
        """The division of the model, with the same shapes: {"split": {node: axis}, "opaque": {node: reason},
        "devices_used": n}. A node is in "split" if more than one device computed a part of it. Raises UsageError if there
        is no such axis."""
        latest = self._latest
        return {
            "split": dict(latest.divided.split),
            "opaque": dict(latest.rehearsal.opaque),
            "devices_used": latest.divided.devices_used,
        }

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs in the model's order. `inputs` has the values in the order of the model's inputs, or by their names:
        arrays, TensorProtos, lists for sequences, None for an empty optional.

        Raises RequestError or UsageError if they do not fit the model."""
        values = _by_name(self._latest.rehearsal.graph, inputs)
        self._latest = self._bind(values)
        graph = self._latest.rehearsal.graph
        found = self._latest.divided.run(values)
        return tuple(found[name] for name in graph.outputs)

    def _bind(self, values: Mapping[str, Value]) -> _Binding:
        """The binding of these inputs' shapes, which is made if it is not kept."""
        graph = self._latest.rehearsal.graph
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        shapes = {name: array.shape for name, array in arrays.items() if _is_tensor(graph, name)}
        key = tuple(sorted(shapes.items()))
        if key in self._bindings:
            self._bindings.move_to_end(key)
            return self._bindings[key]
        return self._keep_binding(load_graph(self._source, shapes=shapes))

    def _keep_binding(self, graph: Graph) -> _Binding:
        shapes = {name: graph.shape_of(name) for name in graph.inputs if _is_tensor(graph, name)}
        key = tuple(sorted((name, shape) for name, shape in shapes.items() if shape is not None))
        made = self._bindings[key] = _Binding(Rehearsal(graph, self._shares, level=self._level), self._axis)
        while len(self._bindings) > BINDINGS:
            self._bindings.popitem(last=False)
        return made


class EdgepartBackend(Backend):
    """The backend as the API requires it; this module has the same functions."""

    @classmethod
    def prepare(
        cls,
        model: Model,
        device: str = "CPU",
        *,
        shares: Sequence[float] = SHARES,
        axis: str | None = None,
        level: Any = None,
        **kwargs: Any,
    ) -> PreparedModel:
        """Divide the model over len(shares) devices: every node that has `axis` is divided along it in proportion to the
        shares (None: each node along its first axis). `level` is an ort.GraphOptimizationLevel. `kwargs` are test runners'
        own options (rtol, atol), and are ignored.

        Raises ModelError if the model cannot be used; UsageError for a device that is no CPU, invalid shares, or an axis
        that the model does not have (if it has free dimensions, only when it is run)."""
        if not cls.supports_device(device):
            raise UsageError(f"device {device!r}: there is only 'CPU'")
        return PreparedModel(_source(model), shares, axis, level)

    @classmethod
    def run_model(cls, model: Model, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """`prepare` the model, and run it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls, node: NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Run one operator alone, in the opset `opset_version`, or else in that of its newest version. Returns the outputs
        by name or position. Their types are inferred; `outputs_info` is ignored."""
        version = kwargs.pop("opset_version", None)
        found = cls.run_model(_model_of(node, inputs, version), list(inputs), device, **kwargs)
        names = [name for name in node.output if name]
        outputs: tuple[Any, ...] = namedtupledict("Outputs", names)(*found)
        return outputs

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether `device` is the CPU, which is the only device."""
        try:
            return bool(Device(device).type == DeviceType.CPU)
        except (AttributeError, ValueError):
            return False

    @classmethod
    def is_compatible(cls, model: Model, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether ONNX Runtime takes the model, and edgepart can plan for it."""
        if not cls.supports_device(device):
            return False
        try:
            source = _source(model)
            load_model(source)
            load_graph(source)
        except EdgepartError:
            return False
        return True


prepare = EdgepartBackend.prepare
run_model = EdgepartBackend.run_model
run_node = EdgepartBackend.run_node
supports_device = EdgepartBackend.supports_device
is_compatible = EdgepartBackend.is_compatible


def to_value(value: Any) -> Value:
    """An input as ONNX Runtime takes it: protos are read, and numbers become arrays, also in sequences."""
    match value:
        case TensorProto():
            return numpy_helper.to_array(value)
        case SequenceProto():
            return numpy_helper.to_list(value)
        case OptionalProto():
            return numpy_helper.to_optional(value)
        case np.generic() | bool() | int() | float() | str():
            return np.asarray(value)
        case list() | tuple():
            return [to_value(one) for one in value]
    return value


def _source(model: Model) -> Path | bytes:
    if isinstance(model, ModelProto):
        try:
            return bytes(model.SerializeToString())
        except ValueError as error:  # The model exceeds protobuf's limit of 2 GB.
            raise ModelError(
                f"the model cannot be written out ({error}); give the path of its file"
            ) from error
    return Path(model) if isinstance(model, str) else model


def _by_name(graph: Graph, inputs: Any) -> dict[str, Value]:
    if isinstance(inputs, Mapping):
        return {name: to_value(value) for name, value in inputs.items()}
    given = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    if len(given) != len(graph.inputs):
        raise RequestError(f"{len(given)} inputs given; the model takes {list(graph.inputs)}")
    return dict(zip(graph.inputs, map(to_value, given), strict=True))


def _is_tensor(graph: Graph, name: str) -> bool:
    return name in graph.tensors and graph.tensors[name].dtype.upper() in TensorProto.DataType.keys()  # noqa: SIM118


def _model_of(node: NodeProto, inputs: Any, version: int | None) -> bytes:
    """A model of one node, whose inputs have the types of `inputs`, in the order in which the node names them."""
    names = [name for name in node.input if name]
    values = [to_value(value) for value in inputs]
    if len(names) != len(values):
        raise RequestError(f"{len(values)} inputs given; the node reads {names}")
    newest = version or defs.get_schema(node.op_type, domain=node.domain).since_version
    imports = [helper.make_opsetid(node.domain, newest)]
    if node.domain:
        imports.append(helper.make_opsetid("", DEFAULT_OPSET))
    graph = helper.make_graph(
        [node],
        node.name or node.op_type,
        [helper.make_value_info(name, _type_of(value)) for name, value in zip(names, values, strict=True)],
        [helper.make_empty_tensor_value_info(name) for name in node.output if name],
    )
    made = helper.make_model(
        graph, opset_imports=imports, ir_version=helper.find_min_ir_version_for(imports, ignore_unknown=True)
    )
    return bytes(made.SerializeToString())


def _type_of(value: Value) -> TypeProto:
    if isinstance(value, list) and value:
        return helper.make_sequence_type_proto(_type_of(value[0]))
    if not isinstance(value, np.ndarray):
        raise UsageError(f"a {type(value).__name__} says nothing of its type; run a model that does")
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
