"""A catalogue of boards that people may buy, with figures that were measured and published. Facts.

A plan for existing devices uses the speeds that they measured themselves. The catalogue is for devices that
the cluster does not have yet. It covers processors only, because agents compute on processors. The figures
follow the same rules for all boards:

- **FLOP/s** of convolutions in float32 are twice what High-Performance Linpack reaches in float64 (SIMD lanes
  hold twice as many float32 numbers). If no Linpack figure is published, the figure is the peak by the data
  sheet (cores, clock, FLOPs per cycle) times the part of its peak that Linpack reaches on the board of this
  list with the most similar processor.
- **Bytes/s** of memory-bound operators are twice what one core copies with memcpy, because a copy reads and writes.
- **Memory** for plans is three quarters of the built-in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from edgepart.planner.devices.cluster import Device

PLAN_MEMORY_SHARE = 0.75
"""The part of the built-in memory that plans may use. The rest is for the system, and for memory that plans
do not count."""

TOP500 = "https://github.com/geerlingguy/top500-benchmark"
REVIEWS = "https://github.com/geerlingguy/sbc-reviews"
BENCH = "https://github.com/ThomasKaiser/sbc-bench"


@dataclass(frozen=True)
class BoardKind:
    """A kind of device in the catalogue."""

    name: str
    box: str
    """A description of the measured board."""
    flops_per_s: float
    """FLOP/s of convolutions in float32."""
    flops_source: str
    memory_bytes_per_s: float
    memory_source: str
    memory_bytes: float
    """The built-in memory of the measured board."""
    threads: int

    def device(self, name: str, memory_bytes: float | None = None) -> Device:
        """A device of this kind; `memory_bytes` is its built-in memory if that differs."""
        kept = PLAN_MEMORY_SHARE * (memory_bytes or self.memory_bytes)
        return Device(name, self.name, self.flops_per_s, self.memory_bytes_per_s, kept, self.threads)

    @property
    def source(self) -> str:
        """A text for people that says where the figures come from."""
        return f"{self.box}: {self.flops_source}; {self.memory_source}"


def _linpack(gflops: float) -> float:
    """The FLOP/s in float32: twice what Linpack reaches in float64."""
    return 2 * gflops * 1e9


def _copy(mbytes_per_s: float) -> float:
    """The bytes read and written per second: twice what memcpy copies."""
    return 2 * mbytes_per_s * 1e6


_A72_SHARE = 11.889 / (4 * 1.8 * 4)
"""The part of its peak (4 FLOPs per cycle in float64) that Linpack reaches on the Raspberry Pi 4's Cortex-A72."""
_A76_SHARE = 30.249 / (4 * 2.4 * 8)
"""The part of its peak (8 FLOPs per cycle in float64) that Linpack reaches on the Raspberry Pi 5's Cortex-A76."""

_ALL = (
    BoardKind(
        "pi4",
        "Raspberry Pi 4, 4 x Cortex-A72 at 1.8 GHz",
        _linpack(11.889),
        f"Linpack 11.889 Gflop/s ({TOP500}/issues/13)",
        _copy(2580),
        f"memcpy 2580 MB/s ({BENCH}/blob/master/Results.md, Raspberry Pi 4 B, Jammy arm64)",
        4e9,
        4,
    ),
    BoardKind(
        "pi5",
        "Raspberry Pi 5, 4 x Cortex-A76 at 2.4 GHz",
        _linpack(30.249),
        f"Linpack 30.249 Gflop/s ({TOP500}/issues/18)",
        _copy(4447.8),
        f"memcpy 4447.8 MB/s ({BENCH}/blob/master/results/reviews/RPi-5B-Rev1.0.md)",
        8e9,
        4,
    ),
    BoardKind(
        "rk3588",
        "Turing RK1, RK3588 with 4 x Cortex-A76 and 4 x Cortex-A55",
        _linpack(59.810),
        f"Linpack 59.810 Gflop/s ({TOP500}/issues/22)",
        _copy(12374),
        f"C copy 12374 MB/s ({REVIEWS}/issues/38)",
        32e9,
        8,
    ),
    BoardKind(
        "jetson-nano",
        "Jetson Nano's processor, 4 x Cortex-A57 at 1.43 GHz",
        _A72_SHARE * 4 * 1.43e9 * 8,
        "peak 45.8 Gflop/s in float32 (4 cores at 1.43 GHz as in the next source, 8 FLOPs a "
        "cycle by Arm's optimisation guide for the Cortex-A57) times 41 % as on the Cortex-A72",
        _copy(3680),
        f"memcpy 3680 MB/s ({BENCH}/blob/master/Results.md, Jetson Nano, 1430 MHz)",
        4e9,
        4,
    ),
    BoardKind(
        "jetson-orin-nano",
        "Jetson Orin Nano's processor, 6 x Cortex-A78AE at 1.5 GHz",
        _A76_SHARE * 6 * 1.5e9 * 16,
        "peak 144 Gflop/s in float32 (6 cores at 1.5 GHz as in the next source, 16 FLOPs a "
        "cycle by Arm's optimisation guide for the Cortex-A78) times 39 % as on the Cortex-A76",
        _copy(6730),
        f"memcpy 6730 MB/s ({BENCH}/issues/65)",
        8e9,
        6,
    ),
    BoardKind(
        "n100",
        "Radxa X4, Intel N100 with a small cooler",
        _linpack(37.224),
        f"Linpack 37.224 Gflop/s ({TOP500}/issues/38)",
        _copy(8144.4),
        f"memcpy 8144.4 MB/s ({BENCH}/blob/master/results/reviews/Radxa-X4.md)",
        8e9,
        4,
    ),
    BoardKind(
        "n150",
        "GMKtec NucBox G3 Plus, a mini PC with an Intel N150",
        _linpack(48.264),
        f"Linpack 48.264 Gflop/s ({TOP500}/issues/52)",
        _copy(6252.0),
        f"C copy 6252 MB/s ({REVIEWS}/issues/64)",
        12e9,
        4,
    ),
    BoardKind(
        "laptop",
        "Framework Laptop 12, Intel i3-1315U, on 6 cores",
        _linpack(64.555),
        f"Linpack 64.555 Gflop/s ({TOP500}/issues/97)",
        _copy(9196.8),
        f"C copy 9196.8 MB/s ({REVIEWS}/issues/107)",
        8e9,
        6,
    ),
)

KINDS: Mapping[str, BoardKind] = MappingProxyType({kind.name: kind for kind in _ALL})
"""The kinds of devices by name."""
