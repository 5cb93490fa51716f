"""Finds parts of a model that were compiled for another accelerator. A pure rule.

ONNX Runtime's provider for that accelerator leaves an EPContext node in their place, which no device here can compute."""

from __future__ import annotations

from collections.abc import Iterable

from onnx import ModelProto, NodeProto

from edgepart.planner.model.subgraphs import nested_graphs

DOMAIN, OP_TYPE = "com.microsoft", "EPContext"


def explain_precompiled(model: ModelProto) -> str | None:
    """A text for people that says why no device can compute the model, and what to do; None if no part of it
    is compiled already.

    >>> explain_precompiled(ModelProto()) is None
    True
    """
    found = _first_precompiled(
        (*model.graph.node, *(node for function in model.functions for node in function.node))
    )
    if found is None:
        return None
    source = next((each.s.decode(errors="replace") for each in found.attribute if each.name == "source"), "")
    by = f" by {source[:63]!r}" if source else ""
    return (
        f"{OP_TYPE} {found.name[:63]!r} holds a part of it that was compiled{by} for another accelerator, and devices "
        "here compute on CPUs; export the model without context (ONNX Runtime's ep.context_enable = 0), or deploy the "
        "model that it was compiled from"
    )


def _first_precompiled(nodes: Iterable[NodeProto]) -> NodeProto | None:
    """The first EPContext node, sub-graphs included. The search does not recurse, because a file can nest its
    graphs to any depth."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node.op_type == OP_TYPE and node.domain == DOMAIN:
            return node
        for graph in nested_graphs(node):
            waiting += graph.node
    return None
