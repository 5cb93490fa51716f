"""Trials of text generation: how fast it is on one host, on several slow ones, and for several texts at once, against a
plain loop around one ONNX Runtime session on the best of these hosts. Door: the laboratory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.generation_bare import BareDecoder
from benchmarks.generation_hosts import Deployed, Say, TextHosts, text_hosts
from benchmarks.generation_prompts import TEXTS, chat_prompt
from benchmarks.generation_report import Figure, Told, at_least, at_most, known
from benchmarks.models.language import language_folder
from edgepart.planner.errors import InternalError

INT8, BILLION = "smollm2_genai_int8", "billion_int4"
ALONE = (INT8, "smollm2_genai_float32", "smollm2_optimum_float32")
"""The models that are tried on one host."""
CONTEXT = 256
STORY = chat_prompt("Write a long story about a robot and a cat.")
WHOLE = 64
TURN = 12
"""Tokens of a turn. More hide what a turn's begin costs; with fewer, a busy moment of the machine weighs on both alike."""
LEAST = 0.97
"""No plan may be slower than this share of the best host alone."""


@dataclass(frozen=True)
class SpeedSettings:
    """How much is tried."""

    tokens: int = 60
    """Tokens that are timed."""
    rounds: int = 15
    """How often the plain loop and the product take turns on one host."""
    streams: int = 8
    cases: tuple[str, ...] = ()
    """Which of CASES are tried, as "16,16"; () for all."""


@dataclass(frozen=True)
class SlowCase:
    """Slow hosts, and how much sooner tokens should come from them than from the best one alone."""

    language: str
    slow: tuple[float, ...]
    """How many times as slow as this machine each host is; with `alone_s`, as slow as the hosts that are meant by it."""
    aim: float
    alone_s: float | None = None
    """How long a token takes on a host of 1 in `slow`, so that the case is the same on all machines; None leaves that
    to the machine."""

    @property
    def key(self) -> str:
        slow = ",".join(f"{one:g}" for one in self.slow)
        return f"{self.language}:{slow}" + (f"@{self.alone_s:g}" if self.alone_s else "")

    def factors(self) -> tuple[float, ...]:
        """How many times as slow as this machine each host is."""
        if self.alone_s is None:
            return self.slow
        decoder = BareDecoder(language_folder(self.language), CONTEXT)
        here_s = median(decoder.continued(list(range(2, 18)), TURN).step_s)
        return tuple(round(one * self.alone_s / here_s, 2) for one in self.slow)

    def __str__(self) -> str:
        same = len(set(self.slow)) == 1
        if self.alone_s is not None:
            times = [f"{one * self.alone_s * 1e3:g}" for one in self.slow]
            each = f"{times[0]} ms each" if same else f"{', '.join(times)} ms"
            return f"{self.language} on {len(self.slow)} hosts that take {each}"
        each = f"{self.slow[0]:g}" if same else ", ".join(f"{one:g}" for one in self.slow)
        return f"{self.language} on {len(self.slow)} hosts {each} times as slow"


CASES = (
    SlowCase(INT8, (16, 16), 1.65),
    SlowCase(INT8, (16, 16, 16), 2.1),
    SlowCase(INT8, (8, 8), 1.5),
    SlowCase(INT8, (8, 8, 8), 1.9),
    SlowCase(INT8, (4, 8, 8, 16), 1.2),
    # The aims above are for a machine on which a token takes 280 ms where hosts are 16 times as slow.
    SlowCase(INT8, (1, 1), 1.65, 0.28),
    SlowCase(INT8, (1, 1, 1), 2.1, 0.28),
    SlowCase(INT8, (1, 1), 1.5, 0.14),
    SlowCase(INT8, (1, 1, 1), 1.9, 0.14),
    SlowCase(INT8, (1, 2, 2, 4), 1.2, 0.07),
    SlowCase(BILLION, (8, 8), 1.8),
    SlowCase(BILLION, (8, 8, 8, 8), 2.8),
)


def one_device(settings: SpeedSettings, say: Say) -> Iterator[Figure]:
    """Compare tokens per second on one host, in turns with the plain loop."""
    with text_hosts((1.0,), say) as made:
        for language in ALONE:
            with made.serving(language, context=CONTEXT, strategy="single") as deployed:
                yield from _turns(made, deployed, settings)


