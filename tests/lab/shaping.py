"""Rates as lines for `tc` and `ip`. Does no I/O.

A host's own egress is a token bucket (tbf). On the switch's port to a host, traffic from a slowed or cut
station has a class of its own (htb), selected by the sender's hardware address, so that multicasts are slowed
and cut too. Other traffic passes freely. So does ARP: without it, a station that can still send would soon
not know the receiver's address, and no link would stay cut only one way for long.

The kernel hands a queue up to 64 kB as one packet. A bucket that accepts such packets lets 64 kB pass at once
after a pause, which no cable does; a bucket that does not has to cut them up, which takes half of a core at 1
gbit. So packets are made as large as what the rate sends in about 0.1 ms, and the bucket a little larger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

CUT = 0.0
"""Rate, in bytes per second, of a link that carries nothing."""

PACKET_S = 112e-6
"""Seconds in which the rate sends one packet: a bucket lets a packet pass at once after a pause."""
LATE_S = 24e-6
"""Largest delay of the kernel's timer that costs the link no time."""
SMALLEST_PACKET, LARGEST_PACKET = 3000, 60_000
QUEUE_S = 0.05
SMALLEST_QUEUE, LARGEST_QUEUE = 1 << 17, 4 << 20
ARP = 1
"""Priority of the ARP filter, which is asked first; the filters for senders follow."""
QUANTUM = 3000
"""Bytes that a class may send before the next one has its turn. It is given so that the kernel does not warn."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A token bucket for one rate; sizes in bytes."""

    rate: float
    """Bytes per second."""
    packet: int
    """Largest packet that the sender hands over, with the headers of its first segment."""
    burst: int
    queue: int
    """Maximum number of bytes that wait before packets are dropped."""


def bucket(rate: float) -> Bucket:
    """Return the bucket for a rate in bytes per second."""
    packet = round(min(max(rate * PACKET_S, SMALLEST_PACKET), LARGEST_PACKET))
    # A packet is counted with the headers of all its segments, 66 bytes for each 1448.
    burst = round(packet * 1.05 + rate * LATE_S + 50)
    queue = round(min(max(rate * QUEUE_S, SMALLEST_QUEUE), LARGEST_QUEUE))
    return Bucket(rate, packet, burst, queue)


def egress(device: str, rate: float | None) -> str:
    """Return the `tc` line that makes a host send at `rate`, or freely. It replaces the old line without
    losing packets."""
    if rate is None:
        return f"qdisc replace dev {device} root pfifo limit 1000"
    one = bucket(rate)
    return f"qdisc replace dev {device} root handle 1: tbf rate {rate * 8:.0f}bit burst {one.burst} limit {one.queue}"


def largest_packet(device: str, slowest: float | None) -> str:
    """Return the `ip` line that makes a station hand over packets that suit the slowest of its links."""
    size = 65536 if slowest is None else bucket(slowest).packet
    return f"link set dev {device} gso_max_size {size}"


def hardware_address(number: int) -> str:
    """Return the hardware address of the station with this number in its lab.

    >>> hardware_address(258)
    '02:ed:9e:00:01:02'
    """
    return f"02:ed:9e:00:{number >> 8:02x}:{number & 255:02x}"


def port_opened(port: str) -> list[str]:
    """Return the `tc` lines that let senders have classes on this port."""
    return [
        f"qdisc add dev {port} root handle 1: htb",
        f"filter add dev {port} parent 1: protocol arp prio {ARP} u32 match u32 0 0 flowid 1:0",
    ]


def port_changes(port: str, now: Mapping[int, float], wanted: Mapping[int, float]) -> Iterator[str]:
    """Yield the `tc` lines from the port's bounds `now` to `wanted`: bytes per second, or CUT, by the sender's number.

    A sender without a bound passes freely. Other senders are not disturbed, and no bounded one is let through
    in between.
    """
    for number in sorted(now.keys() | wanted.keys()):
        if number not in wanted:
            yield f"filter del dev {port} parent 1: protocol all prio {ARP + number}"
            yield f"class del dev {port} classid 1:{number:x}"
        elif now.get(number) != wanted[number]:
            yield from _class(port, number, wanted[number])
            if number not in now:
                yield _filter(port, number)


def _class(port: str, number: int, rate: float) -> Iterator[str]:
    one = bucket(rate)
    # A class needs some rate; the queue of a cut one discards everything.
    bits = max(rate * 8, 8000)
    yield (
        f"class replace dev {port} parent 1: classid 1:{number:x} htb rate {bits:.0f}bit burst {one.burst} "
        f"cburst {one.burst} quantum {QUANTUM}"
    )
    # The kernel would refuse a queue of another kind under the same handle.
    if rate == CUT:
        yield f"qdisc replace dev {port} parent 1:{number:x} handle {0x2000 + number:x}: blackhole"
    else:
        yield f"qdisc replace dev {port} parent 1:{number:x} handle {0x1000 + number:x}: bfifo limit {one.queue}"


def _filter(port: str, number: int) -> str:
    address = hardware_address(number).replace(":", "")
    return (
        f"filter add dev {port} parent 1: protocol all prio {ARP + number} u32 match u32 0x{address[:8]} 0xffffffff at -8 "
        f"match u16 0x{address[8:]} 0xffff at -4 flowid 1:{number:x}"
    )
