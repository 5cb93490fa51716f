"""Bindings: the extents that requests give to the dimensions that a model leaves free. Rules: no door.

A deployment has a first binding. For each other binding that requests ask for, the leader makes a variant: a
deployment of the same model and options with these shapes. The cluster knows it by a name that no user can
give.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from edgepart.agent.wire.control import Version
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import RequestError
from edgepart.planner.plans.plan import ValueInfo

Shapes = dict[str, tuple[int, ...]]
"""The whole shape of each input that has free dimensions, by input name."""

VARIANT_SEPARATOR = "@"
"""Separates the deployment's name from the rest in a variant's name; `check_name` (agent/api/deployment_name.py)
allows it in no user's name."""
MAX_EXTENT = 2**31 - 1
"""The largest extent of a free dimension. An empty array may claim any extents, and a plan must be made for
them."""


def find_binding(infos: Sequence[ValueInfo], given: Mapping[str, Value]) -> Shapes:
    """The shapes that the values `given` bind the inputs with free dimensions to; {} if `infos` are bound to
    these shapes already.

    Raises RequestError if a fixed dimension does not fit, or if one name would stand for two extents. Inputs
    without free dimensions, and missing inputs, are not checked."""
    shapes: Shapes = {}
    named: dict[str, tuple[int, str]] = {}
    for info in infos:
        value = given.get(info.name)
        if not info.free or not isinstance(value, np.ndarray):
            continue
        _check_axes(info, value.shape, named)
        shapes[info.name] = value.shape
    bound = all(shapes[info.name] == info.shape for info in infos if info.name in shapes)
    return {} if bound else dict(sorted(shapes.items()))


def _check_axes(info: ValueInfo, shape: tuple[int, ...], named: dict[str, tuple[int, str]]) -> None:
    """Check the axes of one input. `named` maps each free dimension to its extent and the input that gave it;
    new ones are added."""
    assert info.shape is not None
    where = f"input {info.name!r} has shape {list(shape)}"
    if len(shape) != len(info.free):
        raise RequestError(f"{where}; expected {describe_input(info)}")
    for extent, name, fixed in zip(shape, info.free, info.shape, strict=True):
        if name is None and extent != fixed:
            raise RequestError(f"{where}; expected {describe_input(info)}")
        if extent > MAX_EXTENT:
            raise RequestError(f"{where}; a dimension may be up to {MAX_EXTENT}")
        if name:
            first, by = named.setdefault(name, (extent, info.name))
            if first != extent:
                raise RequestError(
                    f"dimension {name!r} is {first} in input {by!r} and {extent} in input {info.name!r}; "
                    "it must be the same"
                )


def bind_infos(infos: Sequence[ValueInfo], shapes: Shapes) -> tuple[ValueInfo, ...]:
    """`infos` with these shapes."""
    return tuple(replace(info, shape=shapes.get(info.name, info.shape)) for info in infos)


def read_binding(infos: Sequence[ValueInfo]) -> Shapes:
    """The binding that `infos` have."""
    return {info.name: info.shape for info in infos if info.free and info.shape is not None}


def describe_input(info: ValueInfo) -> str:
    """The name, type and shape of an input, with the names of its free dimensions.

    >>> describe_input(ValueInfo("x", "float", (1, 3, 224), ("batch", None, "")))
    'x: float [batch, 3, any]'
    """
    if info.shape is None:
        return f"{info.name}: {info.dtype} of any shape"
    names = info.free or (None,) * len(info.shape)
    extents = [str(e) if name is None else name or "any" for e, name in zip(info.shape, names, strict=True)]
    return f"{info.name}: {info.dtype} [{', '.join(extents)}]"


def format_shapes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The shapes in the form that `--shape` takes.

    >>> format_shapes({"x": (1, 3), "n": ()})
    'x=1,3 n='
    """
    return " ".join(f"{name}={','.join(map(str, shape))}" for name, shape in shapes.items())


def variant_name(deployment: str, version: Version, shapes: Shapes) -> str:
    """The variant's name. It is the same on every member, and differs for every version of the deployment,
    because another model may take other shapes."""
    text = f"{version.counter} {version.node} {sorted(shapes.items())}"
    return f"{deployment}{VARIANT_SEPARATOR}{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def parent_of(name: str) -> str:
    """The name of the deployment that a variant belongs to; any other name is returned as it is."""
    return name.partition(VARIANT_SEPARATOR)[0]


def is_variant(name: str) -> bool:
    return VARIANT_SEPARATOR in name
