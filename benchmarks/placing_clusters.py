"""The two settings of Moirai's table III: four GPUs in servers of their own, and four in one server; and one of ours.

Memory and bandwidths are as printed: Gbit/s from the row's device to the column's. Speeds are not printed.
They come from the makers' data sheets, in single precision, because that is the precision that all of the
devices have (a P4 computes half precision 64 times slower, a T4 with tensor cores 8 times faster). Weights
and tensors are in half precision, because otherwise the largest models would not fit the four devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from edgepart.planner.placing.problem.workload import Machine


@dataclass(frozen=True)
class Gpu:
    """The figures of a device's data sheet."""

    flops_per_s: float
    """Peak in single precision."""
    memory_bytes_per_s: float
    memory_gib: float
    """As in table III."""


GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        # NVIDIA Turing GPU architecture whitepaper (WP-09183-001), table 1: reference board, 13.4 TFLOPS, 616 GB/s.
        "RTX 2080 Ti": Gpu(13.4e12, 616e9, 11),
        # NVIDIA T4 data sheet (2019): 8.1 TFLOPS, 320 GB/s.
        "T4": Gpu(8.1e12, 320e9, 16),
        # NVIDIA Tesla P4 data sheet (2016): 5.5 TFLOPS, 192 GB/s.
        "P4": Gpu(5.5e12, 192e9, 8),
        # NVIDIA Ampere GA102 whitepaper, table of GA104 boards: 16.2 TFLOPS, 448 GB/s.
        "RTX 3060 Ti": Gpu(16.2e12, 448e9, 8),
        # NVIDIA Tesla V100 data sheet (2018), SXM2 (NVLink): 15.7 TFLOPS, 900 GB/s.
        "V100": Gpu(15.7e12, 900e9, 32),
        # NVIDIA Tesla P100 data sheet (2016), for NVLink servers: 10.6 TFLOPS, 732 GB/s.
        "P100": Gpu(10.6e12, 732e9, 16),
    }
)

EFFECTIVE = 0.6
"""Share of a data sheet's FLOP/s and bytes per second that an operator gets; the same for all devices."""

LAUNCH_S = 5e-6
"""Time to start an operator; the same for all devices. Assumed, as are the next two: the paper prints none of
them."""

LATENCY_S = 1e-5
"""Time until the first byte of a transfer arrives."""

KEPT = 0.9
"""Share of a device's memory for weights; the rest is for the runtime and for tensors in transit."""


@dataclass(frozen=True)
class Setting:
    """Devices and the links between them."""

    name: str
    gpus: tuple[str, ...]
    gbit_per_s: tuple[tuple[float, ...], ...]
    """Indexed [from][to]; inf on the diagonal."""

    @property
    def machines(self) -> tuple[Machine, ...]:
        return tuple(
            Machine(f"{'ABCDEFGH'[n]}", gpu, KEPT * GPUS[gpu].memory_gib * 2**30)
            for n, gpu in enumerate(self.gpus)
        )

    @property
    def bytes_per_s(self) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(rate * 1e9 / 8 for rate in row) for row in self.gbit_per_s)

    @property
    def latency_s(self) -> tuple[tuple[float, ...], ...]:
        count = range(len(self.gpus))
        return tuple(tuple(0.0 if a == b else LATENCY_S for b in count) for a in count)


INF = float("inf")

_PAPER: Mapping[str, Setting] = MappingProxyType(
    {
        one.name: one
        for one in (
            Setting(
                "inter-server",
                ("RTX 2080 Ti", "T4", "P4", "RTX 3060 Ti"),
                (
                    (INF, 44.26, 32.92, 44.28),
                    (42.39, INF, 35.32, 44.51),
                    (33.2, 35.31, INF, 32.95),
                    (42.08, 43.22, 33.28, INF),
                ),
            ),
            Setting(
                "intra-server",
                ("V100", "V100", "P100", "P100"),
                (
                    (INF, 1170.04, 626.10, 610.56),
                    (1148.16, INF, 618.98, 581.09),
                    (630.43, 609.82, INF, 571.96),
                    (622.67, 575.08, 581.35, INF),
                ),
            ),
        )
    }
)


def _two_classes() -> Setting:
    """A V100 and seven P4s in servers of their own, each link as fast as the slowest of the first setting."""
    gpus = ("V100", *("P4",) * 7)
    slowest = min(min(row) for row in _PAPER["inter-server"].gbit_per_s)
    count = range(len(gpus))
    return Setting(
        "two classes", gpus, tuple(tuple(INF if a == b else slowest for b in count) for a in count)
    )


SETTINGS: Mapping[str, Setting] = MappingProxyType({**_PAPER, "two classes": _two_classes()})
"""The paper's two settings; and ours, whose devices have speeds of two classes by GETF's rule. Four devices never have more
than one."""


def setting(name: str) -> Setting:
    """Return one of `SETTINGS`, or two of one ("two NAME"), which have twice the devices."""
    return SETTINGS[name] if name in SETTINGS else doubled(SETTINGS[name.removeprefix("two ")])


def doubled(setting: Setting) -> Setting:
    """Return two of a setting, connected by links as slow as its slowest one."""
    slowest = min(min(row) for row in setting.gbit_per_s)
    count = len(setting.gpus)
    rows = tuple(
        tuple(
            INF
            if a == b
            else setting.gbit_per_s[a % count][b % count]
            if a // count == b // count
            else slowest
            for b in range(2 * count)
        )
        for a in range(2 * count)
    )
    return Setting(f"two {setting.name}", 2 * setting.gpus, rows)
