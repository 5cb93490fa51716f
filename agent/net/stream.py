"""Stream: one TLS connection that carries frames, blocking. A door: sockets.

Below it is a TCP connection, or one of a pair of local sockets that leads through a broker (mqtt/tunnel_sockets.py).

Every failure of the connection raises Unavailable; bytes that are not a frame, or are over the limits, raise FrameError.
One thread at a time uses a stream, except for `cut`, which any thread may call.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Sequence

import numpy as np

from edgepart.agent.net.faults import Fault, Unreached, blame
from edgepart.agent.wire.address import Address, format_address, mqtt_node
from edgepart.agent.wire.frames import PREFIX, Buffer, Frame, FrameLimits, encode, parse_frame, parse_prefix
from edgepart.agent.wire.transfer_headers import TransferHeaders
from edgepart.planner.errors import Unavailable

COALESCE_BYTES = 64 << 10
"""Buffers of up to this size together are joined and handed to TLS at once. If the header of a frame went alone, it would
wake the reader before there is anything for it to do."""
RECORD_BYTES = 16 << 10
"""The most bytes of a TLS record. As many are asked for at once, so that a frame that was sent as one record is received by
one call."""


class Stream:
    """A TLS connection after its handshake."""

    def __init__(self, connection: ssl.SSLSocket) -> None:
        self.connection = connection
        self.began_s = 0.0
        """The time at which the frame that `read` returned last began to arrive, by time.monotonic()."""
        self.received_bytes = 0
        """The bytes that were received, after TLS. Only the thread that reads changes it."""
        self._received = memoryview(bytearray(RECORD_BYTES))
        self._start = self._end = 0
        """Where the bytes that were received and belong to no frame yet begin and end in `_received`."""

    @property
    def holds_bytes(self) -> bool:
        """Whether bytes were received that `read` has not returned yet, so that the socket need not become readable."""
        return self._start < self._end  # TLS holds none back: whoever receives has room for a whole record.

    def read(
        self, limits: FrameLimits, deadline: float | None = None, headers: TransferHeaders | None = None
    ) -> Frame:
        """Return the next frame; its payload is received in place. With `headers`, frames of `Tensors` have their message.

        `deadline` is a time of time.monotonic(); None waits for ever. A frame over `limits` raises FrameError before
        memory is allocated for it.
        """
        if self._start == self._end:
            self._start, self._end = 0, self._receive(self._received, deadline)
        self.began_s = time.monotonic()
        payload: Buffer | None = None
        start, held = self._start, self._end - self._start
        if held >= PREFIX.size:
            header_bytes, payload_bytes = parse_prefix(self._received, limits, start)
            self._start = start = start + PREFIX.size
        else:
            header_bytes, payload_bytes = parse_prefix(self._next(PREFIX.size, deadline), limits)
        if (
            PREFIX.size + header_bytes + payload_bytes <= held
        ):  # All of it is here, as for nearly all small frames.
            stop = start + header_bytes
            self._start = end = stop + payload_bytes
            header = bytes(self._received[start:stop])
            if payload_bytes:
                payload = bytearray(self._received[stop:end])
        else:
            header = self._next(header_bytes, deadline)
            if payload_bytes:
                # numpy does not clear its memory first, and takes real pages only as bytes arrive.
                payload = np.empty(payload_bytes, np.uint8).data
                self._fill(payload, deadline)
        found = headers.read(header, payload) if headers is not None else None
        return parse_frame(header, payload) if found is None else found

    def _next(self, count: int, deadline: float | None) -> bytes:
        """Return the next `count` bytes."""
        if count <= self._end - self._start:
            self._start += count
            return bytes(self._received[self._start - count : self._start])
        whole = bytearray(count)
        self._fill(memoryview(whole), deadline)
        return bytes(whole)

    def _fill(self, target: memoryview, deadline: float | None) -> None:
        """Receive as many bytes as `target` holds; many at once directly, so that they are not copied."""
        filled, size = 0, len(target)
        while filled < size:
            if self._start == self._end:
                if size - filled >= RECORD_BYTES:
                    filled += self._receive(target[filled:], deadline)
                    continue
                self._start, self._end = 0, self._receive(self._received, deadline)
            count = min(size - filled, self._end - self._start)
            target[filled : filled + count] = self._received[self._start : self._start + count]
            self._start += count
            filled += count

    def _receive(self, target: memoryview, deadline: float | None) -> int:
        """Receive at least one byte into `target`, and return how many there are."""
        try:
            self._arm(deadline)
            count = self.connection.recv_into(target)
        except (OSError, ValueError) as error:
            raise _describe_loss(error) from error
        if not count:
            raise Unavailable("connection closed by the other side")
        self.received_bytes += count
        return count

    def write(self, frame: Frame, deadline: float | None = None) -> None:
        """Send a small frame."""
        try:
            self._arm(deadline)
            self.connection.sendall(b"".join(encode(frame)))
        except (OSError, ValueError) as error:
            raise _describe_loss(error) from error

    def offer(self, buffers: Sequence[Buffer], nbytes: int) -> tuple[Sequence[Buffer], int]:
        """Send as much of the buffers, which have `nbytes` together, as the kernel takes now: small neighbours together,
        large ones without a copy. The socket must not block.

        Returns what is left to be sent, and its bytes at most. It has to be offered again before anything else, because
        TLS may have made a record of its first bytes."""
        if nbytes <= RECORD_BYTES:
            return self._offer([b"".join(buffers)])
        chunks = [b"".join(buffers)] if nbytes <= COALESCE_BYTES else _coalesce(buffers)
        self._cork(True)
        try:
            return self._offer(chunks)
        finally:
            self._cork(False)

    def _offer(self, chunks: Sequence[Buffer]) -> tuple[Sequence[Buffer], int]:
        for number, chunk in enumerate(chunks):
            sent, size = 0, len(chunk)
            try:
                while sent < size:
                    sent += self.connection.send(memoryview(chunk)[sent:] if sent else chunk)
            except ssl.SSLWantWriteError:
                left = [memoryview(chunk)[sent:], *chunks[number + 1 :]]
                return left, sum(map(len, left))
            except (OSError, ValueError) as error:
                raise _describe_loss(error) from error
        return (), 0

    def _cork(self, on: bool) -> None:
        """Hold back packets that are not full, so that the first of several records does not wake the reader alone."""
        if self.connection.family != socket.AF_UNIX and self.connection.fileno() >= 0:
            try:
                self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, on)
            except OSError as error:
                raise _describe_loss(error) from error

    def _arm(self, deadline: float | None) -> None:
        if deadline is None:
            if self.connection.gettimeout() is not None:
                self.connection.settimeout(None)
            return
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("took too long")
        self.connection.settimeout(left)

    def cut(self) -> None:
        """End the connection, from any thread. The thread that uses it gets an error, and must still call `close`."""
        try:
            # Not SSLSocket.shutdown: that drops the TLS state, and a concurrent write would go in the clear.
            socket.socket.shutdown(self.connection, socket.SHUT_RDWR)
        except OSError:
            return  # The connection had ended already, as intended.

    def end_writing(self) -> None:
        """Tell the other side that nothing more comes after what was written."""
        try:
            socket.socket.shutdown(self.connection, socket.SHUT_WR)
        except OSError:
            return  # The connection had ended already.

    def close(self) -> None:
        """End the connection and free its socket. Only the thread that uses the stream may call this."""
        self.cut()
        self.connection.close()


def _coalesce(buffers: Sequence[Buffer]) -> list[Buffer]:
    """The bytes of the buffers in order: small neighbours joined, and with them the begin of a large buffer that follows,
    so that no record of TLS is small that need not be."""
    chunks: list[Buffer] = []
    pending: list[Buffer] = []
    size = 0
    for buffer in buffers:
        if size + len(buffer) > COALESCE_BYTES:
            if pending:
                room = RECORD_BYTES - size % RECORD_BYTES
                chunks.append(b"".join((*pending, memoryview(buffer)[:room])))
                buffer, pending, size = memoryview(buffer)[room:], [], 0
            if len(buffer) > COALESCE_BYTES:
                chunks.append(buffer)
                continue
        pending.append(buffer)
        size += len(buffer)
    return [*chunks, b"".join(pending)] if size else chunks


def tune(connection: socket.socket, dead_after_s: float) -> None:
    """Set the connection to send without waiting for full packets, and to fail if the peer acknowledges nothing for
    `dead_after_s` seconds."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(dead_after_s * 1000))