def _turns(made: TextHosts, deployed: Deployed, settings: SpeedSettings) -> Iterator[Figure]:
    """Have the plain loop and the agent continue the same text, a few tokens each in turn."""
    part, language = "one-device", deployed.folder.name
    tokens = deployed.encode(STORY)[-16:]
    ratios, bare_s, product_s = [], [], []
    with made.plain_loop(deployed, tokens, CONTEXT) as continued:
        for _ in range(settings.rounds):
            bare = continued(TURN)
            told = made.ask(deployed, [tokens], TURN)[0]
            check(told)
            tokens = [*tokens, *bare.tokens]
            bare_s.append(median(bare.step_s))
            product_s.append(told.median_gap_s)
            ratios.append(bare_s[-1] / product_s[-1])
    _, whole_s = made.bare(deployed, [tokens[:2]], 1, CONTEXT, whole=WHOLE)
    yield at_least(
        part, f"{language}: tokens per second, of the plain loop's", median(ratios), 0.95, "{:.0%}"
    )
    times = f"{median(product_s) * 1e3:.1f} ms, {median(bare_s) * 1e3:.1f} ms"
    yield known(part, f"{language}: time of a token, here and in the plain loop", times)
    least = f"{min(product_s) * 1e3:.1f} ms, {min(bare_s) * 1e3:.1f} ms"
    yield known(part, f"{language}: the same in the turn that was disturbed least", least)
    case, times_as_fast = (
        f"{language}: against reading {WHOLE} tokens for each",
        (whole_s or 0) / median(product_s),
    )
    if language == INT8:
        yield at_least(part, case, times_as_fast, 15.0, "{:.1f}x")
    else:
        yield known(part, case, f"{times_as_fast:.1f}x")


def slow_hosts(settings: SpeedSettings, say: Say) -> Iterator[Figure]:
    """Compare tokens per second on slow hosts with those of the plain loop on the best of them."""
    for case in CASES:
        if settings.cases and case.key not in settings.cases:
            continue
        with (
            text_hosts(case.factors(), say) as made,
            made.serving(case.language, context=CONTEXT) as deployed,
        ):
            yield from _slow_case(made, deployed, case, settings)


def _slow_case(
    made: TextHosts, deployed: Deployed, case: SlowCase, settings: SpeedSettings
) -> Iterator[Figure]:
    best = made.names[case.slow.index(min(case.slow))]
    prompt = deployed.encode(STORY)[-16:]
    texts, _ = made.bare(deployed, [prompt], settings.tokens, CONTEXT, at=best)
    first = made.ask(deployed, [prompt], settings.tokens)[0]
    # A plan that is measured to be slower than one host alone is replaced.
    report = made.settled(deployed.name)
    # During the next text devices still load the programs that read several texts together.
    second, told = (made.ask(deployed, [prompt], settings.tokens)[0] for _ in range(2))
    for one in (first, second, told):
        check(one)
    bare_s = median(texts[0].step_s)
    ratio = bare_s / told.median_gap_s
    used = f"{len(report['devices'])} used, by {report['strategy']}"
    times = f"{told.median_gap_s * 1e3:.0f} ms against {bare_s * 1e3:.0f} ms"
    made.say(f"{case}: {report['why']}")
    yield at_least("speed", f"{case} ({used})", ratio, case.aim)
    yield at_least("speed", f"{case}: never slower than the best alone ({times})", ratio, LEAST)
    before = f"{bare_s / first.median_gap_s:.2f}x, {bare_s / second.median_gap_s:.2f}x"
    yield known("speed", f"{case}: the two texts before", before)
    measured = [one["measured_compute_s"] or 0.0 for one in report["measured"]["devices"].values()]
    found = f"{max(measured) * 1e3:.0f} ms by the busiest, {report['syncs']} exchanges"
    yield known("speed", f"{case}: a token's computation", found)


def many_streams(settings: SpeedSettings, say: Say) -> Iterator[Figure]:
    """Compare several texts at once with one."""
    count, part = settings.streams, "many"
    with (
        text_hosts((8.0, 8.0), say) as made,
        made.serving(INT8, context=CONTEXT, sequences=count) as deployed,
    ):
        every = [deployed.encode(text)[:6] for text in TEXTS[:count]]
        one = made.ask(deployed, [every[0]], settings.tokens)[0]
        check(one)
        # Devices get ready to read several texts together when they have done all else.
        made.ask(deployed, every, 4 * settings.tokens, at_once=True)
        told = made.ask(deployed, [[7, *prompt] for prompt in every], settings.tokens, at_once=True)
        for answer in told:
            check(answer)
        yield from judge_streams(part, one, told)


def judge_streams(part: str, one: Told, told: Sequence[Told]) -> Iterator[Figure]:
    """Judge texts at once: all get the same, and together they get more than one alone."""
    began = max(answer.at_s[0] for answer in told)
    ended = min(answer.at_s[-1] for answer in told)
    counts = [sum(began <= at <= ended for at in answer.at_s) for answer in told]
    mean, lasted_s = sum(counts) / len(counts), ended - began
    case = f"{len(told)} texts at once"
    if lasted_s <= 0 or not mean:
        yield Figure(part, f"{case}: never all at the same time", "-", "all at the same time", False)
        return
    yield at_least(part, f"{case}: the least share, of an equal one", min(counts) / mean, 0.9, "{:.2f}")
    yield at_most(part, f"{case}: the largest share, of an equal one", max(counts) / mean, 1.1, "{:.2f}")
    total = sum(counts) / lasted_s / one.tokens_per_s
    yield at_least(part, f"{case}: tokens per second together, against one text", total, 2.0)


def check(told: Told) -> None:
    """Raises InternalError if a text broke, or is too short to be timed."""
    if told.error or len(told.tokens) < 8:
        raise InternalError(f"the text ended after {len(told.tokens)} tokens: {told.error or told.reason}")
