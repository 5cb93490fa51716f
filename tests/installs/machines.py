"""Machines to install on: Debian in a folder (mmdebstrap), with a systemd of its own (systemd-nspawn) and a network between
two of them (ip). Does I/O, as root."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx import TensorProto, helper

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".venv" / "machines"
COMMANDS = ("mmdebstrap", "systemd-nspawn", "ip", "nsenter")
PACKAGES = "systemd,systemd-sysv,dbus,python3,python3-venv,iproute2,procps"
BOOT_S = 90.0
ENVIRONMENT = (
    "env",
    "-i",
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG=C.UTF-8",
    "HOME=/root",
)
QUIET = ("DEBIAN_FRONTEND=noninteractive",)


def doubling(path: Path) -> None:
    """Write a model that doubles 4 numbers."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "doubling", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)


def only(pattern: str) -> Path:
    """The file that `make deb` made."""
    (found,) = (ROOT / "dist").glob(pattern)
    return found


def missing() -> str | None:
    """Why there can be no machines here; None if there can."""
    if os.geteuid() != 0:
        return "needs root"
    lacking = [command for command in COMMANDS if shutil.which(command) is None]
    return f"needs {', '.join(lacking)} (make machines)" if lacking else None


def make_root(release: str, folder: Path) -> Path:
    """Put a Debian of this release into the folder. The first one of a release is kept and copied."""
    kept = CACHE / f"{release}.tar"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        draft = kept.with_suffix(".new.tar")
        command = ("mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", release, draft)
        subprocess.run(list(map(str, command)), check=True, env=os.environ | {"TMPDIR": "/var/tmp"})
        draft.rename(kept)
    folder.mkdir(parents=True)
    subprocess.run(["tar", "-C", str(folder), "-xf", str(kept)], check=True)
    return folder


@contextlib.contextmanager
def cable(addresses: dict[str, str]) -> Iterator[None]:
    """Two network namespaces by these names, with a cable between them and an address at each end."""
    (one, first), (other, second) = addresses.items()
    subprocess.run(
        ["ip", "-batch", "-"], text=True, check=True, input=f"netns add {one}\nnetns add {other}\n"
    )
    try:
        lines = f"link add up0 netns {one} type veth peer name up0 netns {other}\n"
        subprocess.run(["ip", "-batch", "-"], text=True, check=True, input=lines)
        for name, own, gateway in ((one, first, second), (other, second, first)):
            lines = f"link set lo up\nlink set up0 up\naddr add {own}/24 dev up0\nroute add default via {gateway}\n"
            subprocess.run(["ip", "-n", name, "-batch", "-"], text=True, check=True, input=lines)
        yield
    finally:
        for name in addresses:
            subprocess.run(["ip", "netns", "del", name], check=False)


class Machine:
    """A Debian that runs, in one of the namespaces."""

    def __init__(self, name: str, root: Path) -> None:
        (root / "etc/hostname").write_text(f"{name}\n")
        self.root = root
        command = (
            "systemd-nspawn",
            "--quiet",
            f"--directory={root}",
            f"--machine={name}",
            "--boot",
            "--register=no",
        )
        network = f"--network-namespace-path=/run/netns/{name}"
        self._log = root.with_suffix(".console").open("w")
        self._process = subprocess.Popen(
            [*command, "--keep-unit", network], stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )
        self._leader = ""
        until = time.monotonic() + BOOT_S
        while not self._is_up():
            if time.monotonic() > until or self._process.poll() is not None:
                raise RuntimeError(
                    f"{name} does not start: {root.with_suffix('.console').read_text()[-2000:]}"
                )
            time.sleep(0.2)

    def _is_up(self) -> bool:
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        self._leader = children[0] if children else ""
        if not self._leader:
            return False
        state = self.run("systemctl", "is-system-running", check=False).stdout.strip()
        return state in ("running", "degraded")

    def run(self, *command: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command there, as root."""
        inside = (
            "nsenter",
            "--target",
            self._leader,
            "--all",
            "--",
            *ENVIRONMENT,
            *QUIET,
            *map(str, command),
        )
        done = subprocess.run(inside, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300)
        assert done.returncode == 0 or not check, (
            f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}"
        )
        return done

    def stop(self) -> None:
        # To its systemd, which powers off at this signal (systemd(1)). systemd-nspawn would end, and leave it behind.
        os.kill(int(self._leader), signal.SIGRTMIN + 4)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            os.kill(int(self._leader), signal.SIGKILL)
            self._process.wait()
        self._log.close()
