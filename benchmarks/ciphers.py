"""CPU cost of TLS between two agents, by cipher, with the processor's AES instructions and without them.

    python -m benchmarks.ciphers [--rounds N]

Each line is measured in a process of its own, because OpenSSL reads which ciphers and instructions it may use when a
process starts. Both ends are in it; a local socket pair is between them, so that there is no network in the figures.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from rich.table import Table

from benchmarks.machine import sentence, show_table
from edgepart.agent.security import identity
from edgepart.agent.security.ciphers import CHACHA_FIRST

NO_AES = "~0x200000200000000"
"""A value of OPENSSL_ia32cap: OpenSSL acts as if an x86 processor had neither AES nor carry-less multiplication."""
NAMES = ("TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256")
SENT_BYTES = 64 << 20
AT_ONCE_BYTES = 1 << 20


def cpu_s_per_mb(first: str, rounds: int, *, aes: bool) -> float:
    """Return the CPU seconds of both ends for 10^6 bytes with the cipher `first`, or without TLS if it is "".
    The least of `rounds` counts."""
    with tempfile.TemporaryDirectory(prefix="edgepart-") as folder:
        place = Path(folder, "openssl.cnf")
        place.write_text(_configuration(first))
        env = {**os.environ, "OPENSSL_CONF": str(place)} | ({} if aes else {"OPENSSL_ia32cap": NO_AES})
        command = [
            sys.executable,
            "-m",
            "benchmarks.ciphers",
            "--one",
            first or "none",
            "--rounds",
            str(rounds),
        ]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return float(done.stdout)


def _configuration(first: str) -> str:
    order = ":".join(dict.fromkeys([*filter(None, [first]), *CHACHA_FIRST.split(":")]))
    sections = ("[init]\nssl_conf = all", "[all]\nsystem_default = tls", f"[tls]\nCiphersuites = {order}")
    return "\n".join(("openssl_conf = init", *sections, ""))


def one(name: str, rounds: int) -> float:
    """Return the least CPU seconds for 10^6 bytes of all rounds, measured in this process."""
    with tempfile.TemporaryDirectory(prefix="edgepart-") as folder:
        me = identity.create_cluster(Path(folder), time.time())
        ends: tuple[socket.socket, socket.socket] = socket.socketpair()
        if name == "none":
            return min(_round(*ends) for _ in range(rounds + 1))
        made: list[socket.socket] = []
        shaking = threading.Thread(
            target=lambda: made.append(me.server_context().wrap_socket(ends[0], server_side=True))
        )
        shaking.start()
        client = me.client_context().wrap_socket(ends[1])
        shaking.join()
        if (used := client.cipher()) is None or used[0] != name:
            raise SystemExit(f"{name} was wanted, and the two agreed on {used}")
        return min(_round(made[0], client) for _ in range(rounds + 1))


def _round(reader: socket.socket, writer: socket.socket) -> float:
    data = np.zeros(AT_ONCE_BYTES, np.uint8).data
    began = time.process_time()
    thread = threading.Thread(target=_drain, args=(reader,))
    thread.start()
    for _ in range(SENT_BYTES // AT_ONCE_BYTES):
        writer.sendall(data)
    thread.join()
    return (time.process_time() - began) / (SENT_BYTES / 1e6)


def _drain(reader: socket.socket) -> None:
    room, left = bytearray(AT_ONCE_BYTES), SENT_BYTES
    while left:
        left -= reader.recv_into(room, min(left, AT_ONCE_BYTES))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ciphers", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(one(given.one, given.rounds))
        return 0
    table = Table(title=f"CPU time of both ends for 10^6 bytes, ms\n{sentence()}")
    for head in ("", "with AES instructions", "without"):
        table.add_column(head, justify="right" if head else "left")
    table.add_row("no TLS", f"{cpu_s_per_mb('', given.rounds, aes=True) * 1e3:.2f}", "")
    for name in NAMES:
        both = (cpu_s_per_mb(name, given.rounds, aes=aes) * 1e3 for aes in (True, False))
        table.add_row(name, *(f"{each:.2f}" for each in both))
    show_table(table, markdown=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
