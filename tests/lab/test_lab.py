"""Real labs: traffic between hosts, processes, memory, disks, and what owners leave behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab import claims, residents, system
from tests.lab.cgroups import Groups
from tests.lab.hosts import OUTSIDE, Host, LabError, parse_rate
from tests.lab.lab import Lab
from tests.lab.system import NAMESPACES

pytestmark = pytest.mark.processes

PORT = 5000
LISTEN = f"""
import socket
heard = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
heard.bind(("0.0.0.0", {PORT}))
print("listening", flush=True)
while True:
    print(heard.recv(100).decode(), flush=True)
"""
SAY = """
import socket, sys
where, text, times = sys.argv[1:]
for _ in range(int(times)):
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(text.encode(), (where, 5000))
"""
SINK = f"""
import socket
with socket.create_server(("0.0.0.0", {PORT})) as server:
    print("listening", flush=True)
    while True:
        with server.accept()[0] as connection:
            while connection.recv(1 << 16):
                pass
"""
SEND = """
import socket, sys, time
began = time.monotonic()
with socket.create_connection((sys.argv[1], 5000)) as connection:
    connection.sendall(bytes(int(sys.argv[2])))
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)  # the other end has read all of it
print(time.monotonic() - began)
"""
SENT_BYTES = 100_000
SLEEP = "import subprocess, sys, time; subprocess.Popen(['sleep', '600']); time.sleep(600)"
OWNER = """
import sys, time
from tests.lab.hosts import Host
from tests.lab.lab import Lab
with Lab([Host("pi-a", memory="64M", disk="1M")]) as lab:
    lab.start("pi-a", "sleep", "600")
    print(lab.name, lab.folder, flush=True)
    time.sleep(600)
