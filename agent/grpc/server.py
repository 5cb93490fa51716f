"""gRPC server: starts and stops an agent's gRPC server on the running event loop. Door: listening sockets, the library.

The library runs in threads of its own, and tells the event loop of calls.
"""

from __future__ import annotations

import grpc
from grpc import aio

from edgepart.agent.gateway.gateway import Gateway
from edgepart.agent.grpc.messages import SERVICE
from edgepart.agent.grpc.methods import InferenceMethods
from edgepart.agent.host.open_files import for_strangers, open_files
from edgepart.agent.wire.address import Address, format_address
from edgepart.planner.errors import Unavailable

GRACE_S = 5.0
"""Seconds that calls under way have to end when the server stops."""
IDLE_S, SILENT_S, ANSWER_S = 300.0, 30.0, 20.0
"""A connection without calls is closed after the first. After the second of silence the client is asked whether it is still
there, and the connection is closed if it does not answer within the third."""


class GrpcServer:
    """Serves `gateway` over gRPC at an address; port 0 picks a free port."""

    def __init__(self, gateway: Gateway, address: Address) -> None:
        self._address = address
        limits = gateway.limits
        options = {
            "grpc.max_receive_message_length": limits.request_bytes,
            "grpc.max_send_message_length": -1,
            "grpc.so_reuseport": 0,  # Otherwise two agents could listen on one port, and each get some of the calls.
            "grpc.max_allowed_incoming_connections": for_strangers(open_files()),
            "grpc.max_connection_idle_ms": round(IDLE_S * 1e3),
            "grpc.server_handshake_timeout_ms": round(limits.head_s * 1e3),
            "grpc.keepalive_time_ms": round(SILENT_S * 1e3),
            "grpc.keepalive_timeout_ms": round(ANSWER_S * 1e3),
        }
        self._server = aio.server(options=tuple(options.items()), maximum_concurrent_rpcs=limits.reading)
        handlers = InferenceMethods(gateway).handlers()
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    async def start(self) -> Address:
        """Listen, and return the address with the port in use. Raises Unavailable if it cannot listen there."""
        host, port = self._address
        try:
            port = self._server.add_insecure_port(format_address((host or "::", port)))
        except RuntimeError as error:
            raise Unavailable(
                f"--grpc {format_address(self._address)}: cannot listen there ({error})"
            ) from error
        await self._server.start()
        return host, port

    async def stop(self) -> None:
        """Accept no further calls, let the running ones end (for a few seconds at most), and close."""
        await self._server.stop(GRACE_S)
