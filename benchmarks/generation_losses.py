"""Trials of text generation: hosts are killed in the middle of a text, and the text is compared with the undisturbed one.
Door: the laboratory, the clock and chance.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.generation_asking import read_told
from benchmarks.generation_bare import BareDecoder
from benchmarks.generation_hosts import Deployed, Say, TextHosts, text_hosts
from benchmarks.generation_prompts import TEXTS
from benchmarks.generation_report import Figure, Loss, judge_losses
from edgepart.planner.errors import InternalError

PART = "kill"
LANGUAGE = "smollm2_genai_float32"
CONTEXT = 256
LEADER, FOLLOWER = "leader", "follower"
LOOK_S = 0.01
WITHIN_S = 300.0
PROMPT_TOKENS = 12


@dataclass(frozen=True)
class LossSettings:
    """How much is tried."""

    kills: int = 100
    hosts: int = 3
    tokens: int = 80
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
        prompts = [deployed.encode(text)[:PROMPT_TOKENS] for text in TEXTS]
        decoder = BareDecoder(deployed.folder, CONTEXT)
        wanted = [
            tuple(deployed.texts(decoder.continued(prompt, settings.tokens).tokens)) for prompt in prompts
        ]
        long = [number for number, texts in enumerate(wanted) if len(texts) >= settings.tokens // 2]
        step_s = made.ask(deployed, [prompts[long[0]]], settings.tokens)[0].median_gap_s
        losses: list[Loss] = []
        for number in range(settings.kills):
            made.settled(deployed.name)
            text = long[number % len(long)]
            after = rng.randrange(3, len(wanted[text]) - 10)
            kind = (LEADER, FOLLOWER)[number % 2]
            loss = _kill(made, deployed, prompts[text], wanted[text], kind, after, settings.tokens)
            losses.append(loss)
            state = loss.told.error or ("the same" if loss.told.tokens == loss.wanted else "changed")
            say(f"kill {number + 1}, {kind}, after {after} tokens: {state}, a pause of {loss.pause_s:.2f} s")
        yield from judge_losses(PART, losses, sum(map(len, prompts)) // len(prompts), step_s)


def _kill(
    made: TextHosts,
    deployed: Deployed,
    prompt: list[int],
    wanted: tuple[str, ...],
    kind: str,
    after: int,
    most: int,
) -> Loss:
    """Kill a host when so many tokens have come, wait for the end of the text, and start the host again."""
    running = made.made.running
    leader = str(running.status(running.first)["leader"])
    others = [name for name in made.names if name != leader]
    # The gateway may be any host but the victim.
    victim, gateway = (leader, others[0]) if kind == LEADER else (others[-1], others[0])
    process, out = made.begin_asking(deployed, [prompt], most, at=gateway)
    _wait_for_tokens(out, after)
    killed_s = time.monotonic()
    running.agents[victim].kill()
    made.made.lab.kill(victim)
    process.wait(WITHIN_S)
    told = read_told(out, 1)[0]
    running.agents[victim].start()
    running.wait(lambda: running.agents[victim].addresses, f"{victim} to be up again", running.agents[victim])
    running.wait_for_members(len(made.names))
    return Loss(kind, told, wanted, killed_s)


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
