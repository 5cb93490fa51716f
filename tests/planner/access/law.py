"""The law of access maps, checked with ONNX Runtime: one operator alone, whole and localised.

`run(localize(R), crop(inputs, needs(R))) == crop(run(operator, inputs), R)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from edgepart.planner.access import Access, Axis, LocalNode, access_of
from edgepart.planner.model.graph import Constant, Graph, Operator, Tensor
from edgepart.planner.region import Array, Interval, Region, Span, span

IR_VERSION = 8

ort.set_default_logger_severity(4)


@dataclass
class Case:
    """One operator and its inputs."""

    op_type: str
    inputs: Sequence[Array | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    version: int = 17
    domain: str = ""
    constants: frozenset[int] = frozenset()
    """Inputs that are constants of the graph."""
    outputs: int = 1
    opset: int | None = None
    """Version of ai.onnx where the operator is of another domain."""
    reference: bool = False
    """Run by ONNX's own reference: ONNX Runtime has no kernel for it, or not yet for its version."""
    steps: int = 0
    """How far integers may be off: 1 where the kernel rounds halves up or down by where they stand in the array."""


@dataclass
class Checked:
    """A case that has been run whole."""

    case: Case
    graph: Graph
    access: Access
    results: list[Array]


def options() -> ort.SessionOptions:
    chosen = ort.SessionOptions()
    chosen.intra_op_num_threads = 1
    chosen.inter_op_num_threads = 1
    chosen.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    chosen.log_severity_level = 4
    return chosen


def element_type(array: Array) -> str:
    found: str = TensorProto.DataType.Name(helper.np_dtype_to_tensor_dtype(array.dtype))
    return found.lower()


def value_info(name: str, array: Array | None) -> onnx.ValueInfoProto:
    if array is None:
        return helper.make_empty_tensor_value_info(name)
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, kind, array.shape)  # As segments do.


def run(
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, Array],
    outputs: Mapping[str, str | None],
    imports: Mapping[str, int],
    initializers: Mapping[str, Array],
    reference: bool = False,
) -> list[Array]:
    """The values of `outputs` (name to element type, None where not known)."""
    infos = [
        helper.make_empty_tensor_value_info(name)
        if kind is None
        else helper.make_tensor_value_info(name, TensorProto.DataType.Value(kind.upper()), None)
        for name, kind in outputs.items()
    ]
    graph = helper.make_graph(
        list(nodes),
        "case",
        [value_info(name, array) for name, array in feeds.items()],
        infos,
        [numpy_helper.from_array(array, name) for name, array in initializers.items()],
    )
    opsets = [helper.make_opsetid(domain, version) for domain, version in imports.items()]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    if reference:
        return [np.asarray(array) for array in ReferenceEvaluator(model).run(list(outputs), dict(feeds))]
    session = ort.InferenceSession(model.SerializeToString(), options(), providers=["CPUExecutionProvider"])
    return list(session.run(list(outputs), dict(feeds)))


def check_whole(case: Case) -> Checked:
    """Runs the operator whole, and binds its declaration to the shapes that came out."""
    names = ["" if array is None else f"in_{n}" for n, array in enumerate(case.inputs)]
    outputs = [f"out_{n}" for n in range(case.outputs)]
    given = {name: array for name, array in zip(names, case.inputs, strict=True) if array is not None}
    constant = {f"in_{n}": given[f"in_{n}"] for n in case.constants}
    feeds = {name: array for name, array in given.items() if name not in constant}
    imports = {case.domain: case.version}
    imports.setdefault("", case.opset or case.version)
    node = helper.make_node(
        case.op_type, names, outputs, domain=case.domain, **proto_attributes(case.attributes)
    )
    results = run([node], feeds, dict.fromkeys(outputs), imports, constant, case.reference)
    tensors = {
        name: Tensor(name, array.shape, element_type(array), array.itemsize)
        for name, array in [*feeds.items(), *zip(outputs, results, strict=True)]
    }
    attributes = dict(case.attributes)
    operator = Operator(
        "it", case.op_type, case.domain, case.version, tuple(names), tuple(outputs), attributes
    )
    graph = Graph(
        "case", tuple(feeds), tuple(outputs), tensors, _constants(constant), (operator,), imports, IR_VERSION
    )
    return Checked(case, graph, access_of(operator, graph), results)


def _constants(found: Mapping[str, Array]) -> dict[str, Constant]:
    def loader(array: Array) -> Any:
        return lambda: array

    return {
        name: Constant(name, array.shape, element_type(array), array.nbytes, loader(array))
        for name, array in found.items()
    }


