"""Nothing is opaque by omission, and nothing is declared that the law is not tried on."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import onnx.defs

from edgepart.planner.access.registry import DECLARED, OPAQUE

DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")


def test_every_declared_operator_is_under_the_law() -> None:
    """Each module of laws names the operators that it tries."""
    tried: set[str] = set()
    for path in Path(__file__).parent.glob("test_law_*.py"):
        tried |= import_module(f"{__package__}.{path.stem}").OPERATORS
    assert not {name for _, name in DECLARED if name not in tried}


def test_every_operator_of_onnx_is_declared_or_opaque_on_purpose() -> None:
    known = {
        (schema.domain, schema.name) for schema in onnx.defs.get_all_schemas() if schema.domain in DOMAINS
    }
    assert not {key for key in known if key not in DECLARED and key not in OPAQUE}
    assert not set(DECLARED) & set(OPAQUE)
