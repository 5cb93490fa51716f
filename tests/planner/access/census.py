"""Which attributes the laws draw: the modules of laws, run as far as their cases go, and without the runtime."""

from __future__ import annotations

import inspect
import sys
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import hypothesis
import numpy as np
import onnx

from tests.planner.access import law
from tests.planner.access.law import Case

Drawn = dict[str, list[dict[str, Any]]]
"""By operator of ai.onnx, the attributes of each case."""


SEEDS = (0, 1)
"""Two, as what is drawn from a seed is another with each change of a law."""


class _Told(Exception):
    """A test has told its case."""


def census(paths: list[Path]) -> Drawn:
    """Every case that the tests of these modules make before they check the first, from fixed seeds."""
    found: Drawn = defaultdict(list)

    class Recorded(Case):
        def __init__(self, *positional: Any, **named: Any) -> None:
            super().__init__(*positional, **named)
            if self.domain == "":
                found[self.op_type].append(dict(self.attributes))

    def tell(case: Case) -> Any:
        if not isinstance(case, Recorded) and case.domain == "":
            found[case.op_type].append(dict(case.attributes))
        raise _Told

    with (
        patch.object(law, "Case", Recorded),
        patch.object(law, "check_whole", tell),
        patch.object(law, "declared", tell),
    ):
        for path in paths:
            module = _copy(path)
            for test in _tests(module):
                _run(test)
    return found


def _copy(path: Path) -> ModuleType:
    """The module anew, so that what is done to its tests is done to nobody else's."""
    spec = spec_from_file_location(f"census_of_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # Dataclasses look their module up.
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return module


def _tests(module: ModuleType) -> Iterator[Any]:
    return (one for name, one in vars(module).items() if name.startswith("test_") and callable(one))


def _run(test: Any) -> None:
    for arguments in _parametrised(test):
        if hasattr(test, "hypothesis"):
            inner = test.hypothesis.inner_test
            test.hypothesis.inner_test = _until_told(inner)
            for seed in SEEDS:
                hypothesis.seed(seed)(test)(**arguments)
            test.hypothesis.inner_test = inner
        elif set(inspect.signature(test).parameters) == set(arguments):
            _until_told(test)(**arguments)


def _until_told(test: Any) -> Any:
    def told(*positional: Any, **named: Any) -> None:
        try:
            test(*positional, **named)
        except _Told:
            return

    return told


def _parametrised(test: Any) -> Iterator[dict[str, Any]]:
    """The arguments of each run that pytest would make of it."""
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    choices = []
    for mark in marks:
        names = mark.args[0].split(",") if isinstance(mark.args[0], str) else list(mark.args[0])
        rows = [row if len(names) > 1 else (row,) for row in mark.args[1]]
        choices.append([dict(zip((n.strip() for n in names), row, strict=True)) for row in rows])
    for chosen in product(*choices):
        yield {name: value for one in chosen for name, value in one.items()}


def values(drawn: Drawn, op_type: str, attribute: onnx.defs.OpSchema.Attribute) -> set[Any]:
    """The different values that an attribute has had; the schema's default where it was left out."""
    default = attribute.default_value
    absent = onnx.helper.get_attribute_value(default) if default.name else None
    return {_plain(given.get(attribute.name, absent)) for given in drawn.get(op_type, [])}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list | tuple | np.ndarray):
        return tuple(map(_plain, value))
    if isinstance(value, float):
        return float(np.float32(value))
    return value if isinstance(value, int | str | None) else repr(value)
