"""What `edgepart devices` says of engines."""

from __future__ import annotations

from edgepart.cli.status import _engines

PLAIN = {"devices": [{"name": "a"}]}


def test_boxes_without_engines_say_nothing() -> None:
    assert list(_engines(PLAIN)) == []


def test_engines_and_what_is_left_out_and_refused_are_said_with_their_reasons() -> None:
    engine = {"name": "cuda", "provider": "CUDAExecutionProvider", "flops_per_s": 2e12}
    rounding = {"name": "npu", "provider": "Some", "flops_per_s": 1e12, "precision": "float16"}
    document = {
        "devices": [{"name": "a", "engines": [engine, rounding]}, {"name": "b"}],
        "engines_left_out": {"b": {"tensorrt": "it crashes: SIGSEGV"}},
        "engines_refused": {
            "a": [
                {"engine": "cuda", "outcome": "lies", "why": "by much"},
                {"engine": "cuda", "outcome": "hangs", "why": "for 30 s"},
            ]
        },
    }
    assert list(_engines(document)) == [
        "a has cuda: 2000 GFLOP/s (CUDAExecutionProvider)",
        "a has npu: 1000 GFLOP/s in float16 (Some)",
        "b does without tensorrt: it crashes: SIGSEGV",
        "a computes 2 segments without cuda, which hangs: for 30 s",
    ]
