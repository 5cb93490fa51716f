"""Checkup: what a box says of itself, from what it finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgepart.agent.doctor import checkup as module
from edgepart.agent.doctor.checkup import BAD, GOOD, LEVELS, NOTE, Check, check_box
from edgepart.agent.net.addresses import Interface

G = 1 << 30


@pytest.mark.parametrize(
    ("check", "level", "part"),
    [
        (module.judge_network([Interface("eth0", 2, "10.0.0.2", 24)]), GOOD, "eth0 10.0.0.2"),
        (module.judge_network([Interface("eth0", 2, "10.0.0.2", 24, up=False)]), BAD, "cable"),
        (module.judge_network([Interface("docker0", 2, "172.17.0.1", 16)]), BAD, "no network is up"),
        (module.judge_network([Interface("lo", 1, "127.0.0.1", 8)]), BAD, "no network is up"),
        (module.judge_disk(10 * G, Path("/s")), GOOD, "/s"),
        (module.judge_disk(500 << 20, Path("/s")), NOTE, "--compiled"),
        (module.judge_disk(1 << 20, Path("/s")), BAD, "free some space"),
        (module.judge_clock(1_800_000_000.0, True), GOOD, "2027-01-15"),
        (module.judge_clock(1_800_000_000.0, None), GOOD, "2027-01-15"),
        (module.judge_clock(1_800_000_000.0, False), NOTE, "timedatectl"),
        (module.judge_clock(100.0, None), BAD, "never set"),
        (module.judge_memory(4 * G, 8 * G, None), GOOD, "no --memory-limit"),
        (module.judge_memory(4 * G, 8 * G, 150 << 20), NOTE, "100 MB"),
        (module.judge_memory(100 << 20, 8 * G, None), NOTE, "100 MB"),
        (module.judge_swap(0, 0), GOOD, "none"),
        (module.judge_swap(0, G), GOOD, "0 of"),
        (module.judge_swap(G // 2, G), NOTE, "--memory-limit"),
        (module.judge_threads(4, None), GOOD, "4 of 4"),
        (module.judge_threads(4, 2), GOOD, "2 of 4"),
        (module.judge_threads(4, 8), NOTE, "lower --threads"),
        (module.judge_aes(True), GOOD, "ChaCha20"),
        (module.judge_aes(False), GOOD, "in hardware"),
        (module.judge_ruleset("", 7433), GOOD, "blocks nothing"),
        (
            module.judge_ruleset("type filter hook input priority 0; policy accept;", 7433),
            GOOD,
            "blocks nothing",
        ),
        (module.judge_ruleset("type filter hook input priority 0; policy drop;", 7433), NOTE, "TCP 7433"),
        (module.judge_ruleset("hook input; policy drop;\n tcp dport 7433 accept", 7433), GOOD, "names"),
        (module.judge_ruleset("-P INPUT DROP\n-P FORWARD DROP", 7433), NOTE, "TCP 7433"),
        (module.judge_ruleset("-P INPUT ACCEPT\n-P FORWARD DROP", 7433), GOOD, "blocks nothing"),
    ],
)
def test_judgements(check: Check, level: str, part: str) -> None:
    assert check.level == level and part in f"{check.text} {check.do}"
    assert bool(check.do) is (level != GOOD)


def test_this_box_can_be_looked_at_also_where_no_state_is(tmp_path: Path) -> None:
    found = check_box(tmp_path / "not" / "there", 7433, threads=1, limit_bytes=1 << 30)
    names = [check.name for check in found]
    assert len(names) == len(set(names))
    assert {"network", "disk", "clock", "memory", "swap", "threads", "firewall"} <= set(names)
    assert all(check.level in LEVELS and check.text for check in found)
    assert not (tmp_path / "not").exists()
