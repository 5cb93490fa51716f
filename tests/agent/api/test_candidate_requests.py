"""Which version answers: draws, fallbacks, sequences, copies and promotions, with versions that tests answer for."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from edgepart.agent.api import candidate_requests
from edgepart.agent.api.candidate_requests import MOST_COPIES, CandidateRequests
from edgepart.agent.api.inference_request import AskedInference, InferResult, SequenceTurn
from edgepart.agent.chronicle.event_log import EventLog
from edgepart.agent.cluster.state.deployments import DeploymentMap
from edgepart.agent.cluster.state.model_versions import number_of
from edgepart.agent.serving.requester import AnswerInfo
from edgepart.agent.serving.sequences import Sequences
from edgepart.agent.wire.control import Deployment
from edgepart.agent.wire.inference import NO_EPOCH, DeployOptions
from edgepart.agent.wire.trials import TrialShare
from edgepart.planner.errors import (
    ClusterError,
    CrashError,
    DeadlinePassed,
    RequestError,
    StateLost,
    Unavailable,
    UnknownDeployment,
)

X = np.zeros(3, np.float32)


class Bench:
    """A gateway with `net`, version 1, and its candidate, version 2; answers are the numbers of the versions."""

    def __init__(self, share: TrialShare, seed: int = 1) -> None:
        self.map = DeploymentMap()
        self.map.put("a", "net", "m1", 1, DeployOptions())
        self.map.propose("a", "net", "m2", 1, DeployOptions(), None, share)
        self.fails: dict[str, Exception] = {}
        """What requests for a deployment raise, by its name."""
        self.trouble: dict[str, str] = {}
        self.asked: list[tuple[str, float]] = []
        """The deployment and the deadline of each request, in order."""
        self.gate: asyncio.Event | None = None
        """Requests for the candidate wait for it, where there is one."""
        self.now_s = 100.0
        self.slow_s = 0.0
        """How long the candidate takes."""
        self.offset = 0.0
        """What the candidate adds to its last number."""
        self.events = EventLog()
        self.sequences = Sequences(
            self._step, iter(map(str, range(99))).__next__, self._end, lambda name: name
        )
        self.trials = CandidateRequests(
            lambda: self.map,
            self._serve,
            lambda entry: self.trouble.get(entry.name, ""),
            self.sequences,
            self.events,
            random.Random(seed),
            lambda: self.now_s,
        )

    def _end(self, deployment: str, name: str) -> None:
        """Devices would forget the sequence."""

    async def _step(self, deployment: str, *given: Any, **named: Any) -> Any:
        if deployment in self.fails:
            raise self.fails[deployment]
        return {}, AnswerInfo(NO_EPOCH, 0, "single")

    async def _serve(self, entry: Deployment, asked: AskedInference) -> InferResult:
        self.asked.append((entry.name, asked.deadline_s))
        if asked.sequence is not None:
            turn = asked.sequence
            await self.sequences.infer(
                entry.name, turn.id, {}, asked.deadline_s, (), start=turn.start, end=turn.end
            )
        if entry.candidacy is not None and self.gate is not None:
            await self.gate.wait()
        if entry.candidacy is not None:
            self.now_s += self.slow_s
        if entry.name in self.fails:
            raise self.fails[entry.name]
        number = number_of(entry)
        value = X + number
        value[-1] += self.offset if entry.candidacy is not None else 0.0
        return InferResult({"y": value}, NO_EPOCH, 0.01, version=str(number))

    async def ask(self, sequence: SequenceTurn | None = None, deadline_s: float = 8.0) -> str:
        entry = self.map.get("net")
        assert entry is not None
        asked = AskedInference({"x": X}, None, deadline_s, sequence)
        return (await self.trials.infer(entry, asked)).version

    async def copied(self) -> None:
        while self.trials._copies:
            await asyncio.sleep(0)

    @property
    def seen(self) -> Any:
        return self.trials.card("net")


def story(bench_of: Callable[[], Bench], told: Callable[[Bench], Awaitable[None]]) -> None:
    async def run() -> None:
        bench = bench_of()
        await told(bench)
        await bench.trials.stop()

    asyncio.run(run())


@pytest.mark.parametrize(("percent", "least", "most"), [(0, 0, 0), (25, 190, 310), (100, 1000, 1000)])
def test_requests_are_drawn_by_the_share(percent: int, least: int, most: int) -> None:
    async def told(bench: Bench) -> None:
        got = Counter([await bench.ask() for _ in range(1000)])
        assert least <= got["2"] <= most and got["1"] + got["2"] == 1000
        assert (bench.seen.answers, bench.seen.serving_answers) == (got["2"], got["1"])

    story(lambda: Bench(TrialShare(percent)), told)


@pytest.mark.parametrize(
    "failure",
    [
        Unavailable("no device"),
        CrashError("it ends its worker"),
        ClusterError("removed"),
        UnknownDeployment("gone"),
        DeadlinePassed("late"),
        TimeoutError(),
        RequestError("it does not fit"),
    ],
)
def test_what_the_candidate_cannot_answer_the_version_that_serves_does(failure: Exception) -> None:
    async def told(bench: Bench) -> None:
        bench.fails["net.candidate"] = failure
        assert [await bench.ask() for _ in range(5)] == ["1"] * 5
        assert (bench.seen.fallbacks, bench.seen.answers, bench.seen.serving_answers) == (5, 0, 5)
        assert bench.seen.last_failure == (str(failure) or "TimeoutError")
        assert bench.asked[:2] == [("net.candidate", 4.0), ("net", 8.0)]
        (event,) = [entry for _, entry in bench.events.after(0).entries]
        assert event.subject == "net" and "version 2, the candidate of net, does not answer" in event.text

    story(lambda: Bench(TrialShare(100)), told)


def test_a_request_has_the_time_that_the_candidate_leaves_and_says_how_long_it_took() -> None:
    async def told(bench: Bench) -> None:
        bench.fails["net.candidate"], bench.slow_s = Unavailable("no device"), 3.0
        entry = bench.map.get("net")
        assert entry is not None
        result = await bench.trials.infer(entry, AskedInference({"x": X}, None, 8.0))
        assert bench.asked == [("net.candidate", 4.0), ("net", 5.0)]
        assert (result.seconds, result.queue_s) == (3.01, 3.0)
        assert bench.seen.serving_mean_s == pytest.approx(0.01), "the other version is not at fault"
        for _ in range(20):
            await bench.ask()
        assert bench.events.last == 2, "an event a minute says so, and the clock shows 63 s more"

    story(lambda: Bench(TrialShare(100)), told)


def test_a_candidate_that_does_not_serve_is_not_even_asked() -> None:
    async def told(bench: Bench) -> None:
        bench.trouble["net.candidate"] = "computing a plan"
        assert await bench.ask() == "1"
        assert [name for name, _ in bench.asked] == ["net"]
        assert (bench.seen.fallbacks, bench.seen.trouble) == (1, "computing a plan")

    story(lambda: Bench(TrialShare(100)), told)


def test_a_request_at_fault_is_not_the_candidates_failure() -> None:
    async def told(bench: Bench) -> None:
        bench.fails = dict.fromkeys(("net", "net.candidate"), RequestError("no such input"))
        with pytest.raises(RequestError, match="no such input"):
            await bench.ask()
        assert bench.seen.fallbacks == 0

    story(lambda: Bench(TrialShare(100)), told)


def test_a_request_that_names_a_version_is_not_drawn() -> None:
    async def told(bench: Bench) -> None:
        asked = AskedInference({"x": X}, None, 8.0)
        for name, version in (("net", "1"), ("net.candidate", "2")):
            assert (await bench.trials.infer_only(name, asked)).version == version
        bench.fails["net.candidate"] = CrashError("it ends its worker")
        with pytest.raises(CrashError):
            await bench.trials.infer_only("net.candidate", asked)

    story(lambda: Bench(TrialShare(100)), told)


def test_a_request_that_names_the_candidate_survives_its_promotion() -> None:
    async def told(bench: Bench) -> None:
        bench.gate = asyncio.Event()
        asked = AskedInference({"x": X}, None, 8.0)
        under_way = asyncio.create_task(bench.trials.infer_only("net.candidate", asked))
        await asyncio.sleep(0)
        bench.map.promote("a", "net")
        bench.map.delete("a", "net.candidate")
        bench.fails["net.candidate"] = ClusterError("the deployment was removed meanwhile")
        bench.gate.set()
        assert (await under_way).version == "2"
        assert (await bench.trials.infer_only("net.candidate", asked)).version == "2"
        bench.map.undeploy("a", "net")
        with pytest.raises(UnknownDeployment):
            await bench.trials.infer_only("net.candidate", asked)

    story(lambda: Bench(TrialShare(0)), told)


def test_no_request_is_lost_while_the_candidate_goes() -> None:
    async def told(bench: Bench) -> None:
        bench.gate = asyncio.Event()
        under_way = [asyncio.create_task(bench.ask()) for _ in range(4)]
        await asyncio.sleep(0)
        bench.map.delete("a", "net.candidate")
        bench.fails["net.candidate"] = ClusterError("the deployment was removed meanwhile")
        bench.gate.set()
        assert [await one for one in under_way] == ["1"] * 4
        assert bench.seen is None and await bench.ask() == "1"
        assert bench.events.last == 0, "it does not fail, it is gone"

    story(lambda: Bench(TrialShare(100)), told)


# Sequences


def test_all_steps_of_a_sequence_go_where_it_began_whatever_becomes_of_the_share() -> None:
    async def told(bench: Bench) -> None:
        ids = [f"s{n}" for n in range(30)]
        began = {one: await bench.ask(SequenceTurn(one, start=True)) for one in ids}
        assert set(began.values()) == {"1", "2"}
        for share in (0, 100, 50):
            bench.map.set_share("a", "net", TrialShare(share))
            assert {one: await bench.ask(SequenceTurn(one)) for one in ids} == began
        again = {one: await bench.ask(SequenceTurn(one, start=True)) for one in ids}
        assert again == began, "the draw of an id is always the same"
        bench.map.set_share("a", "net", TrialShare(100))
        assert {await bench.ask(SequenceTurn(one, start=True)) for one in ids} == {"2"}
        assert bench.sequences.count("net") == 0, "what was begun there is over"

    story(lambda: Bench(TrialShare(50)), told)


def test_a_sequence_that_the_candidate_cannot_begin_is_begun_by_the_version_that_serves() -> None:
    async def told(bench: Bench) -> None:
        bench.fails["net.candidate"] = Unavailable("no room")
        assert await bench.ask(SequenceTurn("s", start=True)) == "1"
        del bench.fails["net.candidate"]
        assert await bench.ask(SequenceTurn("s")) == "1"

    story(lambda: Bench(TrialShare(100)), told)


def test_a_sequence_whose_candidate_is_gone_is_said_to_be_lost_and_can_begin_again() -> None:
    async def told(bench: Bench) -> None:
        assert await bench.ask(SequenceTurn("s", start=True)) == "2"
        bench.map.delete("a", "net.candidate")
        with pytest.raises(StateLost, match="begun by a candidate of 'net' that is gone"):
            await bench.ask(SequenceTurn("s"))
        assert await bench.ask(SequenceTurn("s", start=True)) == "1"
        assert await bench.ask(SequenceTurn("s", end=True)) == "1"

    story(lambda: Bench(TrialShare(100)), told)


# Copies


def test_a_shadow_answers_nobody_and_is_compared() -> None:
    async def told(bench: Bench) -> None:
        bench.offset = (
            -5.0
        )  # Another entry is the largest: version 1 has 1, 1, 1, and version 2 has 2, 2, -3.
        for _ in range(3):
            assert await bench.ask() == "1"
            await bench.copied()
        bench.offset = 0.0
        assert await bench.ask() == "1"
        await bench.copied()
        seen = bench.seen
        assert (seen.compared, seen.different, seen.largest_difference) == (4, 0, 4.0)
        assert (seen.answers, seen.serving_answers, seen.mean_s) == (4, 4, pytest.approx(0.01))
        bench.offset = 3.0
        await bench.ask()
        await bench.copied()
        assert bench.seen.different == 1

    story(lambda: Bench(TrialShare(shadow=True)), told)


def test_copies_are_few_and_those_that_fail_harm_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def told(bench: Bench) -> None:
        bench.gate = asyncio.Event()
        assert [await bench.ask() for _ in range(MOST_COPIES + 3)] == ["1"] * (MOST_COPIES + 3)
        assert bench.seen.copies_dropped == 3
        bench.fails["net.candidate"] = CrashError("it ends its worker")
        await asyncio.sleep(0)
        bench.gate.set()
        await bench.copied()
        assert (bench.seen.copy_errors, bench.seen.compared, bench.seen.fallbacks) == (MOST_COPIES, 0, 0)
        assert bench.events.last == 1, "one event says so"
        monkeypatch.setattr(candidate_requests, "MOST_COPY_BYTES", 10)
        await bench.ask()
        assert bench.seen.copies_dropped == 4

    story(lambda: Bench(TrialShare(shadow=True)), told)


def test_figures_are_those_of_one_candidate() -> None:
    async def told(bench: Bench) -> None:
        await bench.ask()
        bench.map.set_share("a", "net", TrialShare(50))
        assert bench.seen.answers == 1
        bench.map.propose("a", "net", "m3", 1, DeployOptions(), None, TrialShare(100))
        assert (bench.seen.answers, bench.seen.version) == (0, "3")

    story(lambda: Bench(TrialShare(100)), told)
