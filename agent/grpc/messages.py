"""Messages: those of the Open Inference Protocol over gRPC, which KServe and Triton share, with the fields that edgepart
reads or writes. Facts, and the classes that protobuf makes of them.

The classes are made at import from the table below: no generated code has to fit the version of protobuf. They are in a
descriptor pool of their own, because the protocol's own names would clash with those of clients in the same process (a
process has one default pool, and a name can be in it once). Names of messages never travel; numbers of fields do.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

SERVICE = "inference.GRPCInferenceService"
"""The service's name in paths: /SERVICE/ModelInfer, for example."""
RAW_INPUTS, RAW_OUTPUTS = 7, 6
"""The numbers of `raw_input_contents` in ModelInferRequest and `raw_output_contents` in ModelInferResponse, which
raw_contents.py reads and writes apart from the messages."""
STREAM_RESPONSE = 2
"""The number of `infer_response`, a ModelInferResponse, in ModelStreamInferResponse."""

_PACKAGE = "edgepart.oip"

DATA_TYPES = (
    "INVALID", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64",
    "STRING", "BF16",
)  # fmt: skip
"""The values of Triton's enum DataType in their order, from 0; each has the prefix TYPE_."""

Fields = tuple[tuple[int, str, str], ...]
"""Number, name and type of each field. A type is a scalar or a message, after `repeated`, `map` (from strings) or `oneof`
(one choice per message)."""

_MODEL: Fields = ((1, "name", "string"), (2, "version", "string"))
MESSAGES: dict[str, Fields] = {
    "ServerLiveResponse": ((1, "live", "bool"),),
    "ServerReadyResponse": ((1, "ready", "bool"),),
    "ServerMetadataResponse": (
        (1, "name", "string"),
        (2, "version", "string"),
        (3, "extensions", "repeated string"),
    ),
    "ModelReadyRequest": _MODEL,
    "ModelReadyResponse": ((1, "ready", "bool"),),
    "ModelMetadataRequest": _MODEL,
    "ModelMetadataResponse": (
        (1, "name", "string"),
        (2, "versions", "repeated string"),
        (3, "platform", "string"),
        (4, "inputs", "repeated TensorMetadata"),
        (5, "outputs", "repeated TensorMetadata"),
    ),
    "TensorMetadata": ((1, "name", "string"), (2, "datatype", "string"), (3, "shape", "repeated int64")),
    "ModelConfigRequest": _MODEL,
    "ModelConfigResponse": ((1, "config", "ModelConfig"),),
    "ModelConfig": (
        (1, "name", "string"),
        (2, "platform", "string"),
        (17, "backend", "string"),
        (4, "max_batch_size", "int32"),
        (5, "input", "repeated ModelInput"),
        (6, "output", "repeated ModelOutput"),
    ),
    "ModelInput": ((1, "name", "string"), (2, "data_type", "DataType"), (4, "dims", "repeated int64")),
    "ModelOutput": ((1, "name", "string"), (2, "data_type", "DataType"), (3, "dims", "repeated int64")),
    "RepositoryIndexRequest": ((1, "repository_name", "string"), (2, "ready", "bool")),
    "RepositoryIndexResponse": ((1, "models", "repeated ModelIndex"),),
    "ModelIndex": (
        (1, "name", "string"),
        (2, "version", "string"),
        (3, "state", "string"),
        (4, "reason", "string"),
    ),
    "InferParameter": (
        (1, "bool_param", "oneof bool"),
        (2, "int64_param", "oneof int64"),
        (3, "string_param", "oneof string"),
        (4, "double_param", "oneof double"),
        (5, "uint64_param", "oneof uint64"),
    ),
    "InferTensorContents": (
        (1, "bool_contents", "repeated bool"),
        (2, "int_contents", "repeated int32"),
        (3, "int64_contents", "repeated int64"),
        (4, "uint_contents", "repeated uint32"),
        (5, "uint64_contents", "repeated uint64"),
        (6, "fp32_contents", "repeated float"),
        (7, "fp64_contents", "repeated double"),
        (8, "bytes_contents", "repeated bytes"),
    ),
    "ModelInferRequest": (
        (1, "model_name", "string"),
        (2, "model_version", "string"),
        (3, "id", "string"),
        (4, "parameters", "map InferParameter"),
        (5, "inputs", "repeated InferTensor"),
        (6, "outputs", "repeated InferRequestedOutputTensor"),
    ),
    "InferTensor": (
        (1, "name", "string"),
        (2, "datatype", "string"),
        (3, "shape", "repeated int64"),
        (4, "parameters", "map InferParameter"),
        (5, "contents", "InferTensorContents"),
    ),
    "InferRequestedOutputTensor": ((1, "name", "string"), (2, "parameters", "map InferParameter")),
    "ModelInferResponse": (
        (1, "model_name", "string"),
        (2, "model_version", "string"),
        (3, "id", "string"),
        (4, "parameters", "map InferParameter"),
        (5, "outputs", "repeated InferTensor"),
    ),
    "ModelStreamInferResponse": ((1, "error_message", "string"), (2, "infer_response", "ModelInferResponse")),
}
"""The messages by name. InferTensor stands for the protocol's InferInputTensor and InferOutputTensor, which are alike."""

_LABELS = FieldDescriptorProto.Label
_SCALARS = FieldDescriptorProto.Type


def _describe(name: str, fields: Fields) -> DescriptorProto:
    message = DescriptorProto(name=name)
    for number, field, kind in fields:
        form, _, of = kind.rpartition(" ")
        described = message.field.add(name=field, number=number, label=_LABELS.Value("LABEL_OPTIONAL"))
        if form == "map":
            entry = f"{field.capitalize()}Entry"
            pair = _describe(entry, ((1, "key", "string"), (2, "value", of)))
            pair.options.map_entry = True
            message.nested_type.append(pair)
            of = f"{name}.{entry}"
        if form in ("map", "repeated"):
            described.label = _LABELS.Value("LABEL_REPEATED")
        if form == "oneof":
            if not message.oneof_decl:
                message.oneof_decl.add(name="choice")
            described.oneof_index = 0
        if f"TYPE_{of.upper()}" in _SCALARS.DESCRIPTOR.values_by_name:
            described.type = _SCALARS.Value(f"TYPE_{of.upper()}")
        else:
            described.type = _SCALARS.Value("TYPE_ENUM" if of == "DataType" else "TYPE_MESSAGE")
            described.type_name = f".{_PACKAGE}.{of}"
    return message


def _make_classes() -> dict[str, Any]:
    file = FileDescriptorProto(name="edgepart/oip.proto", package=_PACKAGE, syntax="proto3")
    kinds = file.enum_type.add(name="DataType")
    for number, name in enumerate(DATA_TYPES):
        kinds.value.add(name=f"TYPE_{name}", number=number)
    file.message_type.extend(_describe(name, fields) for name, fields in MESSAGES.items())
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in MESSAGES}


CLASSES: dict[str, Any] = _make_classes()
"""The messages' classes by name. Their fields are not known to type checkers."""
