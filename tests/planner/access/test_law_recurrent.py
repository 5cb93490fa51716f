"""The law for recurrent operators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from edgepart.planner.access import access_of, accesses
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.region import Region
from tests.planner.access.law import Case, check_any_region, check_law, check_whole, declared, floats
from tests.planner.access.node_cases import node_cases

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in dot:RuntimeWarning")
"""Vector instructions leave that flag now and then though every number is finite; what comes out is compared anyway."""

STEPS, BATCH, INPUT, HIDDEN = 4, 3, 2, 5
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
NAMES = {"RNN": ["Relu"], "GRU": ["Sigmoid", "Relu"], "LSTM": ["Sigmoid", "Tanh", "Relu"]}


def _network(
    op_type: str,
    *,
    ways: str = "forward",
    given: str = "",
    outputs: int = 3,
    batch_first: bool = False,
    version: int = 14,
    **attributes: Any,
) -> Case:
    """`given` names the optional inputs: bias, lens, h, c, peepholes."""
    directions, gates = 2 if ways == "bidirectional" else 1, GATES[op_type]
    state = (BATCH, directions, HIDDEN) if batch_first else (directions, BATCH, HIDDEN)
    inputs = {
        "x": floats(*((BATCH, STEPS, INPUT) if batch_first else (STEPS, BATCH, INPUT))),
        "w": floats(directions, gates * HIDDEN, INPUT, seed=1),
        "r": floats(directions, gates * HIDDEN, HIDDEN, seed=2),
        "bias": floats(directions, 2 * gates * HIDDEN, seed=3),
        "lens": np.asarray([2, 4, 1], np.int32),
        "h": floats(*state, seed=4),
        "c": floats(*state, seed=5),
        "peepholes": floats(directions, 3 * HIDDEN, seed=6),
    }
    kept = {"x", "w", "r", *given.split()}
    listed = [array if name in kept else None for name, array in inputs.items()]
    while listed[-1] is None:
        listed.pop()
    said: dict[str, Any] = {"hidden_size": HIDDEN, "direction": ways, **attributes}
    if batch_first:
        said["layout"] = 1
    return Case(op_type, listed, said, version, outputs=min(outputs, 3 if op_type == "LSTM" else 2))


def _lists(op_type: str) -> dict[str, Any]:
    """Other functions forwards than backwards."""
    return {"activations": [*NAMES[op_type], *reversed(NAMES[op_type])]}


NETWORKS = [
    _network("RNN"),
    _network("RNN", given="bias lens h", ways="reverse", version=7),
    _network("RNN", given="h", ways="bidirectional", version=22, clip=0.5),
    _network("RNN", ways="bidirectional", activations=["Tanh", "Relu"], outputs=1),
    _network("GRU", outputs=1),
    _network("GRU", given="bias lens h", linear_before_reset=1, version=7),
    _network("GRU", given="h", ways="bidirectional", version=22, **_lists("GRU")),
    _network("LSTM"),
    _network("LSTM", given="bias lens h c peepholes", input_forget=1, version=7),
    _network("LSTM", given="bias c peepholes", ways="reverse", clip=0.7),
    _network("LSTM", given="bias lens h c peepholes", ways="bidirectional", version=22, **_lists("LSTM")),
    _network("LSTM", given="lens", ways="bidirectional", outputs=2),
    _network("LSTM", ways="reverse", activations=["Affine", "ScaledTanh", "Elu"],
             activation_alpha=[0.5, 0.6, 0.7], activation_beta=[0.1, 0.2]),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(NETWORKS)), ids=lambda n: f"{NETWORKS[n].op_type}-{n}")
@settings(max_examples=4)
@given(data=st.data())
def test_network(number: int, data: st.DataObject) -> None:
    checked = declared(NETWORKS[number])
    names = {axis.name for axis in checked.access.axes()}
    ways = NETWORKS[number].attributes["direction"]
    assert names == ({"batch", "direction"} if ways == "bidirectional" else {"batch"})
    check_any_region(checked, data)


@pytest.mark.parametrize("op_type", GATES)
@settings(max_examples=3)
@given(data=st.data())
def test_the_batch_may_come_first(op_type: str, data: st.DataObject) -> None:
    """ONNX Runtime has no such kernel."""
    for ways in ("forward", "bidirectional"):
        case = _network(op_type, given="bias h", ways=ways, batch_first=True)
        check_any_region(declared(replace(case, reference=True)), data)


def test_values_of_activations_keep_directions_together() -> None:
    case = _network("RNN", ways="bidirectional", activations=["Elu", "Relu"], activation_alpha=[0.5])
    checked = declared(case)
    assert [axis.name for axis in checked.access.axes()] == ["batch"]
    check_law(checked, {0: Region.box((0, 1), (1, 2), (1, 3), (2, 4))})


def test_a_direction_reads_its_own_weights_and_is_made_by_itself() -> None:
    access = declared(_network("LSTM", given="bias", ways="bidirectional")).access
    wanted = {1: Region.box((1, 2), (0, 2), (0, HIDDEN))}
    x, w, _, bias = access.needs(wanted)
    assert x == Region.box((0, STEPS), (0, 2), (0, INPUT))
    assert w == Region.box((1, 2), (0, 4 * HIDDEN), (0, INPUT))
    assert bias == Region.box((1, 2), (0, 8 * HIDDEN))
    (node,) = access.localize(wanted)
    assert node.attributes["direction"] == "reverse" and node.outputs == (None, 1)
    full = {1: Region.full((2, BATCH, HIDDEN))}
    assert access.flops(wanted) == pytest.approx(access.flops(full) / 3)


@pytest.mark.parametrize("first", ["", "unread"])
def test_a_network_of_which_only_the_last_state_is_read_can_be_divided(first: str) -> None:
    case = _network("LSTM")
    w, r = (
        numpy_helper.from_array(np.asarray(array), name)
        for name, array in zip("wr", case.inputs[1:], strict=True)
    )
    node = helper.make_node("LSTM", ["x", "w", "r"], [first, "last"], **case.attributes)
    x, last = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", (STEPS, BATCH, INPUT)), ("last", (1, BATCH, HIDDEN)))
    )
    model = helper.make_model(
        helper.make_graph([node], "last", [x], [last], [w, r]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    graph = load_graph(model.SerializeToString())
    (access,) = accesses(graph).values()
    assert [(axis.name, axis.places) for axis in access.axes()] == [("batch", (2, 1))]
    wanted = {1: Region.box((0, 1), (1, 3), (0, HIDDEN))}
    (made,) = access.localize(wanted)
    assert made.outputs == (None, 1) and access.needs(wanted)[0] == Region.box((0, STEPS), (1, 3), (0, INPUT))


def _quantised(ways: str) -> Case:
    directions = 2 if ways == "bidirectional" else 1
    whole = np.random.default_rng(0).integers(-99, 99, (directions, INPUT, 4 * HIDDEN)).astype(np.int8)
    again = np.random.default_rng(1).integers(-99, 99, (directions, HIDDEN, 4 * HIDDEN)).astype(np.int8)
    scale, zero = np.full(directions, 0.02, np.float32), np.zeros(directions, np.int8)
    state = floats(directions, BATCH, HIDDEN)
    bias = floats(directions, 8 * HIDDEN)
    inputs = [
        floats(STEPS, BATCH, INPUT),
        whole,
        again,
        bias,
        None,
        state,
        state,
        None,
        scale,
        zero,
        scale,
        zero,
    ]
    weights = frozenset({1, 2, 8, 9, 10, 11})
    said = {"hidden_size": HIDDEN, "direction": ways}
    return Case("DynamicQuantizeLSTM", inputs, said, 1, "com.microsoft", weights, outputs=3, opset=17)


@settings(max_examples=4)
@given(data=st.data())
def test_directions_of_a_quantised_network(data: st.DataObject) -> None:
    checked = declared(_quantised("bidirectional"))
    assert [axis.name for axis in checked.access.axes()] == ["direction"]
    check_any_region(checked, data)


def test_a_quantised_network_of_one_direction_is_whole() -> None:
    assert check_whole(_quantised("forward")).access.opaque is not None


def _loaded(case: Case) -> Graph:
    """The graph of a model of that operator alone, the shapes of whose outputs are not declared."""
    names = ["" if array is None else f"in_{n}" for n, array in enumerate(case.inputs)]
    outputs = [f"out_{n}" for n in range(case.outputs)]
    node = helper.make_node(case.op_type, names, outputs, domain=case.domain, **case.attributes)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, case.inputs, strict=True)
        if array is not None
    ]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(case.domain, case.version)]
    model = helper.make_model(
        helper.make_graph([node], "one", inputs, made), opset_imports=opsets, ir_version=8
    )
    return load_graph(model.SerializeToString())


@pytest.mark.parametrize("case", ["quantised", "attention", "causal"])
def test_shapes_of_operators_of_onnx_runtime_are_those_of_the_standard_ones(case: str) -> None:
    own = {"domain": "com.microsoft", "version": 1}
    cases = {
        "quantised": _quantised("bidirectional"),
        "attention": replace(_attention("gated_delta", 4, 2, gate=16, rate=1), **own),  # type: ignore[arg-type]
        "causal": _causal(9, 3, given="bias past", domain="com.microsoft", ndim=1),
    }
    checked, graph = declared(replace(cases[case], reference=False, opset=17)), _loaded(cases[case])
    assert [graph.shape_of(name) for name in graph.outputs] == [array.shape for array in checked.results]


def test_shapes_are_not_guessed_where_attributes_change_them() -> None:
    graph = _loaded(_causal(9, 3, domain="com.microsoft", dilation=2))
    assert [graph.shape_of(name) for name in graph.outputs] == [None, None]


@pytest.mark.parametrize("version", [10, 28])
@pytest.mark.parametrize("time", [0, 1])
@settings(max_examples=4)
@given(data=st.data())
def test_reverse_sequence(version: int, time: int, data: st.DataObject) -> None:
    lens = np.asarray([2, 4, 1, 3], np.int64)
    said = {"time_axis": time, "batch_axis": 1 - time}
    case = Case("ReverseSequence", [floats(4, 4, 3), lens], said, version, reference=version > 10)
    checked = declared(case)
    assert [axis.index for axis in checked.access.axes()] == [1 - time, 2]
    check_any_region(checked, data)


def _attention(
    rule: str, heads: int, group: int, *, gate: int = 0, rate: int = 0, past: bool = False
) -> Case:
    """Keys of 4 elements and values of 2; `gate` and `rate`: elements of decay and beta for each position."""
    batch, time, keys, values = 2, 3, 4, 2
    inputs = [
        floats(batch, time, heads * group * keys),
        floats(batch, time, heads * keys, seed=1, low=-0.5, high=0.5),
        floats(batch, time, heads * values, seed=2),
        floats(batch, heads, keys, values, seed=3) if past else None,
        floats(batch, time, gate, seed=4, low=-1.0, high=0.0) if gate else None,
        floats(batch, time, rate, seed=5, low=0.0, high=1.0) if rate else None,
    ]
    while inputs[-1] is None:
        inputs.pop()
    said = {"update_rule": rule, "kv_num_heads": heads, "q_num_heads": heads * group}
    return Case("LinearAttention", inputs, said, 27, outputs=2, reference=True)


ATTENTIONS = [
    _attention("linear", 4, 1),
    _attention("gated", 4, 1, gate=16, past=True),
    _attention("gated", 3, 2, gate=3),
    _attention("delta", 2, 2, rate=2, past=True),
    _attention("gated_delta", 4, 2, gate=16, rate=1),
    _attention("gated_delta", 1, 4, gate=1, rate=1, past=True),
]


@pytest.mark.parametrize("case", ATTENTIONS, ids=lambda case: str(case.attributes["update_rule"]))
@pytest.mark.parametrize("domain", ["", "com.microsoft"])
@settings(max_examples=3)
@given(data=st.data())
def test_linear_attention(domain: str, case: Case, data: st.DataObject) -> None:
    """ONNX's own is run by the reference; ONNX Runtime's is the same."""
    if domain:
        case = replace(case, domain=domain, version=1, opset=21, reference=False)
    checked = declared(case)
    heads = int(case.attributes["kv_num_heads"])
    assert [axis.name for axis in checked.access.axes()] == ["batch", "head"][: 1 + (heads > 1)]
    check_any_region(checked, data)


def test_heads_that_are_made_alone_read_their_keys_alone() -> None:
    access = declared(_attention("gated", 3, 2, gate=3)).access
    query, key, value, past, decay = access.needs({0: Region.box((0, 2), (1, 2), (4, 8))})
    assert (query, key) == (Region.box((0, 2), (0, 3), (8, 16)), Region.box((0, 2), (0, 3), (4, 8)))
    assert (value, decay) == (Region.box((0, 2), (0, 3), (2, 4)), Region.box((0, 2), (0, 3), (1, 2)))
    assert past is None


def _causal(length: int, kernel: int, *, given: str = "", domain: str = "", **said: Any) -> Case:
    """`given` names the optional inputs: bias, past."""
    inputs = [
        floats(2, 3, length),
        floats(3, 1, kernel, seed=1),
        floats(3, seed=2) if "bias" in given else None,
        floats(2, 3, (kernel - 1) * said.get("dilation", 1), seed=3) if "past" in given else None,
    ]
    while inputs[-1] is None:
        inputs.pop()
    if domain:
        return Case("CausalConvWithState", inputs, said, 1, domain, outputs=2, opset=21)
    return Case("CausalConvWithState", inputs, said, 27, outputs=2, reference=True)


CAUSAL = [
    _causal(8, 4),
    _causal(8, 4, given="bias past", activation="silu"),
    replace(_causal(8, 1, given="bias", activation="swish"), outputs=1),
    replace(_causal(8, 4, given="past"), outputs=1),
    _causal(2, 5, given="past"),
    _causal(1, 3, given="bias past"),
    _causal(8, 3, given="bias past", domain="com.microsoft", activation="silu"),
    _causal(9, 3, domain="com.microsoft", dilation=2),
]


@pytest.mark.parametrize("number", range(len(CAUSAL)))
@settings(max_examples=6)
@given(data=st.data())
def test_causal_convolution(number: int, data: st.DataObject) -> None:
    check_any_region(declared(CAUSAL[number]), data, tries=4)


def test_a_part_of_the_length_reads_no_more_than_its_past() -> None:
    access = declared(_causal(20, 4, given="past")).access
    values, _, _, past = access.needs({0: Region.box((0, 2), (0, 3), (10, 15))})
    assert values == Region.box((0, 2), (0, 3), (7, 15)) and past is None
    values, _, _, past = access.needs({1: Region.box((0, 2), (0, 3), (0, 3))})
    assert values == Region.box((0, 2), (0, 3), (16, 20)) and past is None


@pytest.mark.parametrize("op_type", [*GATES, "CausalConvWithState", "LinearAttention", "ReverseSequence"])
@settings(max_examples=1)
@given(data=st.data())
def test_cases_of_the_onnx_project(op_type: str, data: st.DataObject) -> None:
    """Those that put the batch first, and those of opsets to come, by the reference."""
    to_come = op_type in ("CausalConvWithState", "LinearAttention")
    for name, case in node_cases(op_type).items():
        if "kernel_size_one" in name or "bfloat16" in name:
            continue  # An output without elements is made whole; and ONNX Runtime reverses no such type.
        version = 27 if to_come else case.version
        reference = to_come or bool(case.attributes.get("layout"))
        check_any_region(declared(replace(case, version=version, reference=reference)), data, tries=2)


UNUSUAL = [
    (_attention("linear", 4, 1), {"state_window": 2}),
    (_attention("linear", 4, 1), {"kv_num_heads": 0}),
    (
        Case(
            "ReverseSequence", [floats(4, 4), np.asarray([1, 2, 3, 4])], {"time_axis": 0, "batch_axis": 1}, 10
        ),
        {"batch_axis": 5},
    ),
    (_causal(8, 3), {"channels_last": 1}),
    (_causal(8, 3), {"ndim": 2}),
]


@pytest.mark.parametrize(("case", "changed"), UNUSUAL)
def test_unusual_attributes_make_it_whole(case: Case, changed: dict[str, Any]) -> None:
    checked = check_whole(case)
    operator = replace(checked.graph.operators[0], attributes={**case.attributes, **changed})
    assert access_of(operator, checked.graph).opaque is not None


OPERATORS = frozenset(
    {*GATES, "CausalConvWithState", "DynamicQuantizeLSTM", "LinearAttention", "ReverseSequence"}
)
