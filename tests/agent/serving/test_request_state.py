"""Requests: a table of stories, and a machine of random ones against the promise: each answered exactly
once."""

from __future__ import annotations

from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from edgepart.agent.serving.request_state import (
    Abandon,
    Activated,
    Answered,
    AttemptFailed,
    DeploymentGone,
    DeviceFound,
    DeviceLost,
    Effect,
    Event,
    Fail,
    Forget,
    OutputArrived,
    Refuse,
    ReplicaSide,
    Requests,
    RequestWindow,
    Start,
    Submitted,
    Suspended,
    Withdrawn,
)
from edgepart.agent.wire.inference import Epoch
from edgepart.planner.plans.plan import Replica

E1, E2 = Epoch(1, 1), Epoch(1, 2)


def active(epoch: Epoch = E1, devices: str = "ab", outputs: tuple[int, ...] = (7, 8)) -> Activated:
    return Activated("m", epoch, (ReplicaSide(frozenset(devices), frozenset(outputs)),))


def tell(requests: Requests, *events: Event, now: float = 0.0) -> list[Effect]:
    """The effects of the last event."""
    effects: list[Effect] = []
    for event in events:
        effects = requests.handle(event, now)
    return effects


def test_a_request_starts_and_is_answered_when_all_outputs_are_there() -> None:
    requests = Requests()
    assert tell(requests, active(), Submitted(1, "m", 10)) == [Start(1, 0, "m", E1)]
    assert tell(requests, OutputArrived(0, 7), OutputArrived(0, 7)) == []
    assert tell(requests, OutputArrived(0, 8)) == [Answered(1, 0, "m", E1, 0)]
    assert tell(requests, OutputArrived(0, 8), AttemptFailed(0, False, "late")) == []
    assert requests.wake_at() == inf


def test_a_patient_request_waits_for_the_first_plan_and_a_suspended_one_for_the_next() -> None:
    requests = Requests(RequestWindow(waiting=2))
    assert tell(requests, Submitted(1, "m", 10, patient=True)) == []
    assert tell(requests, Submitted(2, "m", 5)) == []  # the others wait with it
    (refused,) = tell(requests, Submitted(3, "m", 10, patient=True))
    assert isinstance(refused, Refuse) and "2 requests wait" in refused.error
    (failed,) = requests.wake(5.0)
    assert isinstance(failed, Fail) and failed.kind == "unplanned"
    assert tell(requests, active(), now=6.0) == [Start(1, 0, "m", E1)]
    assert tell(requests, Suspended("m"), Submitted(4, "m", 20), now=7.0) == []
    assert requests.counts() == {"m": (1, 1)}
    effects = tell(requests, OutputArrived(0, 7), OutputArrived(0, 8), now=8.0)
    assert effects == [Answered(1, 0, "m", E1, 0), Forget("m", E1)]  # what ran goes on to its end
    assert tell(requests, active(E2), now=9.0) == [Start(4, 1, "m", E2)]


def test_what_nobody_waits_for_is_forgotten() -> None:
    requests = Requests()
    tell(requests, Submitted(1, "m@1", 10, patient=True), Withdrawn(1))
    assert requests.counts() == {}
    tell(requests, active(), Suspended("m"))
    assert requests.counts() == {}
    assert tell(requests, Suspended("never")) == []
    (refused,) = tell(requests, Submitted(2, "m@1", 10))
    assert isinstance(refused, Refuse) and "no plan of 'm' is active" in refused.error


def test_without_a_plan_or_a_place_nothing_is_accepted() -> None:
    requests = Requests(RequestWindow(in_flight=1, waiting=1))
    (refused,) = tell(requests, Submitted(1, "m", 10))
    assert isinstance(refused, Refuse) and "'m'" in refused.error
    tell(requests, active(), Submitted(2, "m", 10))
    assert tell(requests, Submitted(3, "m", 10)) == []
    (refused,) = tell(requests, Submitted(4, "m", 10))
    assert isinstance(refused, Refuse) and refused.request == 4
    assert requests.counts() == {"m": (1, 1)}
    (refused,) = tell(requests, Submitted(5, "m", 0.5), now=1.0)
    assert isinstance(refused, Refuse)


