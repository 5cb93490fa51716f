"""What users write, and what they are told where it is no description."""

# mypy: allow-untyped-defs

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edgepart.planner.errors import UsageError
from edgepart.planner.tdl.partition import find_strategies
from edgepart.tdl import Max, Opaque, OperatorDescription, Sum, operator, padded


@operator("my.domain", "Conv1D")
def conv1d(data, filters):
    """The paper's example."""
    return lambda b, co, x: Sum(lambda ci, dx: data[b, ci, x + dx] * filters[ci, co, dx])


def ways(described: OperatorDescription) -> list[str]:
    return [str(one) for one in find_strategies(described)]


def describe(function: Callable[..., Any], **options: Any) -> OperatorDescription:
    return operator("my.domain", "It", **options)(function)


def test_the_papers_example_is_divided_in_five_ways() -> None:
    assert ways(conv1d) == [
        "b: pieces are joined",
        "co: pieces are joined",
        "x: pieces are joined, with a halo",
        "ci: parts are combined by sum",
        "dx: parts are combined by sum, with a halo",
    ]
    assert (conv1d.domain, conv1d.op_type) == ("my.domain", "Conv1D")
    assert [one.name for one in conv1d.inputs] == ["data", "filters"]


def test_the_papers_opaque_function_leaves_the_batch() -> None:
    assert ways(describe(lambda a: lambda b, i, j: Opaque(a[b, :, :])[i, j])) == ["b: pieces are joined"]


@pytest.mark.parametrize(
    ("function", "cut"),
    [
        pytest.param(lambda a: lambda i, j: a[i, j] * i, ["j"], id="an index is a number"),
        pytest.param(lambda a: lambda i: a[9 - i], [], id="an index goes backwards"),
        pytest.param(lambda a: lambda i, j: a[i, j] + a[j, i], [], id="two reads move differently"),
        pytest.param(lambda a: lambda i: a[i, i], ["i"], id="a diagonal"),
        pytest.param(lambda a: lambda i: a[i] + a[i + 1], ["i"], id="neighbours"),
        pytest.param(lambda a: lambda i, k: a[i + k], [], id="two indices on one axis"),
        pytest.param(lambda a, b: lambda i, j: a[i] * b[j], ["i", "j"], id="an outer product"),
        pytest.param(lambda a: lambda i, j: a[i], ["i"], id="an axis that no input has"),
        pytest.param(lambda a: lambda i: a[i, 3], ["i"], id="a fixed element"),
        pytest.param(
            lambda a: lambda i: Sum(lambda k: a[i, k]) * 2, ["i"], id="something is done with a sum"
        ),
        pytest.param(
            lambda a: lambda i: Sum(lambda k: Sum(lambda m: a[i, k, m])), ["i", "k", "m"], id="a sum of sums"
        ),
        pytest.param(
            lambda a: lambda i: Sum(lambda k: Max(lambda m: a[i, k, m])), ["i", "k"], id="of maxima"
        ),
        pytest.param(lambda a: lambda i: Max(lambda k: a[i + k], k=3), ["i"], id="a window without a tensor"),
        pytest.param(
            lambda a, w: lambda i: Sum(lambda k: padded(a)[i + k - 1] * w[k]), ["i"], id="a sum over padding"
        ),
        pytest.param(
            lambda a: (lambda i: a[i], lambda j: a[j]), [], id="two outputs that follow an axis differently"
        ),
        pytest.param(lambda a: (lambda i: a[i], lambda i: a[i] * 2), ["i"], id="two outputs alike"),
    ],
)
def test_what_can_be_divided(function: Callable[..., Any], cut: list[str]) -> None:
    assert [one.index for one in find_strategies(describe(function))] == cut


def test_an_author_keeps_an_axis_whole() -> None:
    """So the windows of an unfolded axis can be divided, and their elements cannot."""
    unfold = describe(lambda a: lambda x, k: a[x + k], whole=["k"])
    assert ways(unfold) == ["x: pieces are joined, with a halo"]


def many_indices(a):
    def element(*indices):
        return a[indices]

    return element


def many_inputs(*inputs):
    return lambda i: inputs[0][i]


def attribute_of_halves(a, *, scale=0.5):
    return lambda i: a[i]


def attribute_by_name(a, *, step=1):
    return lambda i: a[i * step["x"]]


WRONG = [
    (lambda a: lambda i: a[i // 2], "only +, - and * make an affine index"),
    (lambda a: lambda i, j: a[i * j], "(i) * (j) is not affine"),
    (lambda a: lambda i: a[a[i]], "an element cannot be an index"),
    (lambda a: lambda i: a["i"], "'i' is no index"),
    (lambda a: lambda i: a[i, ...], "`...` comes first"),
    (lambda a: lambda i: a[1:i], "`:` is read, without bounds"),
    (lambda a: lambda i: a[:], "`:` reads a whole axis, which only an Opaque function may"),
    (lambda a: lambda i: a[i, :] * 2, "`:` reads a whole axis, which only an Opaque function may"),
    (lambda a: lambda i: a, "a is a tensor; choose an element of it, such as a[i]"),
    (lambda a: lambda i: a[i][i], "an element has no elements"),
    (lambda a: lambda i: a[i] if i > 0 else a[0], "a description cannot compare or decide"),
    (lambda a: lambda i: a[i] if a[i] else a[0], "a description cannot compare or decide"),
    (lambda a: lambda i: Sum(lambda: a[i]), "Sum needs an index to run over"),
    (lambda a: lambda i: Sum(lambda k: a[k], j=3), "it has no index j; its indices are k"),
    (lambda a: lambda i: Sum(lambda k: a[k], k=i), "the extent of k is i, and may not depend on an index"),
    (lambda a: lambda i: Sum(lambda i: a[i]), "i is an index of an output and of a reduction"),
    (lambda a: lambda i: Sum(lambda k: Max(lambda k: a[i, k])), "two indices share a name: k, k"),
    (lambda a: lambda i: a[i] + a[i, i], "a is read with 1 indices and with 2; it has one rank"),
    (lambda a: 3, "it returns 3, and not a function"),
    (many_indices, "the parameters of a lambda are indices"),
    (many_inputs, "*inputs has no number"),
    (attribute_of_halves, "scale=0.5: indices depend on attributes that are integers"),
    (attribute_by_name, "the place in an attribute is a number"),
]


@pytest.mark.parametrize(("function", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_is_no_description_is_refused_with_its_place(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        describe(function)
    text = str(caught.value)
    assert said in text and "test_language.py:" in text and "does not describe It" in text


def test_an_unknown_index_stays_whole_for_nobody() -> None:
    with pytest.raises(UsageError, match="no output has an index j"):
        describe(lambda a: lambda i: a[i], whole=["j"])
