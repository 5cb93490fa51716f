"""Rates as lines for the kernel. The lines are tried on a plain port here, and on a real one in test_lab."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.lab.shaping import CUT, Bucket, bucket, egress, hardware_address, port_changes

RATES = st.floats(1000, 1.25e9)
PORTS = st.dictionaries(st.integers(1, 201), RATES | st.just(CUT), max_size=5)


@given(RATES, RATES)
def test_a_bucket_takes_its_packets_and_a_faster_one_more(one: float, other: float) -> None:
    slow, fast = bucket(min(one, other)), bucket(max(one, other))
    for made in (slow, fast):
        headers = 66 * -(-made.packet // 1448)
        assert made.packet + headers <= made.burst <= made.queue
        assert made.burst / made.rate < 0.0002 or made.packet == bucket(1000).packet
    assert (slow.packet, slow.burst, slow.queue) <= (fast.packet, fast.burst, fast.queue)


def test_a_gigabit_and_twenty_megabits() -> None:
    assert bucket(125e6) == Bucket(125e6, packet=14_000, burst=17_750, queue=4 << 20)
    assert bucket(2.5e6) == Bucket(2.5e6, packet=3000, burst=3260, queue=1 << 17)
    assert egress("eth0", 2.5e6).endswith("tbf rate 20000000bit burst 3260 limit 131072")
    assert "pfifo" in egress("eth0", None)


class Port:
    """A port as a plain reading of the lines gives it."""

    def __init__(self) -> None:
        self.classes: dict[str, str] = {}
        self.leaves: dict[str, str] = {}
        self.filters: dict[int, str] = {}
        self.handles: dict[str, str] = {}

    def obey(self, line: str) -> None:
        words = line.split()
        assert words[2:4] == ["dev", "p7"]
        after = dict(pairwise(words))
        match words[:2]:
            case ["class", "replace"]:
                self.classes[after["classid"]] = after["rate"]
            case ["class", "del"]:
                assert after["classid"] not in self.filters.values(), "a class that a filter leads to stays"
                del self.classes[after["classid"]]
                del self.leaves[after["classid"]]
            case ["qdisc", "replace"]:
                kind = words[words.index("handle") + 2]
                assert self.handles.setdefault(after["handle"], kind) == kind, "a handle keeps its kind"
                self.leaves[after["parent"]] = kind
            case ["filter", "add"]:
                assert after["flowid"] in self.classes
                self.filters[int(after["prio"])] = after["flowid"]
            case ["filter", "del"]:
                del self.filters[int(after["prio"])]
            case _:
                raise AssertionError(line)


@given(st.lists(PORTS, max_size=5))
def test_a_port_comes_to_what_is_wanted_whatever_it_was(wanted: list[dict[int, float]]) -> None:
    port, now = Port(), dict[int, float]()
    for then in wanted:
        lines = list(port_changes("p7", now, then))
        untouched = {number for number in now if then.get(number) == now[number]}
        assert not [line for number in untouched for line in lines if f"1:{number:x} " in f"{line} "]
        for line in lines:
            port.obey(line)
        now = then
        assert port.classes == {f"1:{n:x}": f"{max(rate * 8, 8000):.0f}bit" for n, rate in then.items()}
        assert port.leaves == {
            f"1:{n:x}": "blackhole" if rate == CUT else "bfifo" for n, rate in then.items()
        }
        assert sorted(port.filters.values()) == sorted(port.classes)


@given(st.integers(1, 65535), st.integers(1, 65535))
def test_hardware_addresses_differ(one: int, other: int) -> None:
    assert (hardware_address(one) == hardware_address(other)) == (one == other)