def test_the_oldest_waiting_request_goes_next() -> None:
    requests = Requests(RequestWindow(in_flight=1))
    tell(requests, active(outputs=(7,)), Submitted(1, "m", 10), Submitted(2, "m", 10), Submitted(3, "m", 10))
    assert tell(requests, OutputArrived(0, 7)) == [Answered(1, 0, "m", E1, 0), Start(2, 1, "m", E1)]


def test_a_lost_device_means_waiting_for_the_next_epoch_and_then_starting_at_once() -> None:
    requests = Requests()
    tell(requests, active(), Submitted(1, "m", 10), OutputArrived(0, 7))
    assert tell(requests, DeviceLost("c")) == []
    assert tell(requests, DeviceLost("b")) == [Abandon(0, "m", E1)]
    assert tell(requests, Submitted(2, "m", 10)) == []
    assert requests.wake(5.0) == []
    effects = tell(requests, active(E2, "a", (1,)), now=5.0)
    assert effects == [Start(1, 1, "m", E2), Start(2, 2, "m", E2), Forget("m", E1)]
    assert tell(requests, OutputArrived(0, 8), OutputArrived(0, 1)) == []  # of the abandoned attempt
    assert tell(requests, OutputArrived(1, 1)) == [Answered(1, 1, "m", E2, 1)]


def test_a_request_that_tries_a_plan_gives_up_soon_after_a_device_is_lost() -> None:
    requests = Requests()
    tell(requests, active(), Submitted(1, "m", 60, again_s=2), Submitted(2, "m", 60))
    assert tell(requests, DeviceLost("b"), now=10) == [Abandon(0, "m", E1), Abandon(1, "m", E1)]
    tell(requests, Submitted(3, "m", 60, again_s=2), now=11)  # It cannot begin.
    assert requests.wake_at() == 12
    [failed] = requests.wake(12)
    assert isinstance(failed, Fail) and failed.request == 1 and "last because the connection" in failed.error
    assert [effect.request for effect in requests.wake(13) if isinstance(effect, Fail)] == [3]
    assert requests.wake_at() > 13  # The other one waits for a plan.


def test_it_gives_up_soon_whichever_device_tells_first_of_the_loss() -> None:
    requests = Requests()
    tell(requests, active(), Submitted(1, "m", 60, again_s=2), Submitted(2, "m", 60, again_s=2))
    tell(requests, AttemptFailed(0, True, "the connection with node b broke"), now=10)
    tell(requests, AttemptFailed(1, True, "no room", no_room=True), now=10)
    tell(requests, DeviceLost("b"), now=10.1)  # Neither attempt is under way by now.
    [failed] = [effect for effect in requests.wake(12) if isinstance(effect, Fail)]
    assert failed.request == 1 and failed.error.endswith("because the connection with node b broke")
    assert not any(isinstance(effect, Fail) for effect in requests.wake(59))


def test_a_device_that_comes_back_serves_again() -> None:
    requests = Requests()
    tell(requests, active(), Submitted(1, "m", 10), DeviceLost("b"))
    assert tell(requests, DeviceFound("b"), now=1.0) == [Start(1, 1, "m", E1)]


def test_what_began_before_there_was_a_connection_with_a_device_is_tried_again() -> None:
    """The device may have made it, and could not send the outputs here."""
    requests = Requests()
    assert tell(requests, active(), Submitted(1, "m", 10)) == [Start(1, 0, "m", E1)]
    assert tell(requests, DeviceFound("d")) == []
    assert tell(requests, DeviceFound("b")) == [Abandon(0, "m", E1)]
    assert requests.wake(1.0) == [Start(1, 1, "m", E1)]
    outputs = tell(requests, OutputArrived(1, 7), OutputArrived(1, 8), now=1.0)
    assert outputs == [Answered(1, 1, "m", E1, 1)]


