"""Calibration: from the times of trials to the speeds of families and kinds of operators. Rules: how a trial is run is an
argument, so the CPU and every engine are calibrated by the same arithmetic.

The time of one operator on one element is the fixed cost of a run, and is subtracted from all others. The times that are
subtracted are measured again and again: if they were measured once, a disturbance would make short trials seem to take no
time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain

from edgepart.agent.measure.probe_models import FAMILIES, LONG_CHAIN, ONE_CONV, TWO_CONVS, Trial, chain_trial

_ANEW = 8
"""Number of trials after which the trials whose times are subtracted from others are measured again."""

BestTime = Callable[[Trial], float | None]
"""Returns the shortest time of a run of the trial, in seconds; None if it cannot be run."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The speeds that trials showed."""

    families: Mapping[str, float]
    """FLOP/s by family. A family whose trial cannot be run is missing; so is a kind in `moves`."""
    moves: Mapping[str, float]
    """Bytes/s, read and written, by kind."""
    kernel_s: float
    """The fixed cost of each operator."""
    one_s: float
    """Seconds of a run of one operator on one element: the fixed cost of a run."""


def calibrate(best_s: BestTime, tried: Mapping[str, Trial]) -> Calibration:
    """The speeds of all families, and of the kinds `tried`."""
    one, chained = chain_trial(1), chain_trial(LONG_CHAIN)
    taken_s = _take(best_s, (one, ONE_CONV, TWO_CONVS), (chained, *tried.values(), *FAMILIES.values()))
    one_s = taken_s.get(id(one), 0.0)
    kernel_s = max(0.0, taken_s[id(chained)] - one_s) / (LONG_CHAIN - 1) if id(chained) in taken_s else 0.0

    def own_s(trial: Trial, besides_s: float = 0.0) -> float:
        """Seconds that the trial took, less the fixed costs and `besides_s`; at least a tenth of all that it took."""
        took_s = taken_s[id(trial)]
        return max(took_s - one_s - besides_s, took_s / 10)

    moves = {name: trial.nbytes / own_s(trial) for name, trial in tried.items() if id(trial) in taken_s}
    border = 0.0
    if moves and {id(ONE_CONV), id(TWO_CONVS)} <= taken_s.keys():
        moves["border"] = border = _border(own_s, max(moves.values()))
    families = {
        name: trial.flops / own_s(trial, trial.border / border if border else 0.0)
        for name, trial in FAMILIES.items()
        if id(trial) in taken_s
    }
    return Calibration(families, moves, kernel_s, one_s)


def _take(best_s: BestTime, common: tuple[Trial, ...], trials: tuple[Trial, ...]) -> dict[int, float]:
    """The seconds of all trials that can be run, by the trial's id; `common` ones are measured again between the others."""
    taken_s: dict[int, float] = {}
    groups = ((*common, trial) if number % _ANEW == 0 else (trial,) for number, trial in enumerate(trials))
    failed: set[int] = set()
    for trial in chain.from_iterable(groups):
        if id(trial) in failed:
            continue
        if (seconds := best_s(trial)) is None:
            failed.add(id(trial))
        else:
            taken_s[id(trial)] = min(taken_s.get(id(trial), float("inf")), seconds)
    return taken_s


def _border(own_s: Callable[[Trial], float], most: float) -> float:
    """The bytes/s, read and written, at which values are brought into the order of convolutions and back; `most` if no
    time for that can be measured."""
    taken_s = 2 * own_s(ONE_CONV) - own_s(TWO_CONVS)
    return ONE_CONV.border / max(taken_s, ONE_CONV.border / most)
