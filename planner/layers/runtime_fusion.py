"""Fusing (Moirai, section 3.2, Algorithm 1): operators that the runtime computes as one stay together. Rules
as data.

A rule is a pattern of one last operator and the operators that it reads from. Operators that match the
pattern are one group if no other operator reads the tensors between them: then nothing in the group waits for
an outside operator that waits for the group. So the paper's direct and multi-input connections are fused, but
multi-output connections only if they stay inside the group. The rules describe the observed behaviour of ONNX
Runtime (tests/planner/layers/test_runtime_fusion.py compares the two).

These groups are for strategies that place whole operators. Layers, which can be divided, are made by
coarsen.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from edgepart.planner.model.graph import Graph, Operator

ANY = "*"
"""An input of any kind, which does not join the group."""
CONSTANT = "="
"""A weight or other constant. Any other string is a name: it stands for the same tensor wherever it occurs."""
QUANTISED = "q"
"""The output of a DequantizeLinear, whichever operators read it."""

COMMUTATIVE = frozenset({"Add", "Mul"})


@dataclass(frozen=True)
class Pattern:
    """An operator and its inputs."""

    types: tuple[str, ...]
    """The operator is of any of these types; () for all types."""
    inputs: tuple[Pattern | str, ...]
    """The first of its inputs; further inputs may be of any kind."""
    optional: bool = False
    """Whether the operator may be missing, with its first input in its place."""
    rank: int | None = None
    """The number of axes that its output must have; None for any number."""
    name: str = ""
    """The name of its output, so that the rule can refer to the output again."""


@dataclass(frozen=True)
class Rule:
    """Operators that become one."""

    name: str
    last: Pattern
    absorbs: tuple[str, ...] = ()
    """Operators of these types join as well if only the group reads them."""


def op(types: str, *inputs: Pattern | str, rank: int | None = None, name: str = "") -> Pattern:
    return Pattern(tuple(types.split("|")), inputs, rank=rank, name=name)


def maybe(shape: Pattern) -> Pattern:
    return replace(shape, optional=True)


def _gelus(inner: Pattern) -> Iterator[Pattern]:
    """Yields x / 2 (1 + inner), in the orders in which models write it."""
    raised = op("Add", inner, CONSTANT)
    yield op("Mul", op("Mul", "x", raised), CONSTANT)
    yield op("Mul", op("Mul", "x", CONSTANT), raised)
    yield op("Mul", "x", op("Mul", raised, CONSTANT))


ACTIVATION = "Relu|Sigmoid|Tanh|LeakyRelu|Clip|HardSigmoid"
"""Activations that ONNX Runtime's convolutions and Gemm compute at their end."""

_CONVOLUTION = maybe(
    op("Add", maybe(op("Mul", maybe(op("BatchNormalization", op("Conv", ANY))), CONSTANT)), CONSTANT)
)
_DIFFERENCE = op("Sub", "x", op("ReduceMean", "x"), name="d")
_CUBE = op("Mul", op("Pow", "x", CONSTANT), CONSTANT)
_SQUARE_ROOT = op("Sqrt", op("Add", op("ReduceMean", op("Pow", "x", CONSTANT)), CONSTANT))
_INTEGER_PRODUCT = op(
    "Mul", op("Cast", op("MatMulInteger", ANY)), op("Mul", ANY, CONSTANT)
)  # Its second factor is the product of both scales.

