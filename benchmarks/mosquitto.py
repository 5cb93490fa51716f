"""A mosquitto broker on loopback, for benchmarks and tests. Does I/O: processes and files."""

from __future__ import annotations

import getpass
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from edgepart.planner.errors import Unavailable

START_S = 20.0


def program() -> str | None:
    """Return the path of mosquitto; None if it is not installed. Debian puts it in a folder that only root's
    PATH contains."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


class Mosquitto:
    """A broker that can be killed and started again on the same port. A context manager."""

    def __init__(self, folder: Path, settings: Sequence[str] = ("allow_anonymous true",)) -> None:
        """`settings` are lines of mosquitto.conf."""
        self.port = _free_port()
        self.url = f"mqtt://127.0.0.1:{self.port}"
        self.log = folder / "mosquitto.log"
        self._configuration = folder / "mosquitto.conf"
        lines = [f"listener {self.port} 127.0.0.1", "persistence false", f"user {_user()}", *settings]
        self._configuration.write_text("\n".join(lines) + "\n")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Mosquitto:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start the broker and return when it accepts connections. Raises Unavailable, with the end of its
        log, if it does not."""
        command = program()
        if command is None:
            raise Unavailable("mosquitto is not installed: apt-get install mosquitto")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [command, "-c", str(self._configuration)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_S
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        self.kill()
        raise Unavailable(f"mosquitto did not start: {self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        if self._process is None:
            raise Unavailable("mosquitto was not started")
        return self._process.pid


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _user() -> str:
    """Return the current user. Without it, mosquitto started by root would become a user who cannot read our
    folder."""
    return getpass.getuser()
