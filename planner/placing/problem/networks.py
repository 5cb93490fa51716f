"""Networks that guide placers, as the placers see them. Facts, and rules that read and write a network's card.

Nothing here runs a network: who starts a search hands in something that does, as it hands in a clock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from numpy.typing import NDArray

from edgepart.planner.errors import ModelError
from edgepart.planner.json_text import parse_json

KEY = "edgepart.card"
"""The key of the card among the metadata of the network's ONNX file."""


@dataclass(frozen=True)
class NetworkCard:
    """What a network is, and how it was trained. It lies in the network's ONNX file."""

    placer: str
    """The placer that it guides."""
    machines: int
    """The number of machines that it places on; 0 if it places on any number."""
    families: tuple[str, ...]
    """The families of graphs that it was trained on (planner/learning/training/families.py), or names of workloads."""
    seed: int
    """What all chance in its training came from."""
    data_digest: str
    """A digest of the graphs that it was trained on."""
    trained_on: str
    """The date, YYYY-MM-DD."""
    command: str
    """The command that trained it."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Figures on graphs that it was not trained on, by what they are."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the placer has to know of the network in addition, by name."""

    @property
    def metadata(self) -> dict[str, str]:
        """The card as metadata of an ONNX file."""
        return {KEY: json.dumps(asdict(self), sort_keys=True)}


def read_card(metadata: Mapping[str, str], where: str) -> NetworkCard:
    """Return the card in the metadata of an ONNX file, which `where` names. Raises ModelError if there is none, or if it is
    not as `NetworkCard` has it."""
    text = metadata.get(KEY)
    if text is None:
        raise ModelError(f"{where}: not a network that `edgepart train` made: it has no card ({KEY})")
    try:
        found = parse_json(text)
        card = NetworkCard(**{**found, "families": tuple(found["families"])})
        sound = (
            isinstance(card.placer, str)
            and isinstance(card.machines, int)
            and isinstance(card.options, Mapping)
            and isinstance(card.scores, Mapping)
        )
    except (ValueError, TypeError, KeyError) as error:
        raise ModelError(f"{where}: its card ({KEY}) cannot be read: {error}") from error
    if not sound:
        raise ModelError(f"{where}: its card ({KEY}) has values of wrong types")
    return card


@dataclass(frozen=True)
class NeuralNetwork:
    """A trained network that can be run."""

    card: NetworkCard
    run: Callable[[Mapping[str, NDArray[Any]]], Sequence[NDArray[Any]]]
    """Returns the outputs, in the network's order, for inputs by name."""


Networks = Callable[[str], NeuralNetwork]
"""Returns the network of the placer of that name. Raises NotInstalled if there is none, and ModelError if it cannot be
used."""