RULES: tuple[Rule, ...] = (
    Rule(
        "quantised operator",
        op("QuantizeLinear", maybe(op("Relu|Clip", Pattern((), (QUANTISED,))))),
        absorbs=("DequantizeLinear",),
    ),
    Rule("integer product", maybe(op("Add", _INTEGER_PRODUCT, CONSTANT)), absorbs=("DynamicQuantizeLinear",)),
    Rule("convolution, sum", maybe(op(ACTIVATION, op("Add", _CONVOLUTION, ANY, rank=4)))),
    Rule("convolution", maybe(op(ACTIVATION, _CONVOLUTION))),
    Rule("padded convolution or pool", op("Conv|MaxPool|AveragePool", op("Pad", ANY))),
    Rule("Gemm", op(ACTIVATION, op("Gemm", ANY), rank=2)),
    Rule("Gemm of a product", maybe(op(ACTIVATION, op("Add", op("MatMul", ANY), CONSTANT, rank=2)))),
    Rule("product and bias", op("Add", op("MatMul|MatMulNBits", ANY), CONSTANT)),
    *(
        Rule("Gelu", shape, absorbs=("Add",))
        for inner in (op("Erf", op("Div|Mul", "x", CONSTANT)),)
        for shape in _gelus(inner)
    ),
    *(
        Rule("Gelu by tanh", shape, absorbs=("Add",))
        for shape in _gelus(op("Tanh", op("Mul", op("Add", "x", _CUBE), CONSTANT)))
    ),
    Rule("x times its sigmoid", op("Mul", "x", op("Sigmoid", maybe(op("Mul", "x", CONSTANT))))),
    Rule(
        "layer normalisation",
        op(
            "Add",
            op(
                "Mul",
                op(
                    "Div",
                    _DIFFERENCE,
                    op("Sqrt", op("Add", op("ReduceMean", op("Pow|Mul", "d")), CONSTANT)),
                ),
                CONSTANT,
            ),
            CONSTANT,
        ),
        absorbs=("Sub", "ReduceMean"),
    ),
    Rule("norm by root mean square", op("Mul", op("Div", "x", _SQUARE_ROOT), CONSTANT)),
    Rule("norm by root mean square", op("Mul", op("Mul", "x", op("Reciprocal|Div", _SQUARE_ROOT)), CONSTANT)),
    Rule(
        "sum and layer normalisation",
        op(
            "LayerNormalization|SimplifiedLayerNormalization|RMSNormalization",
            op("Add", maybe(op("Add", ANY, CONSTANT)), ANY),
        ),
    ),
    Rule(
        "scaled product",
        maybe(op("Mul|Div", op("MatMul", ANY), CONSTANT)),
        absorbs=("Transpose", "Mul", "Div"),
    ),
    Rule("scaled convolution", op("Mul|Div", op("Conv", ANY), CONSTANT)),
    Rule("what changes nothing", op("Identity|Dropout", Pattern((), ()))),
)
"""Earlier rules come first; an operator in a group is in no other group."""


def find_fused_groups(graph: Graph) -> tuple[tuple[Operator, ...], ...]:
    """Groups in an order that can be run, each with its operators in the graph's order. Every operator is in
    exactly one group."""
    fusing = _Fusing(graph)
    for rule in RULES:
        for operator in reversed(graph.operators):
            fusing.try_at(rule, operator)
    return fusing.groups()


