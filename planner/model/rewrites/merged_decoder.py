"""Decides merged decoders: those that hold the same decoder twice, with and without a past, below an `If` that the input
`use_cache_branch` decides. A pure rule.

Where caches are kept there is always a past, and a past of which no row counts is none. So the branch without one is never
taken, and the other one can be divided like any decoder. A deployment says so in its shapes, which all who load the model
have: there the input, which holds one element, is bound to no axis at all, as no other input can be."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import ModelProto, TensorProto, helper

CACHE_BRANCH = "use_cache_branch"
"""The input that says whether there is a past, in the files of optimum 1."""
ALWAYS: Mapping[str, tuple[int, ...]] = {CACHE_BRANCH: ()}
"""What the shapes of a deployment say of it where there always is one."""


def is_merged(model: ModelProto) -> bool:
    """Whether the input decides an `If` of the model, and nothing else."""
    read = [node for node in model.graph.node if CACHE_BRANCH in node.input]
    return any(value.name == CACHE_BRANCH for value in model.graph.input) and [
        one.op_type for one in read
    ] == ["If"]


Shapes = Mapping[str, tuple[int | None, ...]]


def decide(model: ModelProto, shapes: Shapes) -> Shapes:
    """The shapes of the inputs that are left. If `shapes` say that there always is a past, the input of a merged decoder
    becomes a constant. Changes `model`."""
    if shapes.get(CACHE_BRANCH) != () or not is_merged(model):
        return shapes
    left = [value for value in model.graph.input if value.name != CACHE_BRANCH]
    del model.graph.input[:]
    model.graph.input.extend(left)
    model.graph.initializer.append(helper.make_tensor(CACHE_BRANCH, TensorProto.BOOL, [1], [True]))
    return {name: shape for name, shape in shapes.items() if name != CACHE_BRANCH}


def shapes_of_plan(model: ModelProto, bound: Mapping[str, tuple[int, ...]]) -> Mapping[str, tuple[int, ...]]:
    """The shapes with which the graph of a plan is loaded again; `bound` are those of all its inputs. If the one of
    a merged decoder is not among them, there always is a past."""
    return {**bound, **ALWAYS} if is_merged(model) and CACHE_BRANCH not in bound else bound
