"""Catalogue: the engines that ONNX Runtime's execution providers make, and with which options. Facts, and look-ups in them.

An engine is a provider on one device of the box at one precision. The CPU's own provider is no engine here: it is what
every box has and what all engines are compared with, and its name is CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CPU = "cpu"
"""The name of ONNX Runtime's own CPU provider among engines."""
CPU_PROVIDER = "CPUExecutionProvider"
THREADS = "{threads}"
"""Stands, in the value of an option, for the number of threads."""
FLOAT32 = "float32"
SUFFIX = "ExecutionProvider"
TRIAL_S = 30.0
"""Seconds that an engine may take for a trial of one segment, if its kind does not say: sessions over segments are made in
a second or two, but a box may be busy. With less, a slow engine is refused although it is right; with more, a plan waits
longer for an engine that hangs."""


@dataclass(frozen=True, slots=True)
class EngineKind:
    """One engine that a box may have: a provider, on one device, at one precision."""

    name: str
    """The engine's name, unique on its box, as in `--providers` and in plans."""
    provider: str
    """ONNX Runtime's name of the provider."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The provider's options."""
    precision: str = FLOAT32
    """The type in which it computes what the model has in float32. An engine of another precision rounds: it is tried only
    where the user names it, and used only where the user allows rounding."""
    memory: str = ""
    """ONNX Runtime's name of the memory that values are copied to and from; "" if the provider takes them from the CPU's
    memory, and copies by itself where it has to."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that have to be in the environment before the provider is loaded."""
    own_threads: bool = False
    """Whether it computes with threads of its own, so that those of the session would only be in the way."""
    trial_s: float = TRIAL_S
    """Seconds that a trial of one segment may take; some providers compile for minutes."""
    install: str = ""
    """What a user installs to have the provider."""


_OPENVINO = "pip uninstall onnxruntime, then pip install --force-reinstall --no-deps onnxruntime-openvino (docs/install.md)"
_GPU = (
    "pip install 'edgepart[gpu]', pip uninstall onnxruntime, then pip install --force-reinstall --no-deps onnxruntime-gpu; "
    "on a Jetson, NVIDIA's own wheel (docs/install.md)"
)
_MAC = "onnxruntime's wheels for macOS have it"
_BUILD = "build ONNX Runtime with it: onnxruntime.ai/docs/build/eps.html"
_FULL_FLOAT32 = {"NVIDIA_TF32_OVERRIDE": "0"}
"""Has NVIDIA's libraries multiply float32 numbers as such: TF32 keeps ten bits of them, and so would be a rounding."""

