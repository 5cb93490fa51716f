"""Trials of text generation: hosts are killed in the middle of a text, and the text is compared with the undisturbed one.
Door: the laboratory, the clock and chance.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.generation_asking import read_told
from benchmarks.generation_bare import BareDecoder
from benchmarks.generation_hosts import Deployed, Say, TextHosts, text_hosts
from benchmarks.generation_prompts import TEXTS
from benchmarks.generation_report import Figure, Loss, judge_losses, judge_mirrored
from edgepart.planner.errors import InternalError

PART, MIRROR = "kill", "mirror"
LANGUAGE = "smollm2_genai_float32"
CONTEXT = 256
LEADER, FOLLOWER = "leader", "follower"
LOOK_S = 0.01
WITHIN_S = 300.0
PROMPTS, PROMPT_TOKENS = 4, 12
MIRRORED_TOKENS, MIRRORED_ANSWER = 2000, 60
"""The tokens of a history that is mirrored, and of what follows."""
CAUGHT_UP_S = 20.0
"""Seconds in which the copies of a history of that length are brought up to date."""


@dataclass(frozen=True)
class LossSettings:
    """How much is tried."""

    kills: int = 100
    hosts: int = 3
    tokens: int = 80
    mirrored_kills: int = 10
    strategy: str = "pipeline"
    language: str = LANGUAGE
    seed: int = 0


def killed_hosts(settings: LossSettings, say: Say) -> Iterator[Figure]:
    """Kill hosts, one in each text, that are not the client's gateway; each comes back before the next text."""
    rng = random.Random(settings.seed)
    with (
        text_hosts((1.0,) * settings.hosts, say) as made,
        made.serving(settings.language, context=CONTEXT, strategy=settings.strategy) as deployed,
    ):
        prompts = [deployed.encode(text)[:PROMPT_TOKENS] for text in TEXTS[:PROMPTS]]
        decoder = BareDecoder(deployed.folder, CONTEXT)
        wanted = [
            tuple(deployed.texts(decoder.continued(prompt, settings.tokens).tokens)) for prompt in prompts
        ]
        long = [number for number, texts in enumerate(wanted) if len(texts) >= settings.tokens // 2]
        step_s = made.ask(deployed, [prompts[long[0]]], settings.tokens)[0].median_gap_s
        losses: list[Loss] = []
        for number in range(settings.kills):
            text = long[number % len(long)]
            after = rng.randrange(3, len(wanted[text]) - 10)
            trial = _Trial(prompts[text], settings.tokens, after, wanted[text])
            losses.append(_kill_once(made, deployed, trial, number, say))
        yield from judge_losses(PART, losses, sum(map(len, prompts)) // len(prompts), step_s)


def mirrored_hosts(settings: LossSettings, say: Say) -> Iterator[Figure]:
    """Kill hosts in the middle of texts with a long history, of which other hosts have copies."""
    rng = random.Random(settings.seed)
    with (
        text_hosts((1.0,) * settings.hosts, say) as made,
        made.serving(
            settings.language,
            context=MIRRORED_TOKENS + 2 * MIRRORED_ANSWER,
            strategy=settings.strategy,
            mirrors=True,
        ) as deployed,
    ):
        words = deployed.encode(" ".join(TEXTS))
        prompt = (words * (1 + MIRRORED_TOKENS // len(words)))[:MIRRORED_TOKENS]
        undisturbed = made.ask(deployed, [prompt], MIRRORED_ANSWER)[0]
        losses: list[Loss] = []
        for number in range(settings.mirrored_kills):
            after = rng.randrange(5, MIRRORED_ANSWER // 2)
            trial = _Trial(prompt, MIRRORED_ANSWER, after, undisturbed.tokens, is_mirrored=True)
            losses.append(_kill_once(made, deployed, trial, number, say))
        yield from judge_mirrored(MIRROR, losses, len(prompt))


@dataclass(frozen=True)
class _Trial:
    """A text in which a host is killed."""

    prompt: Sequence[int]
    tokens: int
    after: int
    """The tokens that have come when the host is killed."""
    wanted: tuple[str, ...]
    is_mirrored: bool = False
    """Whether the prompt is read before, and other hosts have the time to get copies."""


def _kill_once(made: TextHosts, deployed: Deployed, trial: _Trial, number: int, say: Say) -> Loss:
    """Kill a host in the middle of a text, and let it come back."""
    if trial.is_mirrored:
        made.wait_until_loaded(
            deployed.name
        )  # Plans for losses are there, and the victim still computes when it is killed.
    computing = tuple(made.settled(deployed.name)["devices"])
    kind, victim, gateway = _choose(made, computing, (LEADER, FOLLOWER)[number % 2])
    if trial.is_mirrored:
        made.ask(deployed, [trial.prompt], 1, at=gateway)
        time.sleep(CAUGHT_UP_S)
    process, out = made.begin_asking(deployed, [trial.prompt], trial.tokens, at=gateway)
    _wait_for_tokens(out, trial.after)
    killed_s = time.monotonic()
    made.made.lab.kill(victim)
    process.wait(WITHIN_S)
    loss = Loss(kind, read_told(out, 1)[0], trial.wanted, killed_s)
    _start_again(made, victim)
    state = loss.told.error or ("the same" if loss.told.tokens == loss.wanted else "changed")
    what = f"kill {number + 1}, {kind} {victim} of {', '.join(computing)}, after {trial.after} tokens"
    say(f"{what}: {state}, a pause of {loss.pause_s:.2f} s")
    return loss


def _choose(made: TextHosts, computing: Sequence[str], kind: str) -> tuple[str, str, str]:
    """Return what kind of host is killed, its name, and that of one to ask. The leader is killed, or else a host that
    computes a part of the model, if the leader does not compute all of it; the gateway is any other one."""
    leader = str(made.made.running.status(made.made.running.first)["leader"])
    followers = [name for name in computing if name != leader]
    if not followers:
        kind = LEADER
    victim = leader if kind == LEADER else followers[-1]
    return kind, victim, next(name for name in made.names if name != victim)


def _start_again(made: TextHosts, host: str) -> None:
    running = made.made.running
    agent = running.agents[host]
    agent.kill()  # It is dead; this waits for its end.
    agent.start()
    running.wait(lambda: agent.addresses, f"{host} to be up again", agent)
    running.wait_for_members(len(made.names))


def _wait_for_tokens(out: Path, count: int) -> None:
    """Raises InternalError if so many tokens do not come, or the text breaks before."""
    until = time.monotonic() + WITHIN_S
    while time.monotonic() < until:
        try:
            told = read_told(out, 1)[0]
        except ValueError:
            continue  # A line is not complete yet.
        if len(told.tokens) >= count:
            return
        if told.error or told.reason:
            raise InternalError(f"the text ended before a host could be killed: {told.error or told.reason}")
        time.sleep(LOOK_S)
    raise InternalError(f"{count} tokens did not come within {WITHIN_S:.0f} s")
