"""Every attribute of every declared operator of ONNX is drawn with more than one value by some law, or has a reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx.defs
import pytest

from edgepart.planner.access.registry import DECLARED
from tests.planner.access.census import Drawn, census, values

HANDED_ON = "the local node gets it as it is, whatever is cut"
TRAINING = "it matters in training only, which is opaque"
EIGHT_BIT_FLOATS = "it matters to floats of eight bits only, of which numpy and the runtime exchange none"
ONE_VALUE = "the runtime takes one value only"
LATER = "it is of an opset that the runtime does not take yet"

EXCUSED = {
    ("BatchNormalization", "momentum"): TRAINING,
    ("BatchNormalization", "training_mode"): TRAINING,
    ("Cast", "round_mode"): EIGHT_BIT_FLOATS,
    ("Cast", "saturate"): EIGHT_BIT_FLOATS,
    ("CastLike", "round_mode"): EIGHT_BIT_FLOATS,
    ("CastLike", "saturate"): EIGHT_BIT_FLOATS,
    ("Dropout", "seed"): TRAINING,
    ("GRU", "activation_alpha"): HANDED_ON,
    ("GRU", "activation_beta"): HANDED_ON,
    ("GRU", "clip"): HANDED_ON,
    ("GRU", "hidden_size"): HANDED_ON,
    ("GroupNormalization", "stash_type"): ONE_VALUE,
    ("LayerNormalization", "stash_type"): ONE_VALUE,
    ("LinearAttention", "chunk_size"): HANDED_ON,
    ("LinearAttention", "scale"): HANDED_ON,
    ("MaxRoiPool", "pooled_shape"): HANDED_ON,
    ("MaxRoiPool", "spatial_scale"): HANDED_ON,
    ("MaxUnpool", "kernel_shape"): HANDED_ON,
    ("MaxUnpool", "pads"): HANDED_ON,
    ("MaxUnpool", "strides"): HANDED_ON,
    ("QuantizeLinear", "precision"): ONE_VALUE,
    ("QuantizeLinear", "saturate"): EIGHT_BIT_FLOATS,
    ("RMSNormalization", "stash_type"): ONE_VALUE,
    ("RNN", "activation_beta"): HANDED_ON,
    ("Range", "stash_type"): LATER,
    ("SpaceToDepth", "mode"): LATER,
    ("StringNormalizer", "case_change_action"): HANDED_ON,
    ("StringNormalizer", "locale"): HANDED_ON,
    ("TfIdfVectorizer", "max_gram_length"): HANDED_ON,
    ("TfIdfVectorizer", "pool_strings"): HANDED_ON,
    ("Resize", "extrapolation_value"): "it matters to regions of interest only, which are opaque",
}
"""What no law draws, and why that hides nothing."""


@pytest.fixture(scope="module")
def drawn() -> Drawn:
    return census(sorted(Path(__file__).parent.glob("test_law_*.py")))


def _attributes() -> Iterator[tuple[str, onnx.defs.OpSchema.Attribute]]:
    """Of the latest version of each declared operator that ONNX has."""
    for domain, op_type in sorted(DECLARED):
        if domain == "" and onnx.defs.has(op_type):
            for attribute in onnx.defs.get_schema(op_type).attributes.values():
                yield op_type, attribute


@pytest.mark.nightly
def test_attributes_are_drawn_with_several_values(drawn: Drawn) -> None:
    seen = {(op_type, one.name): values(drawn, op_type, one) for op_type, one in _attributes()}
    missed = {key: sorted(map(repr, found)) for key, found in seen.items() if len(found) < 2}
    assert not {key: found for key, found in missed.items() if key not in EXCUSED}


def test_every_excuse_is_of_an_attribute_that_there_is() -> None:
    assert not set(EXCUSED) - {(op_type, attribute.name) for op_type, attribute in _attributes()}


@pytest.mark.nightly
def test_the_census_sees_what_a_law_draws_at_random(drawn: Drawn) -> None:
    """Groups of convolutions are drawn inside of a test; kernels of pools in a strategy; epsilons are given."""
    schema = onnx.defs.get_schema("Conv").attributes
    assert values(drawn, "Conv", schema["group"]) >= {1, 2, 3}
    assert len(values(drawn, "MaxPool", onnx.defs.get_schema("MaxPool").attributes["kernel_shape"])) > 3
    norm = onnx.defs.get_schema("LayerNormalization").attributes
    assert values(drawn, "LayerNormalization", norm["axis"]) >= {-1, 1, 2}
    assert len(values(drawn, "LayerNormalization", norm["stash_type"])) == 1
