"""Echoes: there and back between two ends, and every way in which they do not come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Thread
from typing import Any

import numpy as np
import pytest

from edgepart.agent.measure.echoes import Echoes
from edgepart.agent.wire.queries import Echo, Echoed
from edgepart.planner.errors import Unavailable


class Wire:
    """Two ends, "a" and "b"; what goes over is written down."""

    def __init__(self) -> None:
        self.ends = {"a": Echoes(self.sender("a")), "b": Echoes(self.sender("b"))}
        self.went: list[tuple[str, Echo | Echoed, Sequence[Any]]] = []
        self.swallow: Callable[[str, Echo | Echoed], bool] = lambda source, message: False

    def sender(self, source: str) -> Callable[[str, Echo | Echoed, Sequence[Any]], None]:
        def send(target: str, message: Echo | Echoed, values: Sequence[Any]) -> None:
            if target not in self.ends:
                raise Unavailable(f"there is no link to {target} now")
            self.went.append((source, message, values))
            if not self.swallow(source, message):
                self.ends[target].came(source, message, values)

        return send


@contextmanager
def wire() -> Iterator[Wire]:
    made = Wire()
    try:
        yield made
    finally:
        for end in made.ends.values():
            end.stop()


@pytest.mark.parametrize(("nbytes", "count"), [(0, 1), (0, 16), (1000, 3)])
def test_all_come_back_with_what_they_took_along(nbytes: int, count: int) -> None:
    with wire() as between:
        assert between.ends["a"].trip_s("b", nbytes, count, 20.0) > 0
        for source, kind in (("a", Echo), ("b", Echoed)):
            went = [values for who, message, values in between.went if who == source]
            assert len(went) == count
            assert all(type(m) is kind for who, m, _ in between.went if who == source)
            assert all(sum(np.asarray(v).nbytes for v in values) == nbytes for values in went)


@pytest.mark.parametrize(("there", "back"), [(1000, 0), (0, 1000), (1000, 1000)])
def test_an_echo_brings_back_what_it_asks_for(there: int, back: int) -> None:
    with wire() as between:
        between.ends["a"].trip_s("b", there, 2, 20.0, back)
        sizes = {
            who: [
                sum(np.asarray(v).nbytes for v in values)
                for sender, _, values in between.went
                if sender == who
            ]
            for who in "ab"
        }
        assert sizes == {"a": [there] * 2, "b": [back] * 2}


def test_an_echo_counts_only_from_whom_it_was_asked() -> None:
    with wire() as between:
        between.swallow = lambda source, message: source == "b"
        asking = between.ends["a"]
        asking.came("c", Echoed(1), [])
        with pytest.raises(Unavailable, match="within 0 s"):
            asking.trip_s("b", 0, 1, 0.01)
        asking.came("b", Echoed(1), [])  # late: nobody waits for it


def test_where_there_is_no_link_it_is_said_at_once() -> None:
    with wire() as between, pytest.raises(Unavailable, match="no link to z"):
        between.ends["a"].trip_s("z", 0, 1, 20.0)


@pytest.mark.parametrize(
    ("end", "said"),
    [(lambda echoes: echoes.lost("b"), "link to b went down"), (lambda echoes: echoes.stop(), "stops")],
)
def test_whoever_waits_is_told_of_the_end(end: Callable[[Echoes], None], said: str) -> None:
    with wire() as between:
        asking = between.ends["a"]

        def swallow(source: str, message: Echo | Echoed) -> bool:
            if source == "a":
                Thread(target=end, args=(asking,)).start()
            return True

        between.swallow = swallow
        with pytest.raises(Unavailable, match=said):
            asking.trip_s("b", 0, 1, 20.0)


def test_an_asker_that_is_gone_ends_no_answering() -> None:
    with wire() as between:
        between.ends["b"].came("z", Echo(1), [])
        assert between.ends["a"].trip_s("b", 0, 1, 20.0) > 0
