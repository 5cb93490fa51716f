"""The engine that is made up: what its variable says, and that nothing is without faults unnoticed."""

from __future__ import annotations

import pytest

from edgepart.cli.emulation.lab_engine import LabEngine, engine_of


def test_an_engine_is_described_in_one_variable() -> None:
    found = engine_of("lab,lacks=MatMul|Softmax,conv=2,other=16,crashes=Relu,lies=Add@3,fails=Conv@/tmp/now")
    assert found == LabEngine(
        "lab",
        frozenset({"MatMul", "Softmax"}),
        {"crashes": ("Relu", 0), "lies": ("Add", 3), "fails": ("Conv", "/tmp/now")},
        {"conv": 2.0, "other": 16.0},
    )
    assert found.provider == "LabExecutionProvider"
    assert found.factor(frozenset({"Conv", "Relu"})) == 2.0
    assert found.factor(frozenset({"Relu"})) == 16.0
    assert engine_of("lab").factor(frozenset({"Conv"})) is None


@pytest.mark.parametrize(
    "text", ["", ",conv=2", "la b", "lab,conv", "lab,conv=fast", "lab,crashes=Relu@often", "lab,bends=Relu"]
)
def test_what_describes_no_engine_ends_the_process(text: str) -> None:
    with pytest.raises(SystemExit, match="EDGEPART_LAB_ENGINE"):
        engine_of(text)