def check_law(checked: Checked, wanted: Mapping[int, Region]) -> None:
    """The law for one choice of regions."""
    case, access = checked.case, checked.access
    needs = access.needs(wanted)
    assert len(needs) == len(case.inputs)
    feeds: dict[str, Array] = {}
    for index, (region, array) in enumerate(zip(needs, case.inputs, strict=True)):
        if region is None:
            continue
        assert array is not None, f"input {index} is left out, yet it is needed"
        assert Region.full(array.shape).contains(region), f"input {index}: {region} of {array.shape}"
        feeds[f"in_{index}"] = packed(region, array)
    kinds = {index: element_type(checked.results[index]) for index in wanted}
    found = run_local(access, wanted, feeds, kinds, checked.graph.opset_imports, case.reference)
    for (index, region), array in zip(wanted.items(), found, strict=True):
        what = f"{case.op_type} output {index} at {region}"
        assert_equal(array, region.crop(checked.results[index]), what, checked.results[index], case.steps)
    assert access.flops(wanted) >= 0


def packed(region: Region, array: Array) -> Array:
    return np.ascontiguousarray(region.crop(array)).reshape(region.shape)


def run_local(
    access: Access,
    wanted: Mapping[int, Region],
    feeds: Mapping[str, Array],
    kinds: Mapping[int, str],
    imports: Mapping[str, int],
    reference: bool = False,
) -> list[Array]:
    """What the local nodes make of `wanted` from the inputs in_0, in_1 ...; `kinds` are the outputs' types."""
    local = access.localize(wanted)
    initializers: dict[str, Array] = {}
    nodes = [_node_proto(n, node, initializers) for n, node in enumerate(local)]
    used = {name for node in nodes for name in node.input}
    assert used >= {name for name, array in feeds.items() if array.size}, (
        "a region is needed that nothing reads"
    )
    infos = {f"out_{index}": kinds[index] for index in wanted}
    return run(nodes, feeds, infos, imports, initializers, reference)


def check_reduction(checked: Checked, axis: Axis, parts: Sequence[Interval], wanted: Region) -> None:
    """The law of a reduced axis: combining the addends of its parts gives a region of the whole reduction."""
    case, imports = checked.case, checked.graph.opset_imports
    reduction = checked.access.reduction(axis)
    combine = reduction.combine(tuple(parts))
    needs = combine.needs({0: wanted})
    count = len(reduction.addends)
    assert len(needs) == count * len(parts) + len(reduction.again)
    given: dict[str, Array] = {}
    for n, part in enumerate(parts):
        made = {
            k: region for k, region in enumerate(needs[n * count : (n + 1) * count]) if region is not None
        }
        access = reduction.part(part)
        feeds = {
            f"in_{index}": packed(region, array)
            for index, (region, array) in enumerate(zip(access.needs(made), case.inputs, strict=True))
            if region is not None and array is not None
        }
        kinds = {k: addend.dtype for k, addend in enumerate(reduction.addends)}
        for (k, region), array in zip(
            made.items(), run_local(access, made, feeds, kinds, imports), strict=True
        ):
            assert array.shape == region.shape
            given[f"in_{n * count + k}"] = array
    for place, index in enumerate(reduction.again, count * len(parts)):
        read, again = needs[place], case.inputs[index]
        if read is not None and again is not None:
            given[f"in_{place}"] = packed(read, again)
    kind = element_type(checked.results[0])
    (found,) = run_local(combine, {0: wanted}, given, {0: kind}, imports)
    what = f"{case.op_type} reduced along {axis.name} in {[*map(str, parts)]} at {wanted}"
    assert_equal(found, wanted.crop(checked.results[0]), what, checked.results[0], case.steps)


def _node_proto(number: int, node: LocalNode, initializers: dict[str, Array]) -> onnx.NodeProto:
    inputs = []
    for place, value in enumerate(node.inputs):
        if isinstance(value, np.ndarray):
            initializers[f"const_{number}_{place}"] = value
            inputs.append(f"const_{number}_{place}")
        else:
            inputs.append(_name(value, "in"))
    outputs = [_name(value, "out") for value in node.outputs]
    return helper.make_node(
        node.op_type, inputs, outputs, domain=node.domain, **proto_attributes(node.attributes)
    )


def proto_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """As ONNX writes them: a tensor, which declarations see as an array, is a message."""
    return {
        name: numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
        for name, value in attributes.items()
    }