class _Fusing:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._position = {operator.name: number for number, operator in enumerate(graph.operators)}
        self._group: dict[str, int] = {}
        """The number of the group of each operator that is in a group with others, by name."""
        self._made: list[list[Operator]] = []

    def try_at(self, rule: Rule, last: Operator) -> None:
        """Makes a group of the operators that match the rule with the last operator `last`, if any."""
        if last.name in self._group:
            return
        for names, _ in self._matches(rule.last, last.outputs[0], {}, first=True):
            members = self._absorb(rule, names)
            if len(members) > 1 and last.name in members and self._is_closed(members, last):
                ordered = sorted(members, key=self._position.__getitem__)
                self._group |= dict.fromkeys(ordered, len(self._made))
                self._made.append([self._graph.by_name[name] for name in ordered])
                return

    def _matches(
        self, wanted: Pattern | str, tensor: str, bound: Mapping[str, str], *, first: bool = False
    ) -> Iterator[tuple[frozenset[str], Mapping[str, str]]]:
        """Yields the names of operators that make `tensor` as wanted, and the tensors that the names in the
        rule then stand for."""
        if isinstance(wanted, str):
            maker = self._graph.producers.get(tensor)
            if wanted == CONSTANT:
                if tensor in self._graph.constants:
                    yield frozenset(), bound
            elif wanted == QUANTISED:
                if maker is not None and maker.op_type == "DequantizeLinear":
                    yield frozenset(), bound
            elif wanted == ANY or bound.get(wanted, tensor) == tensor:
                yield frozenset(), bound if wanted == ANY else {**bound, wanted: tensor}
            return
        maker = self._graph.producers.get(tensor)
        if maker is not None and maker.name not in self._group and self._is(wanted, maker):
            named = {**bound, wanted.name: tensor} if wanted.name else bound
            for inputs in _orders(maker, len(wanted.inputs)):
                yield from self._all(wanted.inputs, inputs, frozenset({maker.name}), named)
        if wanted.optional and wanted.inputs:
            yield from self._matches(wanted.inputs[0], tensor, bound)

    def _all(
        self,
        wanted: tuple[Pattern | str, ...],
        tensors: tuple[str, ...],
        names: frozenset[str],
        bound: Mapping[str, str],
    ) -> Iterator[tuple[frozenset[str], Mapping[str, str]]]:
        if not wanted:
            yield names, bound
            return
        for more, then in self._matches(wanted[0], tensors[0], bound):
            yield from self._all(wanted[1:], tensors[1:], names | more, then)

    def _is(self, wanted: Pattern, maker: Operator) -> bool:
        if wanted.types and maker.op_type not in wanted.types:
            return False
        if wanted.rank is not None and len(self._graph.shape_of(maker.outputs[0]) or ()) != wanted.rank:
            return False
        return len(maker.inputs) >= len(wanted.inputs)

    def _absorb(self, rule: Rule, names: frozenset[str]) -> set[str]:
        """The operators `names` together with those that the rule absorbs."""
        members = set(names)
        for name in names:
            for tensor in self._graph.by_name[name].inputs:
                maker = self._graph.producers.get(tensor)
                if maker is None or maker.op_type not in rule.absorbs or maker.name in self._group:
                    continue
                if self._may_be_absorbed(maker) and self._read_only_by(maker, names | {maker.name}):
                    members.add(maker.name)
        return members

    def _may_be_absorbed(self, maker: Operator) -> bool:
        if maker.op_type in ("Add", "Mul", "Div"):
            return any(name in self._graph.constants for name in maker.inputs)
        if maker.op_type == "Transpose":  # It must swap the last two axes: a product reads no other order.
            axes = list(maker.attributes.get("perm", ()))
            last = len(axes) - 1
            return last > 0 and axes == [*range(last - 1), last, last - 1]
        return True

    def _is_closed(self, members: set[str], last: Operator) -> bool:
        """Whether no outside operator reads a tensor between the members."""
        return all(
            name == last.name or self._read_only_by(self._graph.by_name[name], members) for name in members
        )

    def _read_only_by(self, maker: Operator, members: set[str] | frozenset[str]) -> bool:
        return all(
            tensor not in self._graph.outputs
            and all(reader.name in members for reader in self._graph.consumers[tensor])
            for tensor in maker.outputs
            if tensor
        )

    def groups(self) -> tuple[tuple[Operator, ...], ...]:
        """All groups, ordered by the positions of their last operators: everything that a group reads from
        outside is made before that."""
        alone = [[operator] for operator in self._graph.operators if operator.name not in self._group]
        found = [*self._made, *alone]
        return tuple(map(tuple, sorted(found, key=lambda group: self._position[group[-1].name])))


def _orders(maker: Operator, count: int) -> Iterator[tuple[str, ...]]:
    """Yields the operator's first inputs, in all orders that mean the same."""
    yield maker.inputs[:count]
    if maker.op_type in COMMUTATIVE and len(maker.inputs) == 2:
        yield maker.inputs[::-1][:count]
