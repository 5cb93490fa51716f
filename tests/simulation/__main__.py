"""`python -m tests.simulation`: plays many seeds, or one with its trace; or a large cluster that loses a
third of its boxes."""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from itertools import chain, groupby
from pathlib import Path

from tests.simulation.branch import branch
from tests.simulation.cluster import SimNet
from tests.simulation.play import SHARED, Outcome, begun, go_on, play
from tests.simulation.schedule import LARGE
from tests.simulation.third import lose_a_third
from tests.simulation.trace import Broken, Trace

CHUNK = 10
"""Seeds that a process plays at a time."""


def attempt(seeds: Iterable[int], agents: int) -> list[Outcome | str]:
    """Play the seeds; return the outcome of each, or why it failed."""
    found: list[Outcome | str] = []
    with collecting_seldom():
        for same in _alike(seeds, agents):
            net = begun(same[0], agents)
            if len(same) == 1:
                found.append(_attempt(net, same[0]))
            else:
                found += [branch(partial(_attempt, net, seed)) for seed in same]
            if len(found) % CHUNK == 0:
                gc.collect()
    return found


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """Switch garbage collection off in the block. A cluster is garbage only as a whole, and collecting
    meanwhile would take a sixth of the time."""
    enabled = gc.isenabled()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


def _alike(seeds: Iterable[int], agents: int) -> Iterator[list[int]]:
    """Yield runs of successive seeds that begin alike."""
    for _, alike in groupby(seeds, lambda seed: seed // SHARED if agents >= LARGE else seed):
        yield list(alike)


def _attempt(net: SimNet, seed: int) -> Outcome | str:
    try:
        return go_on(net, seed)
    except Broken as error:
        again = f"python -m tests.simulation --seed {seed} --agents {len(net.boxes)} --trace"
        return "\n".join([*net.trace.lines[-25:], str(error), f"again: {again}"])


def many(seeds: range, agents: int, processes: int) -> Iterator[Outcome | str]:
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    work = partial(attempt, agents=agents)
    if processes == 1:
        yield from chain.from_iterable(map(work, chunks))
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from chain.from_iterable(pool.map(work, chunks))


def summary(outcomes: list[Outcome], failures: list[str], agents: int, took_s: float) -> dict[str, object]:
    settled = sorted(outcome.settled_s for outcome in outcomes) or [0.0]
    return {
        "agents": agents,
        "seeds": len(outcomes) + len(failures),
        "failed_seeds": len(failures),
        "settled_s_median": round(statistics.median(settled), 2),
        "settled_s_p99": round(settled[int(len(settled) * 0.99)], 2) if len(settled) > 1 else settled[0],
        "settled_s_max": round(settled[-1], 2),
        "virtual_s": round(sum(o.virtual_s for o in outcomes), 1),
        "messages": sum(o.messages for o in outcomes),
        "requests_answered": sum(o.answered for o in outcomes),
        "requests_failed_after_their_deadline": sum(o.failed for o in outcomes),
        "requests_refused": sum(o.refused for o in outcomes),
        "requests_whose_gateway_died": sum(o.orphaned for o in outcomes),
        "replays": sum(o.replays for o in outcomes),
        "steps_of_sequences_answered": sum(o.steps for o in outcomes),
        "sequences_made_again": sum(o.replayed_sequences for o in outcomes),
        "tokens_of_texts": sum(o.tokens for o in outcomes),
        "blocks_of_prompts_read": sum(o.blocks for o in outcomes),
        "requests_of_several_texts": sum(o.batches for o in outcomes),
        "texts_read_again": sum(o.replayed_texts for o in outcomes),
        "texts_gone_on_with_carried_states": sum(o.resumed_texts for o in outcomes),
        "took_s": round(took_s, 1),
    }


def together(slices: Sequence[Mapping[str, float]]) -> dict[str, object]:
    """Return the combined table of slices of one run: sums, but maxima of the settling times."""
    if len({part["agents"] for part in slices}) != 1:
        raise SystemExit("these are not slices of one run: their numbers of agents differ")
    return {
        name: max(part[name] for part in slices)
        if name == "agents" or name.startswith("settled")
        else round(sum(part[name] for part in slices), 1)
        for name in slices[0]
    }


def show(table: dict[str, object], path: Path | None) -> None:
    for name, value in table.items():
        print(f"{name.replace('_', ' '):40} {value}")
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(table, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--agents", type=int, default=5)
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--trace", action="store_true", help="show all that happens, messages too")
    parser.add_argument(
        "--third", action="store_true", help="--agents find each other, and lose a third at once"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--together", type=Path, nargs="+", metavar="JSON", help="what runs of other seeds each wrote, as one"
    )
    asked = parser.parse_args()
    if asked.together:
        show(together([json.loads(path.read_text()) for path in asked.together]), asked.json)
        return
    if asked.third:
        with collecting_seldom():
            show(lose_a_third(asked.agents, asked.seed or 0), asked.json)
        return
    if asked.seed is not None:
        trace = Trace(print if asked.trace else None)
        show(asdict(play(asked.seed, asked.agents, trace)), asked.json)
        return
    began, outcomes, failures = time.monotonic(), [], []
    for found in many(range(asked.first, asked.first + asked.seeds), asked.agents, asked.processes):
        if isinstance(found, str):
            failures.append(found)
            print(found, end="\n\n", file=sys.stderr, flush=True)
        else:
            outcomes.append(found)
    show(summary(outcomes, failures, asked.agents, time.monotonic() - began), asked.json)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
