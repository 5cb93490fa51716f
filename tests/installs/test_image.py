"""The image, made without an engine for containers: a Debian of the release that the Containerfile names, in which its
lines are carried out. Two agents of it form a cluster, as a user without rights, on a root that is read-only."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.installs.machines import ROOT, doubling, make_root, missing

pytestmark = pytest.mark.installs
CONTAINERFILE = ROOT / "installers/containers/Containerfile"
STATE = "/var/lib/edgepart"


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Containerfile, such as ("USER", "edgepart")."""
    text = re.sub(r"^#.*\n", "", CONTAINERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [
        (line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()
    ]


def build(folder: Path) -> tuple[Path, dict[str, str], str, list[str]]:
    """Carry out the Containerfile; return the root, the environment, the user and the entry point."""
    root, environment, user, entry = folder / "root", {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, "root", [""]
    for word, rest in instructions():
        if word == "FROM":
            release = re.fullmatch(r"docker\.io/library/debian:(\w+)-slim", rest)
            assert release is not None
            make_root(release[1], root)
        elif word == "RUN":
            mount = re.match(r"--mount=type=bind,source=(\S+),target=(\S+) ", rest)
            if mount is not None:
                shutil.copytree(
                    ROOT / mount[1], root / mount[2][1:], ignore=shutil.ignore_patterns("*.whl", "*.tar.gz")
                )
                rest = rest[mount.end() :]
            # There is no network in here; all that the package needs is there.
            rest = rest.replace("apt-get update", "true")
            command = ("chroot", str(root), "env", "DEBIAN_FRONTEND=noninteractive", "sh", "-ec", rest)
            subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
            if mount is not None:
                shutil.rmtree(root / mount[2][1:])
        elif word == "COPY":
            source, target = rest.split()
            shutil.copy(ROOT / source, root / target[1:])
        elif word == "ENV":
            environment |= dict(each.split("=", 1) for each in rest.split())
        elif word == "USER":
            user = rest
        elif word == "ENTRYPOINT":
            entry = json.loads(rest)
        else:
            assert word in ("VOLUME", "STOPSIGNAL"), f"this test does not know {word}"
    return root, environment, user, entry


class Container:
    """An image that runs: a root of which only the state and the token's folder can be written to."""

    def __init__(
        self, name: str, image: tuple[Path, dict[str, str], str, list[str]], folder: Path, **more: str
    ) -> None:
        root, environment, user, entry = image
        self.state = folder / name
        self.state.mkdir()
        shutil.chown(self.state, 7433, 7433)
        view = folder / f"{name}-root"
        view.mkdir()
        mounts = (
            f"mount --bind {root} {view} && mount -o remount,bind,ro {view} && mount --bind {self.state} {view}{STATE}",
            f"mount --bind {folder}/token {view}/token && mount --rbind /dev {view}/dev && mount -t proc proc {view}/proc",
            f'exec chroot --userspec={user}:{user} {view} "$@"',
        )
        script = " && ".join(mounts)
        self.environment = environment | more
        self._inside = ("unshare", "--mount", "--pid", "--fork", "sh", "-ec", script, "sh")
        self.log = folder / f"{name}.log"
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [*self._inside, *entry],
                env=self.environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def run(self, *command: str) -> str:
        done = subprocess.run(
            [*self._inside, *command], env=self.environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr + self.log.read_text()[-1500:]
        return done.stdout

    def wait(self) -> None:
        while not (self.state / "agent.json").exists():
            assert self._process.poll() is None, self.log.read_text()

    def stop(self) -> None:
        # The first process of a namespace takes all others with it. It is unshare's child, so it is looked up first.
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        for process in children.read_text().split() if children.exists() else []:
            os.kill(int(process), signal.SIGKILL)
        self._process.kill()
        self._process.wait()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Container, Container]]:
    if reason := missing():
        pytest.skip(reason)
    image = build(tmp_path)
    (tmp_path / "token").mkdir()
    shutil.chown(tmp_path / "token", 7433, 7433)
    first = Container(
        "first", image, tmp_path, EDGEPART_INIT="1", EDGEPART_TOKEN_FILE="/token/token",
        EDGEPART_LISTEN="127.0.0.1:17433", EDGEPART_HTTP="127.0.0.1:18433", EDGEPART_NAME="first", EDGEPART_MDNS="false",
    )  # fmt: skip
    second = Container(
        "second", image, tmp_path, EDGEPART_TOKEN_FILE="/token/token", EDGEPART_PEER="127.0.0.1:17433",
        EDGEPART_LISTEN="127.0.0.1:17434", EDGEPART_HTTP="127.0.0.1:18434", EDGEPART_NAME="second", EDGEPART_MDNS="false",
    )  # fmt: skip
    try:
        yield first, second
    finally:
        second.stop()
        first.stop()


def test_two_containers_form_a_cluster_and_answer(two: tuple[Container, Container]) -> None:
    first, second = two
    first.wait()
    second.wait()
    doubling(second.state / "double.onnx")
    np.save(second.state / "x.npy", np.array([1, 2, 3, 4.5], np.float32))
    second.run("edgepart", "deploy", f"{STATE}/double.onnx", "--name", "double")
    answer = second.run("edgepart", "infer", "double", "--input", f"{STATE}/x.npy")
    assert "2, 4, 6, 9" in answer
    members = json.loads(first.run("edgepart", "status", "--json"))["members"]
    assert {member["name"] for member in members} == {"first", "second"}
    assert first.run("id", "--user").strip() == "7433"
    tried = first.run("sh", "-c", "touch /usr/x /etc/x /x 2>&1 || true")
    assert tried.count("Read-only file system") == 3