def test_what_is_in_flight_ends_on_the_old_plan_while_it_can() -> None:
    requests = Requests()
    tell(requests, active(), Submitted(1, "m", 10), Submitted(2, "m", 10))
    assert tell(requests, active(E2, "ac", (3,))) == []
    assert tell(requests, Submitted(3, "m", 10)) == [Start(3, 2, "m", E2)]
    assert tell(requests, OutputArrived(0, 7), OutputArrived(0, 8)) == [Answered(1, 0, "m", E1, 0)]
    effects = tell(requests, DeviceLost("b"))
    assert effects == [Abandon(1, "m", E1), Start(2, 3, "m", E2), Forget("m", E1)]


def test_an_older_epoch_is_not_activated() -> None:
    requests = Requests()
    tell(requests, active(E2), active(E1))
    assert tell(requests, Submitted(1, "m", 10)) == [Start(1, 0, "m", E2)]


def test_a_stale_attempt_is_tried_again_later_on_the_same_epoch_and_at_once_on_a_newer() -> None:
    requests = Requests(RequestWindow(retry_s=1.0, longest_retry_s=2.0))
    tell(requests, active(), Submitted(1, "m", 100))
    assert tell(requests, AttemptFailed(0, True, "left")) == [Abandon(0, "m", E1)]
    assert requests.wake_at() == 1.0
    assert requests.wake(0.9) == []
    assert requests.wake(1.0) == [Start(1, 1, "m", E1)]
    tell(requests, AttemptFailed(1, True, "left"), now=1.0)
    assert requests.wake_at() == 3.0
    assert requests.wake(3.0) == [Start(1, 2, "m", E1)]
    tell(requests, AttemptFailed(2, True, "left"), now=3.0)
    assert requests.wake_at() == 5.0  # no longer than the longest
    assert tell(requests, active(E2), now=3.0) == [Start(1, 3, "m", E2), Forget("m", E1)]


def test_a_put_off_request_that_cannot_start_does_not_wake_for_nothing() -> None:
    requests = Requests(RequestWindow(retry_s=1.0))
    tell(requests, active(), Submitted(1, "m", 100), DeviceLost("b"))
    requests.wake(1.0)
    assert requests.wake_at() == 100


def test_a_fault_of_the_request_is_answered_as_such() -> None:
    requests = Requests()
    tell(requests, active(), Submitted(1, "m", 10))
    effects = tell(requests, AttemptFailed(0, False, "index 9 is out of bounds"))
    assert effects == [Abandon(0, "m", E1), Fail(1, "index 9 is out of bounds", "failed")]


def test_a_request_that_ends_two_workers_is_not_tried_a_third_time() -> None:
    requests = Requests()
    tell(requests, active(), Submitted(1, "m", 10))
    assert tell(requests, AttemptFailed(0, True, "SIGFPE", crashed=True)) == [Abandon(0, "m", E1)]
    assert requests.wake(1.0) == [Start(1, 1, "m", E1)]
    _, failed = tell(requests, AttemptFailed(1, True, "SIGFPE", crashed=True), now=1.5)
    assert isinstance(failed, Fail) and failed.kind == "crashed" and "2 times a process ended" in failed.error
    assert requests.wake_at() == inf


def test_the_deadline_answers_whatever_the_state() -> None:
    requests = Requests(RequestWindow(in_flight=1))
    tell(requests, active(), Submitted(1, "m", 10), Submitted(2, "m", 5))
    (waiting,) = requests.wake(5.0)
    assert isinstance(waiting, Fail) and waiting.request == 2 and "waited" in waiting.error
    tell(requests, AttemptFailed(0, True, "b is warm"), now=6.0)
    effects = requests.wake(10.0)
    assert isinstance(effects[-1], Fail) and "b is warm" in effects[-1].error
    assert effects[-1].kind == "deadline"


def test_undeploying_answers_what_is_held() -> None:
    requests = Requests(RequestWindow(in_flight=1))
    tell(requests, active(), Submitted(1, "m", 10), Submitted(2, "m", 10))
    effects = tell(requests, DeploymentGone("m"))
    assert [e.request for e in effects if isinstance(e, Fail)] == [1, 2]
    assert effects[0] == Abandon(0, "m", E1) and effects[-1] == Forget("m", E1)
    assert tell(requests, DeploymentGone("m"), OutputArrived(0, 7)) == []


