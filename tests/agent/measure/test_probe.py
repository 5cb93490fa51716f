"""Probes: that they measure through ordinary sessions, what they read from the system, and the links' arithmetic."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.host.system import cores
from edgepart.agent.measure import probe, probe_models, probe_process
from edgepart.agent.measure.probe import (
    BORDER_BYTES,
    BURST,
    ECHO_BYTES,
    LinkProbe,
    available_memory_bytes,
    device_kind,
    echo_sizes,
    probe_device,
)
from edgepart.agent.measure.probe_models import FAMILIES
from edgepart.agent.measure.probe_process import Probed
from edgepart.planner.access import accesses
from edgepart.planner.cost.cost import Cost
from edgepart.planner.devices.cluster import FIXED_S, Cluster, Device
from edgepart.planner.devices.cluster_json import cluster_from_json, cluster_to_json
from edgepart.planner.errors import Unavailable, UsageError
from edgepart.planner.model.load import load_graph

MOVES = {**probe_models.MOVES, **probe_models.large_moves()}
PLAIN = Device("plain", "box", 1e9, 1e9, 1e9)


@pytest.fixture(scope="module")
def device() -> Device:
    return probe_device("box", threads=1)


def test_a_real_probe_gives_a_device_that_can_be_written_and_read(device: Device) -> None:
    assert device.families.keys() == FAMILIES.keys()
    assert device.moves.keys() == {*MOVES, "border"}
    assert device.flops_per_s == device.families["conv"]
    numbers = [device.flops_per_s, device.memory_bytes_per_s, device.segment_s]
    numbers += [*device.families.values(), *device.moves.values()]
    assert all(math.isfinite(number) and number > 0 and type(number) is float for number in numbers)
    assert device.segment_s < 0.1
    assert 0 <= device.kernel_s < 0.01
    assert 0 < device.memory_bytes <= available_memory_bytes() * 1.5
    assert cluster_from_json(cluster_to_json(Cluster((device,)))).devices == (device,)


def test_what_is_known_to_cost_more_than_its_bytes_is_found_to(device: Device) -> None:
    kinds = ("elementwise/2097152", "transcendental", "lrn")
    rates = [device.moves[name] for name in kinds]
    assert rates == sorted(rates, reverse=True)
    assert rates[2] < rates[0] / 10  # a power for each element


@pytest.mark.parametrize("name", [*FAMILIES, *MOVES])
def test_a_trial_is_work_of_the_family_or_kind_that_it_stands_for(name: str, tmp_path: Path) -> None:
    """What the planner makes of the trial's model goes at the rate that the trial measures."""
    trial = {**FAMILIES, **MOVES}[name]
    onnx.save(trial.model, tmp_path / "trial.onnx")
    graph = load_graph(tmp_path / "trial.onnx")
    (op,) = graph.operators
    outputs = {0: graph.region_of("y")}
    work = Cost(Cluster((PLAIN,)), graph).work(op, accesses(graph)[op.name], outputs)
    family, _, size = name.partition("/")
    if name in MOVES and family != "weights":
        assert work.kind == family
        assert work.nbytes == pytest.approx(trial.nbytes, rel=0.01)
    else:
        assert work.family == {"columns": "gemm", "weights": "gemm"}.get(family, family)
        if name in FAMILIES:
            assert work.flops == pytest.approx(trial.flops)
        else:
            assert work.nbytes == pytest.approx(trial.nbytes)
    if name in FAMILIES and size:
        assert (work.columns if family == "columns" else work.size) == float(size)


def test_a_memory_limit_is_taken_as_it_is() -> None:
    assert probe_device("box", threads=1, memory_limit=123e6).memory_bytes == 123e6


def stepping(step_s: float) -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += step_s


def test_what_slows_sessions_down_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """An emulated slow device stretches `InferenceSession.run`; here the clock moves only in there."""
    now, runs = [0.0], [0]
    original = ort.InferenceSession.run

    def slow(self: Any, *arguments: Any, **more: Any) -> Any:
        now[0] += 0.125
        runs[0] += 1
        return original(self, *arguments, **more)

    monkeypatch.setattr(ort.InferenceSession, "run", slow)
    device = probe_device("box", threads=1, clock=lambda: now[0])
    assert runs[0] > len(FAMILIES) + len(MOVES)
    assert 0 < device.segment_s < 0.125  # of a worker, which is another process and has a clock of its own
    # at least a tenth of a run is counted as its work
    assert device.moves["elementwise/67108864"] == pytest.approx(8 * 2**23 / 0.0125)
    assert device.memory_bytes_per_s == device.moves["elementwise/67108864"]