def _name(value: int | str | Array | None, kind: str) -> str:
    if value is None:
        return ""
    return f"{kind}_{value}" if isinstance(value, int) else f"local.{value}"


def assert_equal(found: Array, right: Array, what: str, whole: Array, steps: int = 0) -> None:
    """Up to rounding, which counts relative to the largest magnitude in `whole`, the output that `right` was cut from;
    integers up to so many steps."""
    assert found.shape == right.shape, f"{what}: shape {found.shape}, should be {right.shape}"
    assert found.dtype == right.dtype, what
    if right.dtype.kind == "f":
        scale = float(np.abs(whole[np.isfinite(whole)]).max(initial=0.0))
        rough = 1e-3 if right.dtype.itemsize == 2 else 1e-5
        np.testing.assert_allclose(found, right, rtol=rough, atol=rough * max(scale, 1e-3), err_msg=what)
    elif steps:
        np.testing.assert_allclose(
            found.astype(np.int64), right.astype(np.int64), rtol=0, atol=steps, err_msg=what
        )
    else:
        np.testing.assert_array_equal(found, right, err_msg=what)


@st.composite
def spans(draw: st.DrawFn, extent: int, several: bool = True) -> Span:
    """A part of an axis: all of it, an interval, or two or three; never nothing."""
    kind = draw(st.sampled_from(["all", "one", "one", "one", "many"] if several else ["all", "one", "one"]))
    if kind == "all" or extent == 1:
        return span((0, extent))
    count = 1 if kind == "one" else 3
    bounds = []
    for _ in range(count):
        start = draw(st.integers(0, extent - 1))
        bounds.append((start, draw(st.integers(start + 1, extent))))
    return span(*bounds)


@st.composite
def regions(draw: st.DrawFn, shape: Sequence[int]) -> Region:
    """A region of a tensor: mostly boxes, sometimes with several intervals, now and then empty on an axis."""
    found = [draw(spans(extent)) for extent in shape]
    if found and draw(st.integers(0, 24)) == 0:
        found[draw(st.integers(0, len(found) - 1))] = ()
    return Region(tuple(found))


def check_any_region(checked: Checked, data: st.DataObject, tries: int = 3) -> None:
    """The law for all of the outputs, for some drawn regions, and for one cut of each axis that is declared."""
    outputs = range(len(checked.results))
    check_law(checked, {index: Region.full(checked.results[index].shape) for index in outputs})
    for _ in range(tries):
        chosen = data.draw(st.sampled_from(sorted({(0,), (len(outputs) - 1,), tuple(outputs)})), "outputs")
        wanted = {index: data.draw(regions(checked.results[index].shape), "region") for index in chosen}
        check_law(checked, wanted)
    check_axes(checked, data)


def check_axes(checked: Checked, data: st.DataObject) -> None:
    """Both sides of a cut at a multiple of the quantum; neither may read more than the other side leaves it to. A
    reduced axis is cut in two or three parts, which are combined."""
    shapes = [result.shape for result in checked.results]
    for axis in checked.access.axes():
        assert axis.extent > axis.quantum
        cuts = st.integers(1, (axis.extent - 1) // axis.quantum)
        if axis.reducer is not None:
            at = sorted(
                axis.quantum * cut for cut in data.draw(st.sets(cuts, min_size=1, max_size=2), axis.name)
            )
            bounds = zip([0, *at], [*at, axis.extent], strict=True)
            check_reduction(
                checked, axis, [Interval(*b) for b in bounds], data.draw(boxes(shapes[0]), "region")
            )
            continue
        cut = data.draw(cuts, axis.name)
        sides: tuple[dict[int, Region], dict[int, Region]] = {}, {}
        for index, shape in enumerate(shapes):
            place, each = axis.place(index), axis.elements(index)
            if place is not None:
                assert -(-shape[place] // each) == -(-axis.extent // axis.quantum)
                for side, part in zip(sides, ((0, cut * each), (cut * each, shape[place])), strict=True):
                    side[index] = Region.full(shape).replace(place, span(part))
        for wanted in sides:
            check_law(checked, wanted)


@st.composite
def boxes(draw: st.DrawFn, shape: Sequence[int]) -> Region:
    """A box of a tensor that is not empty."""
    return Region(tuple(draw(spans(extent, several=False)) for extent in shape))


def declared(case: Case) -> Checked:
    """A case whose operator must not be opaque."""
    checked = check_whole(case)
    assert checked.access.opaque is None, checked.access.opaque
    return checked


def floats(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> Array:
    return np.random.default_rng(seed + sum(shape)).uniform(low, high, shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.asarray(values, np.int64)