"""


def until(done: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 120
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Ear:
    """Receives datagrams on a host."""

    def __init__(self, lab: Lab, host: str) -> None:
        self.lab, self.host = lab, host
        self.process = lab.start(host, sys.executable, "-c", LISTEN, stdout=subprocess.PIPE, text=True)
        assert self.line() == "listening"

    def line(self) -> str:
        assert self.process.stdout is not None
        return str(self.process.stdout.readline().strip())

    def say(self, sender: str, text: str, times: int = 1) -> None:
        command = (sys.executable, "-c", SAY, self.lab.address(self.host), text, str(times))
        if sender == OUTSIDE:
            subprocess.run(command, check=True)
        else:
            self.lab.run(sender, *command).check_returncode()

    def hears(self, sender: str) -> bool:
        """Whether a datagram of the sender arrives. The one sent after the lab is healed comes after it, if
        it comes at all."""
        links = self.lab._net.links
        self.say(sender, "before")
        self.lab.heal()
        self.say(sender, "after")
        heard = self.line() == "before"
        if heard:
            assert self.line() == "after"
        self.lab._net.change(links)
        return heard


def test_hosts_hear_each_other_and_outside(pair: Lab) -> None:
    ear = Ear(pair, "pi-b")
    assert ear.hears("pi-a") and ear.hears(OUTSIDE)


def test_cut_one_way_both_ways_and_healed(pair: Lab) -> None:
    pair.add(Host("pi-c"))
    ears = {name: Ear(pair, name) for name in pair.hosts}
    pair.cut("pi-a", "pi-b", one_way=True)
    assert not ears["pi-b"].hears("pi-a")
    assert ears["pi-a"].hears("pi-b") and ears["pi-c"].hears("pi-a")
    pair.cut("pi-a", "pi-b")
    assert not ears["pi-a"].hears("pi-b")
    pair.heal("pi-b", "pi-a")
    assert ears["pi-a"].hears("pi-b") and ears["pi-b"].hears("pi-a")
    pair.cut("pi-a")
    assert not (ears["pi-a"].hears("pi-b") or ears["pi-a"].hears(OUTSIDE) or ears["pi-c"].hears("pi-a"))
    assert ears["pi-c"].hears("pi-b")
    pair.heal("pi-a")
    assert ears["pi-a"].hears(OUTSIDE) and ears["pi-c"].hears("pi-a")


def test_a_link_that_is_slowed_is_cut_and_slow_again(pair: Lab) -> None:
    ear = Ear(pair, "pi-b")
    pair.slow("pi-a", "pi-b", rate="10mbit")
    assert ear.hears("pi-a")
    pair.cut("pi-a")
    assert not ear.hears("pi-a")
    pair.slow("pi-a", rate="1mbit")
    assert ear.hears("pi-a")


@pytest.mark.parametrize("sender", ["pi-a", OUTSIDE])
def test_rates_of_hosts_and_links_hold(pair: Lab, sender: str) -> None:
    sink = pair.start("pi-b", sys.executable, "-c", SINK, stdout=subprocess.PIPE, text=True)
    assert sink.stdout is not None and sink.stdout.readline()
    bound = "pi-a" if sender == "pi-a" else "pi-b"
    pair.set_rate(bound, "2mbit")
    slow_s = seconds(pair, sender)
    pair.set_rate(bound, "32mbit")
    fast_s = min(seconds(pair, sender) for _ in range(5))  # other load may slow some of them down
    pair.slow(sender, "pi-b", rate="2mbit", one_way=True)
    slowed_s = seconds(pair, sender)
    # The rate is sixteen times as high, and other load can only make transfers slower than their rate.
    assert min(slow_s, slowed_s) > 0.8 * SENT_BYTES / parse_rate("2mbit")
    assert fast_s < min(slow_s, slowed_s) / 3


def seconds(lab: Lab, sender: str) -> float:
    """Return the seconds in which SENT_BYTES arrive at pi-b."""
    command = (sys.executable, "-c", SEND, lab.address("pi-b"), str(SENT_BYTES))
    if sender == OUTSIDE:
        return float(subprocess.run(command, check=True, capture_output=True).stdout)
    return float(lab.run(sender, *command).stdout)


def test_what_a_host_sends_is_counted(pair: Lab) -> None:
    ear, before = Ear(pair, "pi-b"), pair.traffic()
    ear.say("pi-a", "x" * 90, times=100)
    for _ in range(100):
        ear.line()
    after = pair.traffic()
    assert after["pi-a"].sent_bytes - before["pi-a"].sent_bytes >= 100 * (90 + 42)
    assert after["pi-b"].received_bytes - before["pi-b"].received_bytes >= 100 * (90 + 42)
    assert after[OUTSIDE].received_bytes - before[OUTSIDE].received_bytes < 9000


def test_freeze_thaw_and_kill_take_all_processes_of_one_host(pair: Lab) -> None:
    process = pair.start("pi-a", sys.executable, "-c", SLEEP)
    ear = Ear(pair, "pi-b")
    until(lambda: len(pair.processes("pi-a")) == 2)
    pair.freeze("pi-a")
    # One that waits for a disk stops when it has what it waits for.
    until(lambda: {residents.state(Path(f"/proc/{pid}")) for pid in pair.processes("pi-a")} == {"T"})
    assert ear.hears(OUTSIDE)
    pair.thaw("pi-a")
    until(lambda: not {residents.state(Path(f"/proc/{pid}")) for pid in pair.processes("pi-a")} & {"T"})
    pair.freeze("pi-a")
    pair.kill("pi-a")
    assert pair.processes("pi-a") == [] and process.wait() == -signal.SIGKILL
    assert ear.hears(OUTSIDE)


def test_more_memory_than_there_is_ends_the_process(possible: None) -> None:
    with Lab([Host("pi-a", memory="48M"), Host("pi-b", memory="512M")]) as lab:
        takes = (sys.executable, "-c", "print(len(bytearray(200 << 20)))")
        assert lab.run("pi-a", *takes).returncode == -signal.SIGKILL
        assert lab.run("pi-b", *takes).stdout == f"{200 << 20}\n"
        assert lab.run("pi-a", sys.executable, "-c", "print('again')").stdout == "again\n"


def test_a_full_disk_is_the_hosts_own(possible: None) -> None:
    with Lab([Host("pi-a", disk="1M"), Host("pi-b")]) as lab:
        with pytest.raises(OSError, match="No space left"):
            (lab.folder / "pi-a" / "file").write_bytes(bytes(2 << 20))
        (lab.folder / "pi-b" / "file").write_bytes(bytes(2 << 20))
        folder = lab.folder
    assert not folder.exists()


def test_starving_takes_processes_in_that_run_already(pair: Lab) -> None:
    pair.start("pi-a", "sleep", "600")
    pair.starve("pi-a", 0.25)
    late = pair.start("pi-a", "sleep", "600")
    until(lambda: len(pair.processes("pi-a")) == 2)
    for pid in (*pair.processes("pi-a"), late.pid):
        assert f"/{pair.name}/pi-a" in Path(f"/proc/{pid}/cgroup").read_text()


def test_pace_changes_while_processes_run(possible: None) -> None:
    with Lab([Host("pi-a", slow=8), Host("pi-b")]) as lab:
        source = lab.environment("pi-a")["EDGEPART_LAB_SLOW"]
        assert source.startswith("@") and Path(source[1:]).read_text() == "8.0"
        lab.pace("pi-a", 2.5)
        assert Path(source[1:]).read_text() == "2.5"
        assert lab.environment("pi-b") == {}
        with pytest.raises(LabError, match="slow=1"):
            lab.pace("pi-b", 2)


def test_a_folder_of_ones_own_stays(possible: None, tmp_path: Path) -> None:
    with Lab([Host("pi-a", disk="1M"), Host("pi-b")], folder=tmp_path) as lab:
        (lab.folder / "pi-b" / "kept").touch()
    assert (tmp_path / "pi-b" / "kept").exists()
    assert not os.path.ismount(tmp_path / "pi-a")


def test_nothing_is_left_of_a_lab_and_of_one_that_could_not_be(possible: None) -> None:
    with Lab([Host("pi-a", memory="64M")]) as lab:
        lab.start("pi-a", "sleep", "600")
        name = lab.name
        with pytest.raises(LabError, match="already"):
            lab.add(Host("pi-a"))
        with pytest.raises(LabError, match="there is no host"):
            lab.cut("pi-a", "nobody")
        with pytest.raises(LabError, match="no link to itself"):
            lab.cut("pi-a", "pi-a")
    with pytest.raises(LabError, match="already"):
        Lab([Host("pi-b"), Host("pi-b")]).__enter__()
    with pytest.raises(LabError, match="outside its `with`"):
        lab.cut("pi-a")
    assert not left_of(name)
    assert not [one for one in claims.claims() if one.pid == os.getpid()]


def left_of(name: str) -> list[Path]:
    groups = [group for group in Groups(name).of("") if group.exists()]
    return [*NAMESPACES.glob(f"{name}-*"), *Path("/sys/class/net").glob(name), *groups]


def test_what_a_killed_owner_left_is_removed(possible: None) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, env=importing()
    )
    assert owner.stdout is not None
    name, folder = owner.stdout.readline().split()
    left = residents.processes(f"{name}-pi-a")
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert left_of(name) and left and Path(folder).exists()
    cleaned = subprocess.run(
        [sys.executable, "-m", "tests.lab", "--clean"],
        capture_output=True,
        text=True,
        check=True,
        env=importing(),
    )
    assert name in cleaned.stdout or "nothing" in cleaned.stdout  # another test's lab may be first
    assert not left_of(name) and not Path(folder).exists()
    assert not [pid for pid in left if claims.started(pid) is not None]


def importing() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def test_a_lab_of_a_living_owner_is_not_removed(pair: Lab) -> None:
    assert pair.name not in claims.clean()
    assert pair.run("pi-a", "true").returncode == 0


def test_without_root_or_commands_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = system.missing.__wrapped__
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "needs root" in str(found())
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert "apt-get install iproute2" in str(found())


def test_a_subnet_that_this_machine_uses_is_left_alone(pair: Lab) -> None:
    with Lab([Host("pi-a")]) as other, socket.socket() as probe:
        assert other.address("pi-a") != pair.address("pi-a")
        probe.bind((other.address(OUTSIDE), 0))