def test_a_client_that_hangs_up_frees_its_place() -> None:
    requests = Requests(RequestWindow(in_flight=1))
    tell(requests, active(), Submitted(1, "m", 10), Submitted(2, "m", 10))
    assert tell(requests, Withdrawn(1)) == [Abandon(0, "m", E1), Start(2, 1, "m", E1)]
    assert tell(requests, Withdrawn(1)) == []


def test_outputs_that_are_all_constant_need_no_device() -> None:
    requests = Requests(RequestWindow(in_flight=1))
    tell(requests, active(outputs=()))
    for number in range(3):
        effects = tell(requests, Submitted(number, "m", 10))
        assert [type(e) for e in effects] == [Start, Answered]


def replicated(*seconds: float) -> Activated:
    """One device for each replica, "a", "b" and so on, which takes so many seconds."""
    sides = (
        ReplicaSide(frozenset("abcd"[n]), frozenset({n}), Replica(("abcd"[n],), took, took))
        for n, took in enumerate(seconds)
    )
    return Activated("m", E1, tuple(sides))


def submitted(*numbers: int) -> list[Event]:
    return [Submitted(number, "m", 100) for number in numbers]


def sides_of(effects: list[Effect]) -> list[int]:
    return [effect.side for effect in effects if isinstance(effect, Start)]


def test_each_request_goes_to_the_replica_that_is_done_with_it_first() -> None:
    requests = Requests()
    tell(requests, replicated(1.0, 2.5))
    assert [sides_of(tell(requests, one)) for one in submitted(1, 2, 3, 4)] == [[0], [0], [1], [0]]
    assert tell(requests, OutputArrived(2, 0)) == []  # It is of the other replica.
    assert tell(requests, OutputArrived(2, 1)) == [Answered(3, 2, "m", E1, 0)]
    assert sides_of(tell(requests, *submitted(5))) == [1]


def test_an_attempt_that_is_lost_is_tried_on_another_replica_at_once() -> None:
    requests = Requests(RequestWindow(retry_s=1.0))
    tell(requests, replicated(1.0, 1.0, 9.0), *submitted(1, 2))
    assert tell(requests, DeviceLost("a")) == [Abandon(0, "m", E1, 0), Start(1, 2, "m", E1, 1)]
    assert sides_of(tell(requests, *submitted(3, 4))) == [1]
    full = AttemptFailed(2, True, "full")
    assert tell(requests, full) == [Abandon(2, "m", E1, 1), Start(1, 5, "m", E1, 2)]
    assert tell(requests, AttemptFailed(5, True, "full")) == [Abandon(5, "m", E1, 2)]  # It has tried all.
    assert requests.wake_at() == 1.0
    assert sides_of(requests.wake(1.0)) == [1]


def test_with_many_replicas_more_are_started_at_once() -> None:
    requests = Requests(RequestWindow(in_flight=3))
    tell(requests, replicated(1.0, 1.0, 1.0))
    found = [sides_of(tell(requests, one)) for one in submitted(*range(7))]
    assert found == [[0], [1], [2], [0], [1], [2], []]


