"""edgepart: runs any ONNX model over the small boxes a person already has.

    import edgepart

    with edgepart.connect() as client:                      # the agent on this machine; or connect("pi-a:8433")
        answer = client.infer("photos", photo)              # numpy in, numpy out

`connect_async` is the same for asyncio, `plan` predicts a plan without any cluster, and `export` writes one as files that
run without edgepart. Errors are the classes of `edgepart.errors`. Each name is imported when it is first used, so that
`import edgepart` takes no time. With `edgepart.tdl` users describe operators of their own.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if sys.version_info < (3, 11):  # noqa: UP036 - 3.10 is not what the code is written for
    from edgepart import python310

    python310.bring()

if TYPE_CHECKING:
    from edgepart.client.async_client import AsyncClient
    from edgepart.client.client import Client
    from edgepart.client.connecting import connect, connect_async
    from edgepart.client.offline import Forecast, export, plan
    from edgepart.client.records import Answer, Deployed
    from edgepart.planner import errors
    from edgepart.planner.errors import EdgepartError

    __version__: str

__all__ = [
    "Answer",
    "AsyncClient",
    "Client",
    "Deployed",
    "EdgepartError",
    "Forecast",
    "__version__",
    "connect",
    "connect_async",
    "errors",
    "export",
    "plan",
]

_HOMES = {
    "Answer": "client.records",
    "AsyncClient": "client.async_client",
    "Client": "client.client",
    "Deployed": "client.records",
    "EdgepartError": "planner.errors",
    "Forecast": "client.offline",
    "connect": "client.connecting",
    "connect_async": "client.connecting",
    "export": "client.offline",
    "plan": "client.offline",
}
"""The module of each name."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import (
            version,  # Takes a quarter of the start of most commands, which do not need it.
        )

        found: Any = version("edgepart")
    elif name == "errors":
        found = import_module("edgepart.planner.errors")
    elif name in _HOMES:
        found = getattr(import_module(f"edgepart.{_HOMES[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
