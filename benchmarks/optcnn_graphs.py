"""The networks and the machines of OptCNN's experiments (its section 6), for planning.

AlexNet and VGG-16 have weights without contents (benchmarks/tofu_graphs.py); Inception-v3 has drawn ones.

The paper's machines are 4 hosts of 4 P100 GPUs, with NVLink inside a host and 100 Gbit/s InfiniBand between
hosts. Here each GPU is a device with the rates of its data sheet, and each two devices have a link of their own,
as fast as one NVLink (20 GB/s each way) or the InfiniBand. As the paper assumes, a link is used fully by each transfer,
and starting work or a message takes no time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, pairwise
from pathlib import Path

from benchmarks.inception import inception_v3
from benchmarks.tofu_graphs import HollowBuilder
from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.search.study import Study

BATCH = 32
"""Images for each GPU: "a per-GPU batch size of 32 for all experiments"."""

GPUS_OF_A_HOST = 4
NVLINK, INFINIBAND = Link(20e9, 0.0, 0.0), Link(12.5e9, 0.0, 0.0)
P100_FLOPS_PER_S, P100_BYTES_PER_S, P100_BYTES = 10.6e12, 732e9, 16e9


def gpus(count: int) -> Cluster:
    """The paper's machines: `count` GPUs, four of them to a host."""
    devices = tuple(
        Device(f"gpu{n}", "P100", P100_FLOPS_PER_S, P100_BYTES_PER_S, P100_BYTES, segment_s=0.0)
        for n in range(count)
    )
    near = (
        pair
        for pair in combinations(range(count), 2)
        if pair[0] // GPUS_OF_A_HOST == pair[1] // GPUS_OF_A_HOST
    )
    return Cluster(devices, {(f"gpu{a}", f"gpu{b}"): NVLINK for a, b in near}, INFINIBAND)


def alexnet(batch: int) -> Graph:
    """AlexNet (Krizhevsky et al. 2012), with its two groups of channels."""
    b = HollowBuilder("alexnet", (batch, 3, 227, 227))
    x = _conv(b, "x", 3, 96, 11, stride=4, pad=0)
    x = _pool(b, b.one("LRN", x, size=5, alpha=1e-4, beta=0.75, bias=2.0), 3)
    x = _conv(b, x, 96, 256, 5, groups=2)
    x = _pool(b, b.one("LRN", x, size=5, alpha=1e-4, beta=0.75, bias=2.0), 3)
    for ins, outs, groups in ((256, 384, 1), (384, 384, 2), (384, 256, 2)):
        x = _conv(b, x, ins, outs, 3, groups=groups)
    return _dense(b, _pool(b, x, 3), (256 * 6 * 6, 4096, 4096, 1000))


def vgg16(batch: int) -> Graph:
    """VGG-16 (Simonyan and Zisserman 2014, configuration D)."""
    b, x, ins = HollowBuilder("vgg16", (batch, 3, 224, 224)), "x", 3
    for count, outs in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(count):
            x, ins = _conv(b, x, ins, outs, 3), outs
        x = _pool(b, x, 2)
    return _dense(b, x, (512 * 7 * 7, 4096, 4096, 1000))


def inception(batch: int) -> Graph:
    return load_graph(inception_v3(batch=batch).SerializeToString())


NETWORKS: Mapping[str, Callable[[int], Graph]] = {
    "AlexNet": alexnet,
    "VGG-16": vgg16,
    "Inception-v3": inception,
}
"""The graph of each network for a number of images."""


def study_of(network: str, devices: int) -> Study:
    """The network with 32 images for each of so many GPUs, on these."""
    return Study(Problem(NETWORKS[network](BATCH * devices), gpus(devices), "gpu0"))


def _conv(
    b: HollowBuilder,
    x: str,
    ins: int,
    outs: int,
    kernel: int,
    stride: int = 1,
    pad: int | None = None,
    groups: int = 1,
) -> str:
    """Convolution and Relu, padded so that stride 1 keeps height and width unless `pad` is given."""
    pads = [kernel // 2 if pad is None else pad] * 4
    weight, bias = b.weight(outs, ins // groups, kernel, kernel), b.weight(outs)
    strides, shape = [stride] * 2, [kernel] * 2
    return b.one(
        "Relu", b.one("Conv", x, weight, bias, kernel_shape=shape, strides=strides, pads=pads, group=groups)
    )


def _pool(b: HollowBuilder, x: str, kernel: int) -> str:
    return b.one("MaxPool", x, kernel_shape=[kernel] * 2, strides=[2, 2])


def _dense(b: HollowBuilder, x: str, sizes: Sequence[int]) -> Graph:
    """Dense layers of these sizes and Softmax; the graph as loaded."""
    x = b.one("Flatten", x, axis=1)
    for number, (ins, outs) in enumerate(pairwise(sizes)):
        x = b.one("Relu", x) if number else x
        x = b.one("Gemm", x, b.weight(outs, ins), b.weight(outs), transB=1)
    with tempfile.TemporaryDirectory() as folder:
        return load_graph(b.save(b.one("Softmax", x, axis=1), Path(folder)))
