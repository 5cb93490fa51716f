"""A job that fails is begun again."""

from __future__ import annotations

import asyncio

import pytest

from edgepart.agent.host.jobs import LONGEST_PAUSE_S, repeat


class Failing:
    """A job that fails as often as it has errors, after `lasts_s` of virtual time, and then ends."""

    def __init__(self, errors: list[Exception], lasts_s: float = 0.0) -> None:
        self.errors, self.lasts_s, self.now = errors, lasts_s, 0.0
        self.pauses_s: list[float] = []

    async def work(self) -> None:
        self.now += self.lasts_s
        if self.errors:
            raise self.errors.pop(0)

    async def sleep(self, pause_s: float) -> None:
        self.pauses_s.append(pause_s)
        self.now += pause_s

    def run(self) -> None:
        asyncio.run(repeat("measuring", self.work, lambda: self.now, self.sleep))


def test_it_is_begun_again_after_pauses_that_grow_up_to_a_bound() -> None:
    job = Failing([RuntimeError("unforeseen")] * 9)
    job.run()
    assert job.pauses_s == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_job_that_ran_for_long_begins_again_soon() -> None:
    job = Failing([RuntimeError("unforeseen")] * 3, lasts_s=LONGEST_PAUSE_S + 1)
    job.run()
    assert job.pauses_s == [1, 1, 1]


def test_the_log_has_a_failure_once_until_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    full = OSError(24, "Too many open files")
    Failing([full, full, full, RuntimeError("unforeseen"), full]).run()
    assert caplog.text.count("measuring has failed") == 3


def test_cancelling_ends_it() -> None:
    async def work() -> None:
        task = asyncio.create_task(repeat("waiting", asyncio.Event().wait))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(work())
