"""The agent: one process on each device, which has the network, the disk, the clock and ONNX Runtime to itself.

service.py starts and stops it, and driver.py carries out what the cluster's logic decides. `edgepart.agent.backend` is
the ONNX backend: it is imported when it is first asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgepart.agent.verify import backend

__all__ = ["backend"]


def __getattr__(name: str) -> Any:
    if name != "backend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from edgepart.agent.verify import backend

    return backend
