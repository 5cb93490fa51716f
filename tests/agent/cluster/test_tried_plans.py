"""Plans are tried before they serve: virtual time, fake shells, and a verdict that each story gives."""

from __future__ import annotations

from edgepart.agent.cluster.state.events import RIGHT, SUSPECT, UNTRIED, WRONG, TryPlan
from edgepart.agent.wire.inference import Epoch
from tests.agent.cluster.simnet import SimNet, node_id
from tests.agent.cluster.test_cluster_stories import urgent_of, uses

A, B, C = map(node_id, range(1, 4))


def deployed(net: SimNet) -> SimNet:
    net.start()
    net.until(lambda: not net.settled_faults(), 10)
    net.deploy(A)
    net.until(lambda: net.standings.get("net") is not None and net.standings["net"].state == "serving", 60)
    return net


def test_a_plan_serves_when_it_was_right() -> None:
    net = SimNet(3, 1)
    started: list[int] = []

    def verdict(order: TryPlan) -> tuple[str, str]:
        started.append(sum("switches" in line for line in net.log))
        return RIGHT, ""

    net.verdict = verdict
    deployed(net)
    net.until(lambda: uses(net, A, B, C), 10)
    assert started[0] == 0  # nobody served it before it was tried
    net.run(30)
    epochs = [order.epoch for _, order in net.tried]
    assert len(epochs) == len(set(epochs)) == 4  # three plans for losses: each is tried once


def test_a_wrong_plan_never_serves_and_the_next_best_does() -> None:
    net = SimNet(3, 2)
    wrong: list[Epoch] = []

    def verdict(order: TryPlan) -> tuple[str, str]:
        if not wrong or order.epoch in wrong:
            wrong.append(order.epoch)
            return WRONG, "y differs by 0.3 of its largest magnitude"
        return RIGHT, ""

    net.verdict = verdict
    deployed(net)
    net.run(30)
    served = {box.active["net"] for box in net.boxes.values()}
    assert len(served) == 1 and not served & set(wrong)
    assert len(net.devices(net.boxes[A], "net") or ()) == 2
    standing = net.standings["net"]
    assert "is not served: y differs by 0.3" in standing.note
    leader = net.core(net.core(A).leader)
    assert leader.leadership.leads and leader.leadership.count_refused() == {"net": 1}


def test_a_loss_waits_for_no_trial() -> None:
    net = deployed(SimNet(3, 3))
    net.run(30)
    net.most_try_s = 300.0
    urgent = urgent_of(net)
    net.crash(C)
    assert net.until(lambda: uses(net, A, B), 10) < 2
    assert not urgent


def test_what_had_to_serve_is_tried_then_and_left_where_it_is_wrong() -> None:
    net = deployed(SimNet(3, 4))
    net.alone_fits = False
    net.verdict = lambda order: (WRONG, "y is missing")
    net.crash(C)  # before anything was tried for that
    net.until(lambda: net.devices(net.boxes[A], "net") == {A, B}, 10)
    net.until(lambda: len(net.devices(net.boxes[A], "net") or ()) == 1, 60)  # the model itself is right
    assert "y is missing" in net.standings["net"].note


def test_where_a_device_has_room_for_the_model_nothing_has_to_serve_untried() -> None:
    net = deployed(SimNet(3, 4))
    net.verdict = lambda order: (WRONG, "y is missing")
    net.crash(C)
    net.until(lambda: len(net.devices(net.boxes[A], "net") or ()) == 1, 10)
    net.run(60)
    assert len(net.devices(net.boxes[A], "net")) == 1
    assert not any("switches" in line and line.endswith("on 1 2") for line in net.log)
    assert net.tried[-1][1].epoch != net.boxes[A].active["net"]


def test_two_plans_that_fail_where_nobody_knows_better_are_the_inputs_fault() -> None:
    net = SimNet(3, 5)
    net.alone_is_right = False
    net.verdict = lambda order: (SUSPECT, "an index is out of range")
    deployed(net)
    assert len({order.epoch for _, order in net.tried}) >= 2
    assert "was not tried before it served: an index is out of range" in net.standings["net"].note


def test_what_cannot_be_tried_serves_and_says_so() -> None:
    net = SimNet(3, 6)
    net.verdict = lambda order: (UNTRIED, "input 'x' has no shape that is known before a request")
    deployed(net)
    net.until(lambda: uses(net, A, B, C), 10)
    assert "was not tried before it served: input 'x'" in net.standings["net"].note


def test_deploying_again_forgets_what_was_refused() -> None:
    net = SimNet(3, 7)
    net.verdict = lambda order: (WRONG, "y differs") if len(net.tried) == 1 else (RIGHT, "")
    deployed(net)
    assert "y differs" in net.standings["net"].note
    net.deploy(A)
    net.run(30)
    assert uses(net, A, B, C) and net.standings["net"].note == ""
