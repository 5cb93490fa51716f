"""Installed: which software computes on this box, as text. A door: the metadata of installed packages, without importing
any of them."""

from __future__ import annotations

from importlib.metadata import distributions

_PARTS = ("onnxruntime", "openvino", "tensorrt", "nvidia-cudnn")
"""How the names of packages begin that what engines do depends on."""


def installed_runtime() -> str:
    """The names and versions of the packages that compute, such as "onnxruntime 1.23.0"."""
    found = {
        f"{name.lower()} {one.version}"
        for one in distributions()
        if (name := one.metadata["Name"] or "").lower().startswith(_PARTS)
    }
    return ", ".join(sorted(found))