KINDS: tuple[EngineKind, ...] = (
    EngineKind(
        "openvino-cpu",
        "OpenVINOExecutionProvider",
        # Where a processor has matrix units for bfloat16, OpenVINO computes in bfloat16 unless it is told the precision.
        {"device_type": "CPU", "precision": "FP32", "num_of_threads": THREADS},
        own_threads=True,
        trial_s=120.0,
        install=_OPENVINO,
    ),
    EngineKind(
        "openvino-gpu",
        "OpenVINOExecutionProvider",
        {"device_type": "GPU", "precision": "FP32"},
        trial_s=300.0,
        install=f"{_OPENVINO}, and Intel's driver for OpenCL (intel-opencl-icd)",
    ),
    EngineKind(
        "openvino-gpu-fp16",
        "OpenVINOExecutionProvider",
        {"device_type": "GPU", "precision": "FP16"},
        precision="float16",
        trial_s=300.0,
        install=f"{_OPENVINO}, and Intel's driver for OpenCL (intel-opencl-icd)",
    ),
    EngineKind(
        "openvino-npu",
        "OpenVINOExecutionProvider",
        {"device_type": "NPU", "precision": "FP16"},
        precision="float16",
        trial_s=300.0,
        install=f"{_OPENVINO}, and Intel's driver for the NPU (intel/linux-npu-driver)",
    ),
    EngineKind(
        "cuda",
        "CUDAExecutionProvider",
        {"device_id": "0", "use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"},
        memory="cuda",
        environment=_FULL_FLOAT32,
        trial_s=120.0,
        install=_GPU,
    ),
    EngineKind(
        "cuda-tf32",
        "CUDAExecutionProvider",
        {"device_id": "0", "use_tf32": "1", "cudnn_conv_algo_search": "HEURISTIC"},
        precision="tf32",
        memory="cuda",
        trial_s=120.0,
        install=_GPU,
    ),
    EngineKind(
        "tensorrt",
        "TensorrtExecutionProvider",
        {"device_id": "0", "trt_fp16_enable": "0"},
        memory="cuda",
        environment=_FULL_FLOAT32,
        trial_s=900.0,
        install=f"{_GPU}, and TensorRT",
    ),
    EngineKind(
        "tensorrt-fp16",
        "TensorrtExecutionProvider",
        {"device_id": "0", "trt_fp16_enable": "1"},
        precision="float16",
        memory="cuda",
        trial_s=900.0,
        install=f"{_GPU}, and TensorRT",
    ),
    EngineKind(
        "migraphx",
        "MIGraphXExecutionProvider",
        {"device_id": "0", "migraphx_fp16_enable": "0"},
        trial_s=300.0,
        install="pip uninstall onnxruntime, then pip install onnxruntime-migraphx",
    ),
    EngineKind(
        "xnnpack",
        "XnnpackExecutionProvider",
        {"intra_op_num_threads": THREADS},
        own_threads=True,
        install=_BUILD,
    ),
    EngineKind(
        "coreml",
        "CoreMLExecutionProvider",
        # The neural engine, which "ALL" would add, computes in float16.
        {"ModelFormat": "MLProgram", "MLComputeUnits": "CPUOnly"},
        trial_s=120.0,
        install=_MAC,
    ),
    EngineKind(
        "coreml-fp16",
        "CoreMLExecutionProvider",
        {"ModelFormat": "MLProgram", "MLComputeUnits": "ALL"},
        precision="float16",
        trial_s=120.0,
        install=_MAC,
    ),
    EngineKind("acl", "ACLExecutionProvider", {"enable_fast_math": "false"}, install=_BUILD),
    EngineKind("dnnl", "DnnlExecutionProvider", install=_BUILD),
    EngineKind(
        "qnn-htp",
        "QNNExecutionProvider",
        {"backend_type": "htp"},
        precision="float16",
        trial_s=300.0,
        install="pip uninstall onnxruntime, then pip install onnxruntime-qnn, on a Snapdragon",
    ),
)
"""The engines that are known. Of one provider, the one that computes as exactly as the CPU comes first."""

NEVER: Mapping[str, str] = {"AzureExecutionProvider": "it sends the values to a service on the internet"}
"""Providers of which no engine is made, and why."""


def kind_of(name: str) -> EngineKind:
    """The engine of that name. A name that the catalogue lacks stands for a provider that somebody built themselves, with
    no options: "lab" for LabExecutionProvider.

    >>> kind_of("cuda").options["use_tf32"], kind_of("lab").provider
    ('0', 'LabExecutionProvider')
    """
    known = next((kind for kind in KINDS if kind.name == name), None)
    return known or EngineKind(name, f"{name[:1].upper()}{name[1:]}{SUFFIX}")


def own_name(provider: str) -> str:
    """The name of the engine that a provider makes which the catalogue lacks.

    >>> own_name("LabExecutionProvider")
    'lab'
    """
    stem = provider.removesuffix(SUFFIX)
    return f"{stem[:1].lower()}{stem[1:]}"


def provider_options(kind: EngineKind, threads: int) -> dict[str, str]:
    """The options that the provider gets for sessions with that many threads."""
    return {key: value.replace(THREADS, str(threads)) for key, value in kind.options.items()}
