"""The law for transforms of signals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.region import Region
from tests.planner.access.law import Case, check_any_region, check_whole, declared, floats
from tests.planner.access.node_cases import node_cases


def _number(value: int) -> np.ndarray[tuple[()], np.dtype[np.int64]]:
    return np.asarray(value, np.int64)


CASES = [
    Case("DFT", [floats(2, 6, 5, 1)], version=17),
    Case("DFT", [floats(2, 6, 5, 2), _number(4)], {"axis": -2}, version=17),
    Case("DFT", [floats(2, 6, 5, 2)], {"axis": 0, "inverse": 1}, version=17),
    Case("DFT", [floats(3, 6, 1)], {"onesided": 1}, version=20),
    Case("DFT", [floats(3, 6, 2), _number(8), _number(0)], version=20, constants=frozenset({2})),
    Case("DFT", [floats(3, 4, 2), None, _number(-2)], {"inverse": 1, "onesided": 1}, 20, constants=frozenset({2})),
    Case("DFT", [floats(4, 1).astype(np.float64), _number(6)], {"onesided": 1}, version=20),
    Case("STFT", [floats(2, 20, 1), _number(3), floats(6, low=0.1)], constants=frozenset({1})),
    Case("STFT", [floats(2, 21, 1), _number(4), None, _number(8)], constants=frozenset({1, 3})),
    Case("STFT", [floats(2, 20, 1), _number(5), floats(4, low=0.1), _number(4)], {"onesided": 0},
         constants=frozenset({1, 3})),
    Case("STFT", [floats(2, 16, 2), _number(4), None, _number(8)], {"onesided": 0}, constants=frozenset({1})),
    Case("STFT", [floats(3, 16, 1), _number(4), None, _number(8)], constants=frozenset({3})),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{CASES[n].op_type}-{n}")
@settings(max_examples=6)
@given(data=st.data())
def test_case(number: int, data: st.DataObject) -> None:
    check_any_region(declared(CASES[number]), data)


@pytest.mark.parametrize("op_type", ["DFT", "STFT"])
@settings(max_examples=2)
@given(data=st.data())
def test_cases_of_the_onnx_project(op_type: str, data: st.DataObject) -> None:
    for case in node_cases(op_type).values():
        check_any_region(declared(case), data, tries=2)


def test_what_can_be_cut() -> None:
    names = [[axis.name for axis in declared(case).access.axes()] for case in CASES]
    assert names == [
        ["batch", "height"], ["batch", "channel"], ["channel", "height"], ["batch"], ["sequence"], ["batch"], [],
        ["batch", "sequence"], ["batch", "sequence"], ["batch", "sequence"], ["batch"], ["batch"],
    ]  # fmt: skip


def test_frames_read_what_is_under_them() -> None:
    signal, *rest = declared(CASES[7]).access.needs({0: Region.box((1, 2), (2, 4), (0, 4), (0, 2))})
    assert signal == Region.box((1, 2), (6, 15), (0, 1))
    assert rest == [Region(()), Region.box((0, 6))]


def test_an_axis_of_run_time_makes_it_whole() -> None:
    access = check_whole(Case("DFT", [floats(3, 6, 2), _number(6), _number(0)], version=20)).access
    assert access.opaque == "its axis is known only at run time"


OPERATORS = frozenset({"DFT", "STFT"})