def test_families_are_what_was_computed_over_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = stepping(0.01)
    device = probe_device("box", threads=1, clock=lambda: next(ticks))
    assert device.families["gemm"] == pytest.approx(2 * 64 * 256 * 512 / 0.001)
    assert device.families["conv"] / device.families["pointwise"] == pytest.approx(
        (64 * 64 * 9) / (128 * 128)
    )


@pytest.mark.parametrize(("threads", "limit"), [(0, None), (-1, 1e9), (1, 0.0), (1, -5.0)])
def test_a_probe_of_nothing_is_refused(threads: int, limit: float | None) -> None:
    with pytest.raises(UsageError, match="must be positive"):
        probe_device("box", threads, limit)


def test_a_board_is_known_by_its_chip(tmp_path: Path) -> None:
    (tmp_path / "compatible").write_bytes(b"raspberrypi,4-model-b\0brcm,bcm2711\0")
    assert device_kind(tmp_path) == "bcm2711"


def test_other_boxes_are_known_by_their_processor(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Intel(R) N100 @ 0.80GHz\n")
    kind = device_kind(tmp_path / "none", tmp_path / "cpuinfo")
    assert kind.startswith("intel-r-n100-0.80ghz-")
    assert device_kind(tmp_path / "none", tmp_path / "none").strip("-")


def group(folder: Path, limit: str, used: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(limit + "\n")
    (folder / "memory.current").write_text(used + "\n")


def test_the_tightest_limit_around_the_process_counts(tmp_path: Path) -> None:
    own, root = tmp_path / "own", tmp_path / "cgroup"
    own.write_text("0::/system.slice/edgepart.service\n")
    group(root / "system.slice/edgepart.service", "max", "50000")
    assert available_memory_bytes(root, own) > 50_000_000
    group(root / "system.slice", "200000", "120000")
    assert available_memory_bytes(root, own) == 80_000
    group(root / "system.slice/edgepart.service", "100000", "90000")
    assert available_memory_bytes(root, own) == 10_000
    group(root / "system.slice/edgepart.service", "100000", "190000")
    assert available_memory_bytes(root, own) == 1


def test_limits_of_the_first_kind_of_groups_count_too(tmp_path: Path) -> None:
    own, root = tmp_path / "own", tmp_path / "cgroup"
    own.write_text("9:memory:/box\n1:name=systemd:/x\n")
    (root / "memory/box").mkdir(parents=True)
    (root / "memory/box/memory.limit_in_bytes").write_text("3000")
    (root / "memory/box/memory.usage_in_bytes").write_text("1000")
    assert available_memory_bytes(root, own) == 2000
    assert available_memory_bytes(root, tmp_path / "none") > 1_000_000


def test_threads_are_at_least_one() -> None:
    assert cores() >= 1


@given(
    latency_s=st.floats(1e-5, 0.5),
    bytes_per_s=st.floats(1e5, 1.25e9),
    delays_s=st.lists(st.floats(0, 0.2), min_size=2, max_size=6),
)
def test_a_link_is_found_again_from_its_echoes(
    latency_s: float, bytes_per_s: float, delays_s: list[float]
) -> None:
    probe = LinkProbe()
    probe.add_burst(BURST, 2 * latency_s + (BURST - 1) * 2e-6)
    for nbytes in (0, ECHO_BYTES):
        for delay_s in [*delays_s, *[0.0] * (len(delays_s) + 1)]:  # more than half came through undisturbed
            probe.add(nbytes, 2 * latency_s + 2 * nbytes / bytes_per_s + delay_s)
    link = probe.link()
    assert link.message_s == pytest.approx(min(2e-6, latency_s / 2), rel=1e-3)
    assert 2 * link.message_s + link.latency_s == pytest.approx(latency_s)
    trip_s = 2 * latency_s + 2 * ECHO_BYTES / bytes_per_s
    measurable = 2 * ECHO_BYTES / bytes_per_s > trip_s / 100
    assert link.bytes_per_s == pytest.approx(
        bytes_per_s if measurable else 200 * ECHO_BYTES / trip_s, rel=1e-3
    )


def test_a_link_with_one_kind_of_echo_is_not_measured() -> None:
    probe = LinkProbe()
    with pytest.raises(Unavailable):
        probe.link()
    probe.add(0, 0.001)
    with pytest.raises(Unavailable):
        probe.link()


@pytest.mark.parametrize(("nbytes", "trip_s"), [(0, 0.0), (0, -1.0), (0, math.nan), (-1, 0.1)])
def test_echoes_that_cannot_be_are_refused(nbytes: int, trip_s: float) -> None:
    with pytest.raises(UsageError, match="cannot take"):
        LinkProbe().add(nbytes, trip_s)


def test_echoes_are_small_first_then_big() -> None:
    sizes = list(echo_sizes())
    assert sizes == sorted(sizes)
    assert {0, BORDER_BYTES, ECHO_BYTES} == set(sizes)


def test_of_sizes_the_slower_counts_and_of_one_size_the_median() -> None:
    probe = LinkProbe(small_s=[0.002])
    for nbytes, seconds in ((1000000, 0.102), (1000000, 0.202), (1000000, 0.052), (250000, 0.032)):
        probe.add(nbytes, seconds)
    assert probe.link().bytes_per_s == pytest.approx(500000 / 0.03)


def test_without_bursts_a_message_costs_what_is_guessed() -> None:
    probe = LinkProbe(small_s=[0.002], big=[(1 << 20, 0.1)])
    assert probe.link().message_s == FIXED_S
    assert LinkProbe(small_s=[4e-5], big=[(1 << 20, 0.1)]).link().message_s == pytest.approx(1e-5)


@pytest.mark.parametrize(("count", "seconds"), [(1, 0.1), (16, 0.0), (16, math.nan)])
def test_bursts_that_cannot_be_are_refused(count: int, seconds: float) -> None:
    with pytest.raises(UsageError, match="cannot take"):
        LinkProbe().add_burst(count, seconds)


def test_where_little_memory_is_free_the_largest_trials_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[probe_models.Trial] = []

    def best_s(trial: probe_models.Trial, *_: object) -> float:
        tried.append(trial)
        return 0.001

    monkeypatch.setattr(probe, "_best_s", best_s)
    monkeypatch.setattr(probe, "_segment_s", lambda *_: 1e-5)
    monkeypatch.setattr(probe, "available_memory_bytes", lambda: 200 << 20)
    device = probe.probe_device("small", 1)
    assert max(trial.nbytes for trial in tried) < 4 << 20
    assert device.memory_bytes_per_s == device.moves["elementwise/2097152"]
    assert device.memory_bytes < 200 << 20


@pytest.mark.parametrize(("ended", "tries"), [((-9, 0), 2), ((-9, -9), 2), ((0,), 1), ((1,), 1)])
def test_a_probe_that_the_system_ends_is_tried_again_with_little(
    monkeypatch: pytest.MonkeyPatch, ended: tuple[int, ...], tries: int
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        commands.append([*command])
        document = json.dumps({"measured": cluster_to_json(Cluster((PLAIN,))), "waited_share": 0.0})
        return SimpleNamespace(returncode=ended[len(commands) - 1], stdout=document, stderr="ended")

    monkeypatch.setattr(subprocess, "run", run)
    if ended[-1]:
        with pytest.raises(Unavailable, match="could not be measured: ended"):
            probe_process.probe_in_process("box", 1)
    else:
        assert probe_process.probe_in_process("box", 1) == Probed(PLAIN, 0.0)
    assert len(commands) == tries
    assert commands[1:] == [[*commands[0], str(probe_process.LITTLE_BYTES)]][: tries - 1]


def test_a_kept_measurement_is_read_until_it_is_of_something_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    probed: list[tuple[str, int]] = []

    def probe_in_process(name: str, threads: int) -> Probed:
        probed.append((name, threads))
        return Probed(replace(PLAIN, name=name, threads=threads), 0.0)

    monkeypatch.setattr(probe_process, "probe_in_process", probe_in_process)
    kept = tmp_path / "new" / "measured.json"
    first = probe_process.measure_device("a", 1, kept)
    second = probe_process.measure_device("b", 1, kept)
    assert probed == [("a", 1)]
    assert second == replace(first, name="b", memory_bytes=second.memory_bytes)
    assert 0 < second.memory_bytes == pytest.approx(available_memory_bytes() * 0.8, rel=0.5)
    assert not caplog.records
    probe_process.measure_device("b", 2, kept)
    assert "for threads 1, and here it is 2: this device is measured again" in caplog.text
    probe_process.measure_device("b", 2)
    assert probed[1:] == [("b", 2), ("b", 2)]


def test_other_software_is_measured_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = [PLAIN, replace(PLAIN, flops_per_s=3 * PLAIN.flops_per_s)]
    monkeypatch.setattr(probe_process, "probe_in_process", lambda *_: Probed(found.pop(0), 0.0))
    kept = tmp_path / "measured.json"
    one = [probe_process.measure_device("box", 1, kept, made_with="onnxruntime 1").flops_per_s for _ in "ab"]
    two = [probe_process.measure_device("box", 1, kept, made_with="onnxruntime 2").flops_per_s for _ in "ab"]
    assert (one, two) == ([PLAIN.flops_per_s] * 2, [3 * PLAIN.flops_per_s] * 2)


@pytest.mark.parametrize(
    ("speeds", "kept_speed"),
    [([1.05], 1.05), ([0.5, 0.99], 0.99), ([0.5, 0.4], 0.5), ([2.0, 1.5], 2.0), ([0.5, 2.0], 2.0)],
)
def test_what_has_changed_is_measured_twice_and_the_quicker_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, speeds: list[float], kept_speed: float
) -> None:
    left, kept = [*speeds], tmp_path / "measured.json"
    known = replace(PLAIN, flops_per_s=1e9)
    monkeypatch.setattr(
        probe_process,
        "probe_in_process",
        lambda *_: Probed(replace(known, flops_per_s=1e9 * left.pop(0)), 0.0),
    )
    assert probe_process.age_s(kept, 0.0) == float("inf")
    found = probe_process.measure_again(known, kept, "made with").device
    assert found.flops_per_s == pytest.approx(1e9 * kept_speed) and not left
    assert (
        probe_process.measure_device("box", known.threads, kept, "made with").flops_per_s == found.flops_per_s
    )
    assert probe_process.age_s(kept, kept.stat().st_mtime + 5.0) == 5.0


@pytest.mark.parametrize(("share", "is_disturbed"), [(0.0, False), (0.24, False), (0.25, True), (0.9, True)])
def test_what_was_disturbed_counts_and_is_old_at_once(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    share: float,
    is_disturbed: bool,
) -> None:
    document = json.dumps({"measured": cluster_to_json(Cluster((PLAIN,))), "waited_share": share})
    done = SimpleNamespace(returncode=0, stdout=document, stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    kept = tmp_path / "measured.json"
    assert probe_process.measure_device("box", 1, kept) == PLAIN
    assert (f"waited {100 * share:.0f} % of the time" in caplog.text) == is_disturbed
    assert (probe_process.age_s(kept, 0.0) == math.inf) == is_disturbed


def test_a_probe_says_for_how_long_it_waited(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    times = [{1: (0, 0), 2: (5, 5)}, {1: (3_000, 1_000), 2: (5, 5)}]
    monkeypatch.setattr(probe, "probe_device", lambda *_: device)
    monkeypatch.setattr(probe, "thread_times", lambda _: times.pop(0))
    document = probe.probe_document("box", 1, None)
    assert document["waited_share"] == 0.25
    assert cluster_from_json(document["measured"]).devices == (device,)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", "NaN", '{"waited_share": "much"}'])
def test_a_damaged_measurement_is_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    monkeypatch.setattr(probe_process, "probe_in_process", lambda *_: Probed(PLAIN, 0.0))
    kept = tmp_path / "measured.json"
    kept.write_text(text)
    assert probe_process.measure_device("box", 1, kept) == PLAIN
    assert json.loads(kept.read_text())["measured"]


@pytest.mark.parametrize("measured", [None, 1, [], {"devices": []}, {"devices": [{"name": "a"}]}])
def test_a_kept_measurement_without_a_device_is_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, measured: Any
) -> None:
    monkeypatch.setattr(probe_process, "probe_in_process", lambda *_: Probed(PLAIN, 0.0))
    kept = tmp_path / "measured.json"
    probe_process.measure_device("box", 1, kept)
    document = json.loads(kept.read_text())
    kept.write_text(json.dumps({**document, "measured": measured}))
    assert probe_process.measure_device("box", 1, kept) == PLAIN
    assert json.loads(kept.read_text()) == document


def test_what_was_measured_with_little_memory_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    little = replace(PLAIN, memory_bytes=float(probe_process.LITTLE_BYTES))
    monkeypatch.setattr(probe_process, "probe_in_process", lambda *_: Probed(little, 0.0))
    assert probe_process.measure_device("box", 1, tmp_path / "measured.json") == little
    assert not [*tmp_path.iterdir()]


def test_where_nothing_can_be_written_it_is_measured_and_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(probe_process, "probe_in_process", lambda *_: Probed(PLAIN, 0.0))
    (tmp_path / "file").write_text("")
    assert probe_process.measure_device("box", 1, tmp_path / "file" / "measured.json") == PLAIN
    assert "cannot be written" in caplog.text
