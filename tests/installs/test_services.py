"""From a Debian with nothing of edgepart to a cluster that answers, and back: the package for Debian on one machine of each
release, and the wheel in an environment of its own on another one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.installs.machines import ROOT, Machine, cable, doubling, make_root, missing, only

pytestmark = pytest.mark.installs
ADDRESSES = {"ep-first": "10.91.0.1", "ep-second": "10.91.0.2"}
STATE, PROGRAMS = "/var/lib/edgepart", "/opt/edgepart"


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    """Two machines with a cable between them, of the releases that the test names."""
    if reason := missing():
        pytest.skip(reason)
    started: list[Machine] = []
    with cable(ADDRESSES):
        try:
            for name, release in zip(ADDRESSES, request.param, strict=True):
                root = make_root(release, tmp_path / name)
                for made in (*ROOT.glob("dist/*.whl"), *ROOT.glob("dist/*_amd64.deb")):
                    shutil.copy(made, root / "srv")
                doubling(root / "srv/double.onnx")
                np.save(root / "srv/x.npy", np.array([1, 2, 3, 4.5], np.float32))
                started.append(Machine(name, root))
            yield started[0], started[1]
        finally:
            for machine in started:
                machine.stop()


def token_of(text: str) -> str:
    return next(word for word in text.split() if word.startswith("EP1-"))


def left(machine: Machine) -> list[str]:
    """What there is of edgepart on a machine."""
    found = machine.run(
        "find", "/etc", "/var/lib", "/usr/local", "-iname", "*edgepart*", "-not", "-path", "/var/lib/dpkg/*"
    )
    user = machine.run("id", "edgepart", check=False)
    return [*found.stdout.split(), *(["the user"] if user.returncode == 0 else [])]


@pytest.mark.parametrize("pair", [("bookworm", "trixie")], indirect=True)
def test_the_package_on_two_releases_of_debian(pair: tuple[Machine, Machine]) -> None:
    first, second = pair
    for machine in pair:
        (package,) = (machine.root / "srv").glob("*.deb")
        # The machines reach nothing but each other: apt finds all that it needs on them.
        machine.run("apt-get", "install", "--yes", "--no-install-recommends", f"/srv/{package.name}")
    made = first.run("edgepart", "service", "install", "--init").stdout
    token = token_of(made)

    wrong = second.run("edgepart", "service", "install", "--join", f"{token[:-4]}0000", check=False)
    assert wrong.returncode == 1 and "the token's secret is wrong" in wrong.stderr
    assert "this box is as it was" in wrong.stderr
    assert not second.run("find", "/etc", "/var/lib", "-name", "*edgepart*", "-path", "*etc/edgepart*").stdout

    joined = second.run("edgepart", "service", "install", "--join", token)
    assert "Members now: ep-first, ep-second." in joined.stdout
    again = second.run("edgepart", "service", "install", "--join", token)
    assert "Nothing was to be done" in again.stdout
    answers(second)

    # A restart of the machine's agent, and of one that is killed.
    second.run("systemctl", "kill", "--signal=KILL", "edgepart-agent")
    first.run("systemctl", "restart", "edgepart-agent")
    status = second.run("edgepart", "service", "install")
    assert "Members now: ep-first, ep-second." in status.stdout
    answers(first)

    second.run("apt-get", "purge", "--yes", "edgepart")
    assert left(second) == []
    assert not (second.root / "usr/lib/edgepart").exists()
    first.run("apt-get", "remove", "--yes", "edgepart")
    assert (first.root / "var/lib/edgepart/identity/ca.key").exists()
    assert not (first.root / "usr/lib/edgepart").exists()


def answers(machine: Machine) -> None:
    """Deploy a model from a machine, and see that it answers."""
    machine.run("edgepart", "deploy", "/srv/double.onnx", "--name", "double", "--state", STATE)
    given = (
        "edgepart",
        "infer",
        "double",
        "--input",
        "/srv/x.npy",
        "--state",
        STATE,
        "--output",
        "/srv/y.npz",
    )
    machine.run(*given)
    with np.load(machine.root / "srv/y.npz") as outputs:
        assert outputs["y"].tolist() == [2, 4, 6, 9]


@pytest.mark.parametrize("pair", [("bookworm", "bookworm")], indirect=True)
def test_the_wheel_in_an_environment_of_its_own(pair: tuple[Machine, Machine], wheels: Path) -> None:
    first, second = pair
    for machine in pair:
        install_wheel(machine.root, wheels)
    first.run("cp", "-r", PROGRAMS, "/home/edgepart")
    first.run("sed", "-i", f"1s,{PROGRAMS},/home/edgepart,", "/home/edgepart/bin/edgepart")

    refused = first.run("/home/edgepart/bin/edgepart", "service", "install", "--init", check=False)
    assert refused.returncode == 2 and "is in /home, which the service does not see" in refused.stderr
    assert left(first) == []

    token = token_of(
        first.run(f"{PROGRAMS}/bin/edgepart", "service", "install", "--init", "--name", "one").stdout
    )
    joined = second.run(
        f"{PROGRAMS}/bin/edgepart", "service", "install", "--join", token, "--peer", "10.91.0.1:7433"
    )
    assert "Members now: ep-second, one." in joined.stdout
    assert 'peer = ["10.91.0.1:7433"]' in (second.root / "etc/edgepart/agent.toml").read_text()
    answers(second)
    told = second.run("runuser", "-u", "nobody", "--", "edgepart", "service", "status", "--json")
    assert {member["name"] for member in json.loads(told.stdout)["members"]} == {"one", "ep-second"}

    # A setting that is wrong, and one that is right.
    settings = second.root / "etc/edgepart/agent.toml"
    settings.write_text(settings.read_text() + "\nthreds = 1\n")
    failed = second.run("systemctl", "restart", "edgepart-agent", check=False)
    assert failed.returncode != 0
    log = second.run("journalctl", "-u", "edgepart-agent", "-o", "cat").stdout
    assert "there is no option 'threds'; did you mean threads?" in log
    settings.write_text(settings.read_text().replace("threds", "threads"))
    second.run("systemctl", "restart", "edgepart-agent")
    answers(second)

    second.run("edgepart", "service", "uninstall", "--yes")
    assert (second.root / "var/lib/edgepart/identity").is_dir()
    second.run(f"{PROGRAMS}/bin/edgepart", "service", "install")
    second.run("edgepart", "service", "uninstall", "--purge", "--yes")
    assert left(second) == []


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheel and all that it needs on Debian 12."""
    folder = tmp_path_factory.mktemp("wheels")
    pip = (sys.executable, "-m", "pip", "--quiet", "download", "--only-binary=:all:", "--python-version=3.11")
    subprocess.run([*pip, "--dest", str(folder), str(only("*.whl"))], check=True)
    return folder


def install_wheel(root: Path, wheels: Path) -> None:
    """Install the wheel as a person does, but from a folder: these machines reach no index."""
    shutil.copytree(wheels, root / "srv/wheels")
    pip = f"{PROGRAMS}/bin/pip install --quiet --no-index --find-links /srv/wheels edgepart"
    subprocess.run(["chroot", str(root), "sh", "-c", f"python3 -m venv {PROGRAMS} && {pip}"], check=True)