class Stories(RuleBasedStateMachine):
    """Random lives of two deployments on four devices. The model is a set: what was accepted and not yet
    answered."""

    attempts = Bundle("attempts")

    def __init__(self) -> None:
        super().__init__()
        self.requests = Requests(RequestWindow(in_flight=2, waiting=3, retry_s=0.5))
        self.now = 0.0
        self.count = 0
        self.open: dict[int, float] = {}
        self.running: dict[int, Start] = {}
        self.plans: dict[tuple[str, Epoch], Activated] = {}
        self.epoch: dict[str, Epoch] = {}
        self.lost: set[str] = set()

    def see(self, effects: list[Effect]) -> list[int]:
        """Check each effect against what may be done now; the attempts that were started."""
        started = []
        for effect in effects:
            match effect:
                case Refuse(request):
                    del self.open[request]
                case Start(request, attempt, deployment, epoch):
                    assert request in self.open
                    assert request not in [s.request for s in self.running.values()]
                    assert epoch == self.epoch[deployment]
                    assert self.lost.isdisjoint(self.side(effect).nodes)
                    self.running[attempt] = effect
                    started.append(attempt)
                case Abandon(attempt, deployment, epoch, side):
                    gone = self.running.pop(attempt)
                    assert (gone.deployment, gone.epoch, gone.side) == (deployment, epoch, side)
                    assert (deployment, epoch) in self.plans
                case Answered(request, attempt):
                    assert self.running.pop(attempt).request == request
                    del self.open[request]
                case Fail(request):
                    del self.open[request]
                case Forget(deployment, epoch):
                    del self.plans[deployment, epoch]
        return started

    def side(self, start: Start) -> ReplicaSide:
        return self.plans[start.deployment, start.epoch].sides[start.side]

    def send(self, event: Event) -> list[int]:
        return self.see(self.requests.handle(event, self.now))

    @rule(target=attempts, name=st.sampled_from("mn"), patience=st.floats(0.1, 20), patient=st.booleans())
    def submit(self, name: str, patience: float, patient: bool) -> object:
        self.count += 1
        self.open[self.count] = self.now + patience
        return multiple(*self.send(Submitted(self.count, name, self.now + patience, patient)))

    @rule(target=attempts, name=st.sampled_from("mn"))
    def suspend(self, name: str) -> object:
        return multiple(*self.send(Suspended(name)))

    @rule(
        target=attempts,
        name=st.sampled_from("mn"),
        sides=st.lists(
            st.builds(
                ReplicaSide,
                st.frozensets(st.sampled_from("abcd"), min_size=1),
                st.frozensets(st.integers(0, 2)),
                st.builds(Replica, st.just(()), st.floats(0, 3), st.floats(0, 3)),
            ),
            min_size=1,
            max_size=3,
        ),
        term=st.integers(0, 1),
    )
    def activate(self, name: str, sides: list[ReplicaSide], term: int) -> object:
        last = self.epoch.get(name, Epoch(0, 0))
        self.epoch[name] = Epoch(last.term + term, last.number + 1)
        event = Activated(name, self.epoch[name], tuple(sides))
        self.plans[name, self.epoch[name]] = event
        return multiple(*self.send(event))

    @rule(target=attempts, device=st.sampled_from("abcd"), up=st.booleans())
    def link(self, device: str, up: bool) -> object:
        (self.lost.discard if up else self.lost.add)(device)
        return multiple(*self.send(DeviceFound(device) if up else DeviceLost(device)))

    @rule(target=attempts, attempt=attempts, transfer=st.integers(0, 2))
    def output(self, attempt: int, transfer: int) -> object:
        return multiple(*self.send(OutputArrived(attempt, transfer)))

    @rule(target=attempts, attempt=consumes(attempts), stale=st.booleans())
    def failed(self, attempt: int, stale: bool) -> object:
        return multiple(*self.send(AttemptFailed(attempt, stale, "a fault")))

    @rule(target=attempts, name=st.sampled_from("mn"))
    def remove(self, name: str) -> object:
        return multiple(*self.send(DeploymentGone(name)))

    @rule(target=attempts, passed=st.floats(0, 5))
    def wait(self, passed: float) -> object:
        end = self.now + passed
        started: list[int] = []
        for _ in range(200):
            self.now = min(end, max(self.now, self.requests.wake_at()))
            started += self.see(self.requests.wake(self.now))
            if self.now >= end:
                return multiple(*started)
        raise AssertionError("it wakes and wakes, and time does not pass")

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        for number, deadline in self.open.items():
            assert deadline > self.now, f"request {number} is past its deadline"
        flying = {name: sum(s.deployment == name for s in self.running.values()) for name in "mn"}
        for name, count in flying.items():
            most = max((len(p.sides) for (n, _), p in self.plans.items() if n == name), default=1)
            assert count <= 2 * most
        for running in self.running.values():
            assert self.lost.isdisjoint(self.side(running).nodes)

    def teardown(self) -> None:
        self.wait(100.0)
        assert not self.open
        assert not self.running


Stories.TestCase.settings = settings(max_examples=120, stateful_step_count=40)
TestStories = Stories.TestCase
