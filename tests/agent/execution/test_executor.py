"""Executor: three of them in one process with real sessions, and everything that may go wrong with a
request."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import Queue
from threading import Event

import numpy as np
import pytest

from edgepart.agent.execution import tasks
from edgepart.agent.execution.copies import Scratch
from edgepart.agent.execution.executor import Executor
from edgepart.agent.execution.nchwc_array import PLAIN
from edgepart.agent.execution.request_queue import QueueLimits
from edgepart.agent.execution.runtime.sessions import PreparedProgram, Sessions
from edgepart.agent.execution.tasks import START_TRANSFER
from edgepart.agent.wire.inference import Epoch, Failed, RequestMessage, Tensors
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import InternalError, Unavailable, WorkerDied
from edgepart.planner.plans.plan import GATEWAY, Plan, Program, Run, Send
from edgepart.planner.region import Array
from tests.agent import handmade

BOUND_S = 20.0
EPOCH = Epoch(3, 1)
GATE = "gate"


class Net:
    """Executors by node id on a wire that hands frames over at once; the gateway's mail is kept."""

    def __init__(self, plan: Plan, **limits: int) -> None:
        self.plan = plan
        self.asked_for: Queue[str] = Queue()
        """The nodes whose connections executors wanted to read."""
        self.mail: Queue[tuple[Tensors | Failed, Sequence[Value]]] = Queue()
        self.cut: set[str] = set()
        self.sessions = Sessions(1, handmade.read_weight)
        self.at = {
            node: Executor(self.sender(node), QueueLimits(**limits), data_from=self.asked_for.put)
            for node in handmade.NODES.values()
        }
        self.held = {device: self.sessions.prepare(program) for device, program in plan.programs.items()}
        for executor in self.at.values():
            executor.start()

    def sender(self, source: str):  # type: ignore[no-untyped-def]
        def send(node: str, message: RequestMessage, values: Sequence[Value]) -> None:
            if node in self.cut:
                raise Unavailable(f"no connection with {node}")
            if node == GATE and isinstance(message, Tensors | Failed):
                self.mail.put((message, values))
            elif isinstance(message, Tensors) and node in self.at:
                self.at[node].deliver(message, values, source)

        return send

    def install(self, epoch: Epoch = EPOCH) -> None:
        for device, prepared in self.held.items():
            executor = self.at[handmade.NODES[device]]
            executor.install("m", epoch, prepared, self.plan.transfers, handmade.NODES)

    def submit(self, request: str, x: Array, epoch: Epoch = EPOCH, devices: str = "abc") -> None:
        for transfer in self.plan.transfers:
            if transfer.source == GATEWAY and transfer.target in devices:
                values = [piece.region.crop(x) for piece in transfer.pieces]
                message = Tensors("m", epoch, f"{GATE}/0/{request}", transfer.number, ())
                self.at[handmade.NODES[transfer.target]].deliver(message, values, GATE)

    def answers(self, count: int) -> dict[str, dict[int, Value]]:
        """`count` messages, by request and transfer."""
        found: dict[str, dict[int, Value]] = {}
        for _ in range(count):
            message, values = self.mail.get(timeout=BOUND_S)
            assert isinstance(message, Tensors), message
            found.setdefault(message.request.rpartition("/")[2], {})[message.transfer] = values[0]
        return found

    def failure(self) -> Failed:
        message, _ = self.mail.get(timeout=BOUND_S)
        assert isinstance(message, Failed), message
        return message

    def stop(self) -> None:
        for executor in self.at.values():
            executor.stop()


@pytest.fixture
def net():  # type: ignore[no-untyped-def]
    made = Net(handmade.split_plan())
    yield made
    made.stop()