def dial(address: Address, context: ssl.SSLContext, *, timeout_s: float, dead_after_s: float = 5.0) -> Stream:
    """Connect and shake hands. Raises Unavailable if nobody answers, or not as a member of the cluster."""
    if mqtt_node(address) is not None:
        where = format_address(address)
        raise Unreached(Fault.UNREACHABLE, f"{where}: is reached through a broker only: --transport mqtt")
    raw: socket.socket | None = None
    deadline = time.monotonic() + timeout_s
    try:
        raw = socket.create_connection(address, timeout_s)
        tune(raw, dead_after_s)
    # UnicodeError: an impossible host name; OverflowError: a port over 65535.
    except (OSError, UnicodeError, OverflowError) as error:
        if raw is not None:
            raw.close()
        raise _describe_failure(format_address(address), error) from error
    return shake_hands(raw, context, format_address(address), deadline)


def shake_hands(raw: socket.socket, context: ssl.SSLContext, where: str, deadline: float) -> Stream:
    """Shake hands by TLS with the other end of `raw`, until `deadline` (time.monotonic()). The stream returned owns `raw`.

    Raises Unavailable, which names `where`, if nobody answers, or not as a member of the cluster.
    """
    try:
        raw.settimeout(max(0.01, deadline - time.monotonic()))
        return Stream(context.wrap_socket(raw))
    except OSError as error:
        raw.close()
        raise _describe_failure(where, error) from error


def _describe_failure(where: str, error: Exception) -> Unreached:
    fault, text = blame(error)
    return Unreached(fault, f"{where}: {text}")


def _describe_loss(error: Exception) -> Unavailable:
    """Return the error for the loss of an established connection. With TLS 1.3 the other side's verdict on our
    certificate arrives only then."""
    if isinstance(error, ssl.SSLError):
        fault, text = blame(error)
        return Unreached(fault, f"connection lost: {text}")
    return Unavailable(f"connection lost: {error}")
