"""gRPC door: opens an agent's gRPC server if that can be done, and says why if not. The agent serves without it, too.

The library is imported only when the door is opened. Door: the file system of packages, listening sockets.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from edgepart.agent.gateway.gateway import Gateway
from edgepart.agent.wire.address import Address
from edgepart.planner.errors import Unavailable

if TYPE_CHECKING:
    from edgepart.agent.grpc.server import GrpcServer

log = logging.getLogger(__name__)


class GrpcDoor:
    """The gRPC server of one agent, which may be closed."""

    def __init__(
        self,
        gateway: Gateway,
        address: Address | None,
        bind: Callable[[Address], socket.socket],
        reachable: Callable[[Address], str],
    ) -> None:
        """Set up the door. `address` is where it is to listen; None if it is to stay closed. `bind` returns a socket that
        listens at an address; it raises Unavailable, which says why that cannot be. `reachable` returns the text of an
        address at which programs on this machine reach a socket that is bound to one."""
        self._gateway = gateway
        self._asked = address
        self._bind = bind
        self._reachable = reachable
        self._server: GrpcServer | None = None
        self.address = ""
        """Where programs on this machine reach the server, as HOST:PORT; "" while it does not listen."""
        self.bound: Address | None = None
        """What it is bound to; None while it does not listen."""
        self.trouble = ""
        """Why it does not listen although it is to; "" if there is no trouble."""

    async def open(self) -> None:
        """Listen if it is to, and if it can; if it cannot, that is logged, and `trouble` says why."""
        if self._asked is None:
            return
        # The library writes lines of its own to stderr; what matters of them comes as errors, too.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        try:
            self._bind(self._asked).close()  # The library does not say why it cannot listen.
            server = await asyncio.to_thread(importlib.import_module, "edgepart.agent.grpc.server")
            self._server = server.GrpcServer(self._gateway, self._asked)
            self.bound = await self._server.start()
            self.address = self._reachable(self.bound)
        except ImportError as error:
            self.trouble = f"the package grpcio cannot be used here ({error}): `pip install grpcio`"
        except Unavailable as error:
            self.trouble = str(error)
        if self.trouble:
            log.warning("no gRPC, HTTP serves: %s", self.trouble)

    async def close(self) -> None:
        if self._server is not None:
            self.address, self.bound = "", None
            await self._server.stop()
            self._server = None