def assert_right(answer: dict[int, Value], x: Array) -> None:
    expected = handmade.expected(x)
    y = np.concatenate([answer[4], answer[5]], axis=2)
    np.testing.assert_allclose(y, expected["y"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(answer[8], expected["total"], rtol=1e-4, atol=1e-3)


def test_many_requests_in_flight_are_each_answered_right(net: Net) -> None:
    net.install()
    inputs = {str(n): handmade.request_input(n) for n in range(30)}
    for request, x in inputs.items():
        net.submit(request, x)
    answers = net.answers(3 * len(inputs))
    for request, x in inputs.items():
        assert_right(answers[request], x)
    for device, node in handmade.NODES.items():
        executor = net.at[node]
        executor.stop()
        assert executor.count_waiting() == (0, 0)
        counters = executor.counters()
        assert counters.requests_done == 30
        runs = [times.runs for times in counters.segments.values()]
        assert runs == [30] * len(net.plan.programs[device].segments)
    to_c = net.at["node-a"].counters().sent_bytes["node-c"]
    assert to_c == net.at["node-c"].counters().received_bytes["node-a"] == 30 * 2 * 4 * 6 * 4


def test_a_compute_thread_reads_the_connections_of_small_transfers_that_it_waits_for(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    net.install()
    net.submit("r", handmade.request_input(5), devices="a")
    assert net.asked_for.get(timeout=BOUND_S) == "node-b"
    net.submit("r", handmade.request_input(5), devices="b")
    net.answers(3)
    monkeypatch.setattr("edgepart.agent.execution.tasks.READ_HERE_BYTES", 0)
    net.install(Epoch(3, 2))
    asked = net.asked_for.qsize()
    net.submit("s", handmade.request_input(5), Epoch(3, 2))
    net.answers(3)
    assert net.asked_for.qsize() == asked, "All transfers are large now."


def test_frames_that_come_before_the_program_wait_for_it(net: Net) -> None:
    for node in net.at.values():
        node.expect("m", EPOCH)
    x = handmade.request_input(5)
    net.submit("r", x)
    assert net.mail.empty()
    net.install()
    assert_right(net.answers(3)["r"], x)


def test_early_frames_are_bounded() -> None:
    net = Net(handmade.split_plan(), early_frames=2)
    net.at["node-a"].expect("m", EPOCH)
    for n in range(3):
        net.at["node-a"].deliver(Tensors("m", EPOCH, f"{GATE}/0/{n}", 0, ()), [np.zeros(1)])
    failed = net.failure()
    assert failed.stale and failed.request == f"{GATE}/0/2" and "preparing" in failed.error
    net.stop()


def test_frames_of_an_unknown_or_left_epoch_go_back(net: Net) -> None:
    net.install()
    net.submit("r", handmade.request_input(1), Epoch(2, 9))
    for _ in range(2):
        failed = net.failure()
        assert failed.stale and failed.epoch == Epoch(2, 9)
    executor = net.at["node-a"]
    assert executor.retire("m", EPOCH) == [net.held["a"]]
    assert executor.retire("m", EPOCH) == []
    net.submit("r2", handmade.request_input(1))
    assert net.failure().stale


def test_what_was_counted_of_a_deployment_goes_with_its_last_epoch(net: Net) -> None:
    net.install()
    net.submit("r", handmade.request_input(1))
    net.answers(3)
    net.install(Epoch(3, 2))
    executor = net.at["node-a"]
    executor.retire("m", EPOCH)
    assert {deployment for deployment, _ in executor.counters().segments} == {"m"}
    executor.retire("m", Epoch(3, 2))
    assert not executor.counters().segments


def test_retiring_hands_back_what_is_under_way(net: Net) -> None:
    net.install()
    executor = net.at["node-a"]
    x = handmade.request_input(1)
    executor.deliver(Tensors("m", EPOCH, f"{GATE}/0/r", 0, ()), [x[:, :, :5]])  # b's rows never come
    executor.retire("m", EPOCH)
    failed = net.failure()
    assert failed.stale and failed.request == f"{GATE}/0/r"
    assert executor.count_waiting() == (0, 0)


def test_frames_of_ended_and_cancelled_requests_start_nothing(net: Net) -> None:
    net.install()
    net.submit("done", handmade.request_input(1))
    net.answers(3)
    net.at["node-a"].cancel(f"{GATE}/0/gone")
    for request in ("done", "gone"):
        message = Tensors("m", EPOCH, f"{GATE}/0/{request}", 0, ())
        net.at["node-a"].deliver(message, [handmade.request_input(1)[:, :, :5]])
    net.at["node-a"].stop()
    assert net.at["node-a"].count_waiting() == (0, 0)
    assert net.mail.empty()


@pytest.mark.parametrize(
    ("transfer", "values", "why"),
    [
        (99, [np.zeros(1)], "does not come to this device"),
        (4, [np.zeros(1)], "does not come to this device"),
        (START_TRANSFER, [], None),
        (0, [], "has 1 pieces, 0 came"),
        (0, [np.zeros((1, 2, 4, 6), np.float32)], "shape"),
        (0, [np.zeros((1, 2, 5, 6), np.float64)], "float64"),
        (0, [[1, 2]], "list"),
    ],
)
def test_a_wrong_frame_fails_its_request_and_no_other(
    net: Net, transfer: int, values: list[Value], why: str | None
) -> None:
    net.install()
    net.at["node-a"].deliver(Tensors("m", EPOCH, f"{GATE}/0/bad", transfer, ()), values)
    if why is not None:
        failed = net.failure()
        assert not failed.stale and why in failed.error
    x = handmade.request_input(2)
    net.submit("good", x)
    assert_right(net.answers(3)["good"], x)


def test_a_request_is_of_one_epoch(net: Net) -> None:
    net.install()
    net.install(Epoch(3, 2))
    for epoch in (EPOCH, Epoch(3, 2)):
        net.at["node-a"].deliver(
            Tensors("m", epoch, f"{GATE}/0/r", 0, ()), [handmade.request_input(1)[:, :, :5]]
        )
    failed = net.failure()
    assert not failed.stale and "is of m" in failed.error


def test_too_many_requests_go_back_to_be_tried_again() -> None:
    net = Net(handmade.split_plan(), requests=2)
    net.install()
    for n in range(3):
        net.at["node-a"].deliver(
            Tensors("m", EPOCH, f"{GATE}/0/{n}", 0, ()), [handmade.request_input(n)[:, :, :5]]
        )
    failed = net.failure()
    assert failed.stale and failed.request.endswith("/2") and "too many" in failed.error
    net.stop()


def test_too_many_bytes_go_back_but_one_request_always_fits() -> None:
    net = Net(handmade.split_plan(), nbytes=1)
    net.install()
    x = handmade.request_input(1)
    message = Tensors("m", EPOCH, f"{GATE}/0/big", 0, ())
    net.at["node-a"].deliver(message, [x[:, :, :5]])
    net.at["node-a"].deliver(replace(message, request=f"{GATE}/0/next"), [x[:, :, :5]])
    failed = net.failure()
    assert failed.stale and failed.request.endswith("/next")
    net.stop()


def test_an_unreachable_device_makes_the_request_stale(net: Net) -> None:
    net.install()
    net.cut.add("node-b")
    message = Tensors("m", EPOCH, f"{GATE}/0/r", 0, ())
    net.at["node-a"].deliver(message, [handmade.request_input(1)[:, :, :5]])
    failed = net.failure()
    assert failed.stale and "no connection with node-b" in failed.error


def test_a_broken_link_hands_back_what_went_over_it_and_drops_the_lost_gateways_own(net: Net) -> None:
    net.install()
    net.submit("done", handmade.request_input(1))
    net.answers(3)
    executor = net.at["node-a"]
    rows = handmade.request_input(1)[:, :, :5]
    executor.deliver(Tensors("m", EPOCH, f"{GATE}/0/waits", 0, ()), [rows])
    executor.deliver(Tensors("m", EPOCH, "node-b/0/its", 0, ()), [rows])
    executor.lost("node-b")
    assert {net.failure().request for _ in range(2)} == {f"{GATE}/0/waits", f"{GATE}/0/done"}
    assert executor.count_waiting()[0] == 0
    executor.lost("node-b")
    executor.lost("nobody")
    assert net.mail.empty()


class Faulty:
    """A prepared program whose runs do what the test says."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.dtypes: dict[str, np.dtype[np.float32]] = {}
        self.kept = PLAIN
        self.entered, self.go_on, self.stopped = Event(), Event(), Event()
        self.result: list[Array] | Exception = []

    def stop(self) -> None:
        self.stopped.set()

    def scratch(self) -> Scratch:
        return Scratch()

    def run(
        self, segment: int, inputs: Sequence[Value], wanted: Callable[[], bool], overwrites: object
    ) -> list[Array]:
        self.entered.set()
        assert self.go_on.wait(BOUND_S)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.mark.parametrize(
    ("result", "why"),
    [(ZeroDivisionError("oops"), "oops"), ([np.zeros((1, 1), np.float32)], r"(1, 1)"), ([], "shorter")],
)
def test_a_fault_in_a_run_is_that_requests_alone(net: Net, result: list[Array] | Exception, why: str) -> None:
    faulty = Faulty(net.plan.programs["a"])
    faulty.result = result
    faulty.go_on.set()
    executor = net.at["node-a"]
    executor.install("m", EPOCH, _prepared(faulty), net.plan.transfers, handmade.NODES)
    for request in ("1", "2"):
        message = Tensors("m", EPOCH, f"{GATE}/0/{request}", 0, ())
        executor.deliver(message, [handmade.request_input(1)[:, :, :5]])
        failed = net.failure()
        assert not failed.stale and why in failed.error and failed.request.endswith(request)
    assert executor.counters().requests_failed == 2


@pytest.mark.parametrize(("waits_s", "order"), [(tasks.TRIAL_WAITS_S, "hut"), (0.0, "htu")])
def test_requests_of_users_go_before_one_that_tries_a_plan_for_a_while(
    net: Net, waits_s: float, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "TRIAL_WAITS_S", 1e6 * waits_s)
    faulty = Faulty(net.plan.programs["a"])
    executor = net.at["node-a"]
    executor.install("m", EPOCH, _prepared(faulty), net.plan.transfers, handmade.NODES)
    for request in "htu":  # One that holds the device, one that tries a plan, and a user's.
        message = Tensors("m", EPOCH, f"{GATE}/0/{request}", 0, (), exact=request == "t")
        executor.deliver(message, [handmade.request_input(1)[:, :, :5]])
        assert faulty.entered.wait(BOUND_S)
    faulty.go_on.set()
    assert "".join(net.failure().request[-1] for _ in order) == order
    assert executor.count_waiting() == (0, 0)


def _prepared(faulty: Faulty) -> PreparedProgram:
    return faulty  # type: ignore[return-value]


def test_a_run_under_way_is_stopped_with_its_request_and_ends_quietly(net: Net) -> None:
    faulty = Faulty(net.plan.programs["a"])
    executor = net.at["node-a"]
    assert executor.computes
    executor.install("m", EPOCH, _prepared(faulty), net.plan.transfers, handmade.NODES)
    executor.deliver(Tensors("m", EPOCH, f"{GATE}/0/r", 0, ()), [handmade.request_input(1)[:, :, :5]])
    assert faulty.entered.wait(BOUND_S)
    executor.cancel(f"{GATE}/0/another")
    assert not faulty.stopped.is_set()
    executor.cancel(f"{GATE}/0/r")
    assert faulty.stopped.is_set()
    faulty.go_on.set()
    executor.stop()
    assert net.mail.empty()


def test_a_run_that_takes_for_ever_does_not_hold_up_another_deployment(net: Net) -> None:
    endless, other = Faulty(net.plan.programs["a"]), Faulty(net.plan.programs["a"])
    executor = net.at["node-a"]
    for name, faulty in (("endless", endless), ("other", other)):
        executor.install(name, EPOCH, _prepared(faulty), net.plan.transfers, handmade.NODES)
        executor.deliver(
            Tensors(name, EPOCH, f"{GATE}/0/{name}", 0, ()), [handmade.request_input(1)[:, :, :5]]
        )
    assert endless.entered.wait(BOUND_S) and other.entered.wait(BOUND_S)
    endless.go_on.set()
    other.go_on.set()


def test_a_request_that_ended_a_worker_says_so(net: Net) -> None:
    faulty = Faulty(net.plan.programs["a"])
    faulty.result = WorkerDied("the worker ended with SIGFPE")
    faulty.go_on.set()
    executor = net.at["node-a"]
    executor.install("m", EPOCH, _prepared(faulty), net.plan.transfers, handmade.NODES)
    executor.deliver(Tensors("m", EPOCH, f"{GATE}/0/r", 0, ()), [handmade.request_input(1)[:, :, :5]])
    failed = net.failure()
    assert failed.crashed and failed.stale and "SIGFPE" in failed.error


def test_a_program_that_receives_nothing_is_started_by_a_frame_without_arrays(net: Net) -> None:
    faulty = Faulty(replace(net.plan.programs["c"], steps=(Send(8),)))
    with pytest.raises(InternalError, match="nothing before it gives"):
        net.at["node-c"].install("m", EPOCH, _prepared(faulty), net.plan.transfers, handmade.NODES)
    summing = net.plan.programs["c"].segments[0]
    program = replace(
        net.plan.programs["c"], steps=(Run(0), Send(8)), segments=(replace(summing, inputs=()),)
    )
    faulty = Faulty(program)
    faulty.result = [np.ones(1, np.float32)]
    faulty.go_on.set()
    net.at["node-c"].install("m", EPOCH, _prepared(faulty), net.plan.transfers[8:], handmade.NODES)
    net.at["node-c"].deliver(Tensors("m", EPOCH, f"{GATE}/0/r", START_TRANSFER, ()), [])
    assert net.answers(1)["r"][8].tolist() == [1]


def test_a_plan_that_names_an_unknown_device_or_comes_twice_is_refused(net: Net) -> None:
    with pytest.raises(InternalError, match=r"no node id given for devices \['c'\]"):
        net.at["node-a"].install("m", EPOCH, net.held["a"], net.plan.transfers, {"a": "1", "b": "2"})
    net.install()
    with pytest.raises(InternalError, match="installed already"):
        net.install()


def test_frames_in_any_order_and_twice_give_the_same_answer(net: Net) -> None:
    net.install()
    x = handmade.request_input(8)
    inputs = [t for t in net.plan.transfers if t.source == GATEWAY]
    for n, order in enumerate(itertools.permutations([*inputs, *inputs])):
        for transfer in order:
            message = Tensors("m", EPOCH, f"{GATE}/0/{n}", transfer.number, ())
            values = [piece.region.crop(x) for piece in transfer.pieces]
            net.at[handmade.NODES[transfer.target]].deliver(message, values)
        assert_right(net.answers(3)[str(n)], x)


def test_data_counts_only_from_whom_the_plan_says(net: Net) -> None:
    faulty = Faulty(net.plan.programs["a"])
    faulty.go_on.set()
    executor = net.at["node-a"]
    executor.install("m", EPOCH, _prepared(faulty), net.plan.transfers, handmade.NODES)
    piece = handmade.request_input(1)[:, :, :5]
    message = Tensors("m", EPOCH, f"{GATE}/0/r", 0, ())
    executor.deliver(message, [piece], "node-b")
    assert executor.count_waiting() == (0, 0) and not faulty.entered.is_set()
    executor.deliver(message, [piece], GATE)
    assert faulty.entered.wait(BOUND_S)
