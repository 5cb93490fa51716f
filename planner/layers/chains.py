"""Chains: operators of one layer that always run together, whatever a strategy chooses.

Takes the layers of a graph; gives its chains. Each operator of a chain reads the one before it and constants,
and no other operator reads the tensors between them. planner/cost/chain_cost.py measures chains. Rules
only."""

from __future__ import annotations

from collections.abc import Mapping

from edgepart.planner.layers.coarsen import DEQUANTIZE, PULLED_FAMILIES, QUANTIZE, Coarse
from edgepart.planner.model.graph import Operator


def output_of(op: Operator) -> str:
    """Name of the one tensor that `op` writes."""
    return next(filter(None, op.outputs))


def find_chains(coarse: Coarse) -> tuple[tuple[Operator, ...], ...]:
    """All chains of two operators or more, each as long as possible. No two operators of a chain read the
    same constant."""
    found: dict[str, tuple[list[Operator], set[str]]] = {}
    """The operators of a chain and the constants that they read, by name of the chain's last operator."""
    for op in coarse.graph.operators:
        before, constants = _before(coarse, op), _constants(coarse, op)
        chain = found.get(before.name) if before is not None else None
        if before is not None and chain is not None and constants.isdisjoint(chain[1]):
            chain[0].append(op)
            chain[1].update(constants)
            found[op.name] = found.pop(before.name)
        elif _is_plain(coarse, op) and any(True for _ in coarse.graph.reads(op)):
            found[op.name] = [op], constants
    return tuple(tuple(chain) for chain, _ in found.values() if len(chain) > 1)


def _before(coarse: Coarse, op: Operator) -> Operator | None:
    """The operator of the same layer that is the only one to feed `op` and feeds no other operator; None if
    there is none."""
    graph = coarse.graph
    reads = tuple(graph.reads(op))
    before = graph.producers.get(reads[0]) if len(reads) == 1 else None
    if before is None or not _is_plain(coarse, op) or op.inputs.count(reads[0]) > 1:
        return None
    alone = len(graph.consumers[reads[0]]) == 1 and reads[0] not in graph.outputs
    return before if alone and coarse.layer_of[before.name] == coarse.layer_of[op.name] else None


def _is_plain(coarse: Coarse, op: Operator) -> bool:
    """Whether `op` writes exactly one tensor, on the devices of the tensor's layout, and needs no special treatment."""
    access = coarse.accesses[op.name]
    left = coarse.is_pulled(op) or access.opaque is not None or access.family in PULLED_FAMILIES
    special = op.op_type in DEQUANTIZE | QUANTIZE | frozenset(TABLES) or op.captured
    return not left and not special and sum(map(bool, op.outputs)) == 1


def _constants(coarse: Coarse, op: Operator) -> set[str]:
    return {name for name in op.inputs if name in coarse.graph.constants}


TABLES: Mapping[str, tuple[int, ...]] = {"Gather": (0,), "EmbedLayerNormalization": (2, 3, 4)}
"""The indices of inputs of which an operator reads only some rows, by type of the operator."""
