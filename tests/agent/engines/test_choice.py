"""Choice: which engines are tried, and what is said of the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.engines.catalogue import FLOAT32, KINDS, NEVER, kind_of, own_name, provider_options
from edgepart.agent.engines.choice import choose, parse_providers
from edgepart.planner.errors import UsageError

CPU = "CPUExecutionProvider"
AZURE = "AzureExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
CUDA = "CUDAExecutionProvider"
PROVIDERS = sorted({kind.provider for kind in KINDS} | {CPU, AZURE, "LabExecutionProvider"})


def names(text: str, available: list[str]) -> list[str]:
    return [kind.name for kind in choose(parse_providers(text), available).tried]


@pytest.mark.parametrize(
    ("text", "available", "tried"),
    [
        ("auto", [CPU], []),
        ("auto", [AZURE, CPU], []),
        ("auto", [OPENVINO, CPU], ["openvino-cpu", "openvino-gpu"]),
        ("auto", [CUDA, OPENVINO, CPU], ["openvino-cpu", "openvino-gpu", "cuda"]),
        ("cpu", [CUDA, CPU], []),
        ("openvino", [OPENVINO, CPU], ["openvino-cpu", "openvino-gpu"]),
        ("openvino-npu,cuda", [OPENVINO, CUDA, CPU], ["openvino-npu", "cuda"]),
        ("cpu,cuda-tf32", [CUDA, CPU], ["cuda-tf32"]),
        ("lab", ["LabExecutionProvider", CPU], ["lab"]),
    ],
)
def test_what_is_tried(text: str, available: list[str], tried: list[str]) -> None:
    assert names(text, available) == tried


def test_auto_says_of_everything_that_it_leaves_out_why() -> None:
    found = choose(("auto",), [CUDA, "LabExecutionProvider", AZURE, CPU])
    assert [kind.name for kind in found.tried] == ["cuda"]
    assert found.left_out == {
        "cuda-tf32": "it computes in tf32; name it with --providers to have it",
        "lab": "nothing is known of LabExecutionProvider; name it with --providers lab to have it tried",
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("openvino", "onnxruntime-openvino"),
        ("cuda", "pip install 'edgepart[gpu]'"),
        ("xnnpack", "build ONNX Runtime with it"),
        ("lab", "ONNX Runtime calls it LabExecutionProvider"),
    ],
)
def test_what_is_asked_for_and_missing_is_an_error_that_says_what_to_install(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=f"--providers {text}: .*it has cpu") as raised:
        choose(parse_providers(text), [CPU])
    assert says in str(raised.value)


def test_nothing_is_sent_to_a_service_even_if_it_is_asked_for() -> None:
    with pytest.raises(UsageError, match="service on the internet"):
        choose(("azure",), [AZURE, CPU])


@pytest.mark.parametrize("text", ["", ",", "cuda,", "auto,cuda", "cu da", "-", "../x", "a" * 99])
def test_what_is_no_list_of_names_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(UsageError, match="--providers"):
        parse_providers(text)


@given(st.sets(st.sampled_from(PROVIDERS)).map(lambda found: sorted({*found, CPU})))
def test_auto_tries_only_what_is_there_and_rounds_nothing_and_accounts_for_the_rest(
    available: list[str],
) -> None:
    found = choose(("auto",), available)
    assert all(kind.provider in available and kind.precision == FLOAT32 for kind in found.tried)
    assert not {kind.provider for kind in found.tried} & {*NEVER, CPU}
    told = {kind.provider for kind in found.tried} | {kind_of(name).provider for name in found.left_out}
    told |= {provider for provider in available if own_name(provider) in found.left_out}
    assert {*available} - {CPU, *NEVER} == told - {CPU, *NEVER} and not told & {CPU, *NEVER}


def test_the_catalogue_keeps_its_own_rules() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    for kind in KINDS:
        assert kind.provider.endswith("ExecutionProvider") and kind.provider not in NEVER
        assert kind.install
        assert all("{" not in value for value in provider_options(kind, 3).values())
    assert provider_options(kind_of("openvino-cpu"), 3)["num_of_threads"] == "3"
