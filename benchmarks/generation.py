"""What text generation promises, measured in the laboratory (as root): answers, speed, traffic, memory, and what happens
when hosts die in the middle of a text.

    python -m benchmarks.generation [--only same-answer,kill] [--json results/generation.json] [--markdown]

Hosts have links of 1 Gbit/s and mutual TLS. Each figure stands beside what it should be. With --json, the figures of other
parts that were measured before are kept and printed too, each with its commit. Nothing here fails because of a figure.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.lab.hosts import LabError

from benchmarks.generation_answers import (
    SPLITS,
    AnswerSettings,
    detector_answers,
    quantised_answers,
    same_answers,
)
from benchmarks.generation_hosts import Say
from benchmarks.generation_losses import LossSettings, killed_hosts, mirrored_hosts
from benchmarks.generation_report import Figure, documents, merged, tabled
from benchmarks.generation_speed import CASES, SpeedSettings, many_streams, one_device, slow_hosts
from benchmarks.generation_states import StateSettings, growing_texts, memory_of_states, second_turns
from benchmarks.latency import names, numbers
from benchmarks.machine import commit, sentence, show_table
from edgepart.cli.output import note
from edgepart.planner.errors import EdgepartError


@dataclass(frozen=True)
class Settings:
    """How much of everything is tried."""

    answers: AnswerSettings
    speed: SpeedSettings
    losses: LossSettings
    states: StateSettings


Part = Callable[[Settings, Say], Iterator[Figure]]
PARTS: Mapping[str, Part] = {
    "same-answer": lambda how, say: same_answers(how.answers, say),
    "quantised": lambda how, say: quantised_answers(how.answers, say),
    "detector": lambda how, say: detector_answers(how.answers, say),
    "one-device": lambda how, say: one_device(how.speed, say),
    "growth": lambda how, say: growing_texts(how.states, say),
    "speed": lambda how, say: slow_hosts(how.speed, say),
    "kill": lambda how, say: killed_hosts(how.losses, say),
    "mirror": lambda how, say: mirrored_hosts(how.losses, say),
    "second-turn": lambda how, say: second_turns(how.states, say),
    "memory": lambda how, say: memory_of_states(how.states, say),
    "many": lambda how, say: many_streams(how.speed, say),
}
ORDER = (*list(PARTS)[:5], "traffic", *list(PARTS)[5:])
"""The parts in the order of the table. The growth of a text shows its traffic too."""


def settings_of(given: argparse.Namespace) -> Settings:
    """Return the settings for parsed arguments."""
    answers = AnswerSettings(given.prompts, given.tokens, given.hosts, given.splits, given.steps)
    speed = SpeedSettings(given.timed, given.rounds, given.streams, given.cases)
    losses = replace(
        LossSettings(),
        kills=given.kills,
        mirrored_kills=given.mirrored_kills,
        strategy=given.kill_split,
        seed=given.seed,
    )
    states = replace(
        StateSettings(), grown=given.grown, context=given.grown + 96, left=given.left, rounds=given.rounds
    )
    return Settings(answers, speed, losses, states)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--only", type=names, default=tuple(PARTS), help=f"of {','.join(PARTS)}")
    made.add_argument("--prompts", type=int, default=20, help="prompts that are compared")
    made.add_argument("--tokens", type=int, default=200, help="tokens of each that are compared")
    made.add_argument("--hosts", type=numbers, default=(1, 2, 3, 4), help="how many hosts compare, in turn")
    made.add_argument("--splits", type=names, default=SPLITS, help="the strategies that are compared")
    made.add_argument("--steps", type=int, default=10_000, help="steps of the voice activity detector")
    made.add_argument("--timed", type=int, default=60, help="tokens that are timed")
    made.add_argument(
        "--rounds", type=int, default=15, help="turns with the plain loop, and with second turns"
    )
    made.add_argument("--streams", type=int, default=8, help="texts at once")
    made.add_argument(
        "--cases",
        type=lambda text: tuple(text.split(";")),
        default=(),
        help=f"slow hosts to try, of {';'.join(case.key for case in CASES)}",
    )
    made.add_argument("--kills", type=int, default=100)
    made.add_argument("--mirrored-kills", type=int, default=10, help="kills while states are mirrored")
    made.add_argument(
        "--kill-split", default=LossSettings.strategy, help="the strategy while hosts are killed"
    )
    made.add_argument("--seed", type=int, default=0, help="when hosts are killed is made of it")
    made.add_argument("--grown", type=int, default=4000, help="tokens to which a text grows")
    made.add_argument("--left", type=int, default=1000, help="texts that are begun and left")
    made.add_argument("--show", action="store_true", help="measure nothing, and print what --json has kept")
    made.add_argument("--markdown", action="store_true", help="print the table as documents have it")
    made.add_argument("--json", type=Path, help="keep every figure there")
    return made


def measured(parts: Sequence[str], how: Settings) -> Iterator[Figure]:
    """Yield the figures as they are measured. A trial that breaks off is a figure too."""
    for part in parts:
        try:
            for figure in PARTS[part](how, note):
                note(f"{figure.part}: {figure.case}: {figure.found} (aim: {figure.aim or 'none'})")
                yield figure
        except LabError as error:
            sys.exit(f"error: {error}")
        except EdgepartError as error:
            why = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            note(f"{part} broke off: {error}")
            yield Figure(part, "the trial broke off", why, "", False)


def main(given: Sequence[str] | None = None) -> int:
    options = parser().parse_args(given)
    if unknown := set(options.only) - set(PARTS):
        sys.exit(f"error: --only {','.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    how, here = settings_of(options), commit()
    old = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    figures: list[Figure] = []
    for figure in measured(() if options.show else options.only, how):
        figures.append(replace(figure, commit=here))
        if options.json:
            # After each figure, because the whole takes hours and may be stopped.
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(documents(merged(old, figures, ORDER)), indent=1) + "\n")
    print(f"{sentence()}\n")
    show_table(tabled(merged(old, figures, ORDER)), options.markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
