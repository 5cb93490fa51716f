"""Replicas: joins plans (or schedules) into one plan (or schedule) of which they are the replicas, and splits
such a schedule again. Pure rules.

Transfers are numbered consecutively, in the order of the replicas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from edgepart.planner.plans.plan import GATEWAY, Plan, Program, Receive, Replica, Run, Send, Step, Transfer
from edgepart.planner.plans.timeline import Compute, MessageTimes, TimedSchedule


def join_plans(plans: Sequence[Plan], strategy: str, why: str) -> Plan:
    """One plan with `plans` (at least one, on different devices) as its replicas. The paces of the replicas
    stay 0."""
    programs: dict[str, Program] = {}
    transfers: list[Transfer] = []
    for plan in plans:
        first = len(transfers)
        for name, program in plan.programs.items():
            programs[name] = replace(program, steps=tuple(_renumber(step, first) for step in program.steps))
        transfers += [replace(transfer, number=transfer.number + first) for transfer in plan.transfers]
    replicas = tuple(Replica(tuple(plan.programs)) for plan in plans)
    return replace(
        plans[0],
        strategy=strategy,
        why=why,
        programs=programs,
        transfers=tuple(transfers),
        replicas=replicas,
    )


def _renumber(step: Step, first: int) -> Step:
    return step if isinstance(step, Run) else type(step)(step.transfer + first)


def join_schedules(schedules: Iterable[TimedSchedule]) -> TimedSchedule:
    """One schedule with `schedules` (on different devices) as its replicas."""
    steps: dict[str, Sequence[Receive | Compute | Send]] = {}
    messages: list[MessageTimes] = []
    replicas: list[tuple[str, ...]] = []
    for schedule in schedules:
        first = len(messages)
        for name, mine in schedule.steps.items():
            steps[name] = [s if isinstance(s, Compute) else type(s)(s.transfer + first) for s in mine]
        messages += schedule.messages
        replicas.append(tuple(schedule.steps))
    return TimedSchedule(steps, messages, tuple(replicas))


def split_schedule(schedule: TimedSchedule) -> list[tuple[TimedSchedule, list[int]]]:
    """The schedule of each replica, and the numbers that its messages have in `schedule`."""
    place = {name: n for n, names in enumerate(schedule.replicas) for name in names}
    numbers: list[list[int]] = [[] for _ in schedule.replicas]
    renumbered: dict[int, int] = {}
    for number, message in enumerate(schedule.messages):
        mine = numbers[place[message.target if message.source == GATEWAY else message.source]]
        renumbered[number] = len(mine)
        mine.append(number)

    def own(step: Receive | Compute | Send) -> Receive | Compute | Send:
        return step if isinstance(step, Compute) else type(step)(renumbered[step.transfer])

    return [
        (
            TimedSchedule(
                {name: [own(step) for step in schedule.steps[name]] for name in names},
                [schedule.messages[number] for number in mine],
            ),
            mine,
        )
        for names, mine in zip(schedule.replicas, numbers, strict=True)
    ]
