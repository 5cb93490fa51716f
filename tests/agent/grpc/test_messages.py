"""Our messages are those of the protocol: field by field as NVIDIA's client has them, in the same process."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2, service_pb2

from edgepart.agent.gateway.oip_models import NOT_OFFERED
from edgepart.agent.grpc.messages import (
    CLASSES,
    DATA_TYPES,
    RAW_INPUTS,
    RAW_OUTPUTS,
    SERVICE,
    STREAM_RESPONSE,
)

SAME = {
    "TensorMetadata": "ModelMetadataResponse.TensorMetadata",
    "ModelIndex": "RepositoryIndexResponse.ModelIndex",
    "InferRequestedOutputTensor": "ModelInferRequest.InferRequestedOutputTensor",
}
"""Messages that lie inside others in the protocol."""


def theirs(name: str) -> Any:
    """The descriptor of the protocol's message."""
    outer, _, inner = SAME.get(name, name).partition(".")
    module = model_config_pb2 if outer in ("ModelConfig", "ModelInput", "ModelOutput") else service_pb2
    found = module.DESCRIPTOR.message_types_by_name[outer]
    return found.nested_types_by_name[inner] if inner else found


def form(field: Any) -> tuple[Any, ...]:
    """What of a field is seen on the wire."""
    return field.number, field.type, field.is_repeated, field.containing_oneof is not None, is_map(field)


def is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def compare(ours: Any, other: Any) -> None:
    for field in ours.fields:
        known = other.fields_by_name[field.name]
        assert form(field) == form(known), (ours.name, field.name)
        if is_map(field):
            compare(field.message_type, known.message_type)
    assert [one.name for one in ours.fields], ours.name


@pytest.mark.parametrize("name", sorted(CLASSES.keys() - {"InferTensor"}))
def test_each_field_is_the_protocols(name: str) -> None:
    compare(CLASSES[name].DESCRIPTOR, theirs(name))


@pytest.mark.parametrize(
    "inside", ["ModelInferRequest.InferInputTensor", "ModelInferResponse.InferOutputTensor"]
)
def test_tensors_of_requests_and_of_answers_are_alike(inside: str) -> None:
    outer, _, inner = inside.partition(".")
    found = service_pb2.DESCRIPTOR.message_types_by_name[outer].nested_types_by_name[inner]
    compare(CLASSES["InferTensor"].DESCRIPTOR, found)


def test_the_numbers_of_fields_that_are_read_and_written_apart() -> None:
    messages = service_pb2.DESCRIPTOR.message_types_by_name
    assert messages["ModelInferRequest"].fields_by_name["raw_input_contents"].number == RAW_INPUTS
    assert messages["ModelInferResponse"].fields_by_name["raw_output_contents"].number == RAW_OUTPUTS
    assert messages["ModelStreamInferResponse"].fields_by_name["infer_response"].number == STREAM_RESPONSE


def test_the_datatypes_have_tritons_numbers() -> None:
    known = model_config_pb2.DESCRIPTOR.enum_types_by_name["DataType"].values
    assert [f"TYPE_{name}" for name in DATA_TYPES] == [value.name for value in known]
    assert [value.number for value in known] == list(range(len(DATA_TYPES)))


def test_every_method_of_the_protocol_is_answered_or_refused_by_name() -> None:
    from edgepart.agent.gateway.gateway import Gateway
    from edgepart.agent.grpc.methods import InferenceMethods
    from tests.agent.http.fakes import FakeNode

    (service,) = service_pb2.DESCRIPTOR.services_by_name.values()
    assert service.full_name == SERVICE
    methods = {method.name for method in service.methods}
    assert InferenceMethods(Gateway(FakeNode(), "x" * 40)).handlers().keys() == methods
    assert NOT_OFFERED.keys() < methods


@pytest.mark.parametrize("first", ["edgepart.agent.grpc.messages", "tritonclient.grpc"])
def test_both_can_be_in_one_process_whichever_comes_first(first: str) -> None:
    modules = sorted(("edgepart.agent.grpc.messages", "tritonclient.grpc"), key=lambda one: one != first)
    code = f"import {modules[0]}, {modules[1]}; from google.protobuf.descriptor_pool import Default"
    code += "; print(Default().FindMessageTypeByName('inference.ModelInferRequest').file.name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "grpc_service.proto"
