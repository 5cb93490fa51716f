"""Trials of text generation: what states cost. Traffic and pauses while a text grows, the second turn of a chat, and
memory. Door: the laboratory and the clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier, Event
from typing import Any

import numpy as np
from tritonclient.utils import InferenceServerException

from benchmarks.generation_answers import Steps
from benchmarks.generation_hosts import Deployed, Say, TextHosts, text_hosts
from benchmarks.generation_prompts import TEXTS
from benchmarks.generation_report import Figure, at_most, known
from benchmarks.generation_speed import check

LANGUAGE = "smollm2_genai_int8"
SPLITS = ("pipeline", "tofu")
TRAFFIC_BYTES = 350_000
SEQUENCES = 8
BEGUN_S = 60.0
GROWN = 20 << 20


@dataclass(frozen=True)
class StateSettings:
    """How much is tried."""

    grown: int = 4000
    """Tokens to which a text grows."""
    window: int = 300
    """Tokens over which traffic is counted, at the begin and at the end."""
    rounds: int = 5
    left: int = 1000
    """Sequences that are begun and left."""
    context: int = 4096
    splits: tuple[str, ...] = SPLITS


def growing_texts(settings: StateSettings, say: Say) -> Iterator[Figure]:
    """Let a text grow from 40 tokens on, on two hosts; count plans, pauses and traffic."""
    with text_hosts((1.0, 1.0), say) as made:
        for split in settings.splits:
            with made.serving(LANGUAGE, context=settings.context, strategy=split) as deployed:
                yield from _grow(made, deployed, split, settings)


def _grow(made: TextHosts, deployed: Deployed, split: str, settings: StateSettings) -> Iterator[Figure]:
    # The tokens are read, and not generated, as a text would end before: a prompt of nearly all of them and some more
    # that are generated, in windows that each continue the text of the one before.
    text = deployed.encode(" ".join(TEXTS))
    text = (text * (settings.grown // len(text) + 1))[: settings.grown]
    plans: set[str] = set()
    longer, per_token = [], []
    window = settings.window
    for at in (40, settings.grown // 2, settings.grown - window):
        made.ask(deployed, [text[:at]], 1)
        before = made.sent_bytes()
        told = made.ask(deployed, [text[: at + 1]], window)[0]
        check(told)
        plans |= made.plans(deployed.name)
        longer.append(max(told.gaps_s) - told.median_gap_s)
        per_token.append((made.sent_bytes() - before) / len(told.tokens))
        made.say(f"at {at} tokens: {per_token[-1] / 1e3:.1f} kB a token, {told.median_gap_s * 1e3:.1f} ms")
    case = f"{LANGUAGE} on {len(deployed.devices)} hosts by {split}"
    longest = f"{case}: by how much the longest time between two tokens is longer than the median"
    yield at_most("growth", longest, max(longer) * 1e3, 100, "{:.0f} ms")
    yield at_most("growth", f"{case}: plans up to {settings.grown} tokens", len(plans), 3, "{:.0f}")
    yield at_most("traffic", f"{case}: bytes a token, at 40 tokens", per_token[0], TRAFFIC_BYTES, "{:,.0f}")
    flat = per_token[-1] / per_token[0]
    yield at_most("traffic", f"{case}: at {settings.grown} tokens, against that", flat, 1.1, "{:.2f}x")


def second_turns(settings: StateSettings, say: Say) -> Iterator[Figure]:
    """Compare the time to the first token of a second turn with that of its new tokens alone."""
    with text_hosts((1.0,), say) as made, made.serving(LANGUAGE, context=1024, sequences=4) as deployed:
        new = deployed.encode(TEXTS[1])
        ratios, cached = [], 0
        for number in range(settings.rounds):
            begin = [9 + number, *(deployed.encode(" ".join(TEXTS)) * 2)[:200]]
            made.ask(deployed, [begin], 30)
            second = made.ask(deployed, [[*begin, *new]], 8)[0]
            alone = made.ask(deployed, [[19 + number, *new[1:]]], 8)[0]
            ratios.append(second.first_s / alone.first_s)
            cached = second.cached_tokens
        ratios.sort()
        yield known("second-turn", f"tokens of {len(begin)} that were not read again", str(cached))
        case = f"time to the first token with {len(begin)} tokens before, against {len(new)} new ones alone"
        yield at_most("second-turn", case, ratios[len(ratios) // 2], 1.3, "{:.2f}x")


def memory_of_states(settings: StateSettings, say: Say) -> Iterator[Figure]:
    """Compare the memory of states with what is predicted, leave many sequences, and begin more than there may be."""
    with text_hosts((1.0, 1.0), say) as made:
        options: dict[str, Any] = {
            "context": settings.context,
            "sequences": SEQUENCES,
            "strategy": settings.splits[0],
        }
        with made.serving(LANGUAGE, **options) as deployed:
            yield from _predicted(made, deployed, settings)
            yield _too_many(made, deployed, settings)
            yield from _left(made, deployed, settings)


def _predicted(made: TextHosts, deployed: Deployed, settings: StateSettings) -> Iterator[Figure]:
    prompts = [[11 + number, *deployed.encode(TEXTS[0])] for number in range(SEQUENCES)]
    made.ask(deployed, prompts[:1], 4)
    before = {name: made.resident_bytes(name) for name in deployed.devices}
    # All at once, so that each has a sequence of its own.
    made.ask(deployed, prompts[1:], 4, at_once=True)
    after = {name: made.resident_bytes(name) for name in deployed.devices}
    taken = sum(after[name] - before[name] for name in before) / (SEQUENCES - 1)
    predicted = deployed.folder.shape.state_bytes(settings.context)
    case = f"states of a sequence of {settings.context} tokens: memory of all hosts, against {predicted / 1e6:.1f} MB"
    off = taken / predicted - 1
    yield Figure("memory", case, f"{taken / 1e6:.1f} MB ({off:+.1%})", "within 5%", abs(off) <= 0.05)


def _too_many(made: TextHosts, deployed: Deployed, settings: StateSettings) -> Figure:
    """Begin one sequence more than there may be, while all others make steps."""
    agent, stopped = made.made.running.first, Event()
    begun = Barrier(SEQUENCES + 1)

    def keep_stepping(number: int) -> None:
        with Steps(agent, deployed.name) as steps:
            _step(steps, settings, number, 0)
            begun.wait(BEGUN_S)
            position = 1
            while not stopped.is_set():
                _step(steps, settings, number, position)
                position += 1

    with ThreadPoolExecutor(SEQUENCES) as pool:
        others = [pool.submit(keep_stepping, number) for number in range(1, SEQUENCES + 1)]
        try:
            begun.wait(BEGUN_S)
            with Steps(agent, deployed.name) as steps:
                _step(steps, settings, SEQUENCES + 1, 0)
            got = "all were taken"
        except InferenceServerException as error:
            got = f"{error.status()} for the last"
        finally:
            stopped.set()
        broken = [str(one.exception()) for one in others if one.exception() is not None]
    if broken:
        got += f"; {len(broken)} of the others broke: {broken[0][:100]}"
    case = f"{SEQUENCES + 1} sequences that make steps, where {SEQUENCES} may be"
    return Figure("memory", case, got, "503 for the last", got == "503 for the last")


def _step(steps: Steps, settings: StateSettings, sequence: int, position: int) -> None:
    mask = np.zeros((1, settings.context), np.int64)
    mask[:, : position + 1] = 1
    inputs = {"input_ids": np.array([[5]]), "attention_mask": mask}
    steps.step(sequence, inputs, "logits", start=position == 0)


def _left(made: TextHosts, deployed: Deployed, settings: StateSettings) -> Iterator[Figure]:
    """Begin many texts, and ask nothing more of them. What hosts load later than a plan is loaded before."""
    made.wait_until_loaded(deployed.name)
    few = 5 * SEQUENCES
    made.ask(deployed, [[50 + number, 60, 70] for number in range(few)], 2)
    before = {name: made.resident_bytes(name) for name in made.names}
    grown, broken = [], 0
    for half in range(2):
        first = half * settings.left // 2
        prompts = [[100 + first + number, 61, 71] for number in range(settings.left // 2)]
        told = made.ask(deployed, prompts, 2)
        broken += sum(bool(one.error) for one in told)
        grown.append(max(made.resident_bytes(name) - before[name] for name in made.names))
    case = f"{settings.left} texts begun and left"
    yield at_most("memory", f"{case}: memory of a host", grown[1] / 1e6, GROWN / 1e6, "{:.1f} MB more")
    yield known("memory", f"{case}: memory of a host after the first half", f"{grown[0] / 1e6:.1f} MB more")
    yield Figure("memory", f"{case}: texts that broke", str(broken), "0", broken == 0)
