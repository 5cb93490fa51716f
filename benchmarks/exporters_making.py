"""Makes what `make exporters` tries, in the environment of an exporter, which has its packages and no others.

    python -m benchmarks.exporters_making CASE FOLDER

FOLDER/architecture has the decoder as transformers saves it, and what it says after each prompt; FOLDER/CASE has what is
deployed. An export that others are made of is kept. Door: files, torch and the exporters.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.exporters_cases import ANSWER, ARCHITECTURES, END, PROMPTS, VOCABULARY, Case, all_cases

MODEL = "model.onnx"
SAID = "said.json"
"""The prompts, and the tokens that transformers continues them with."""
BLOCK = 32


def make(case: Case, folder: Path) -> Path:
    """Make what is deployed, and return its folder."""
    source = folder / case.architecture
    if not (source / SAID).exists():
        shutil.rmtree(source, ignore_errors=True)
        _save(case.architecture, source)
    made = folder / case.name
    if (made / MODEL).exists():
        return made
    making = folder / f"{case.name}.part"
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir()
    maker = MAKERS.get((case.variant.exporter, case.variant.name)) or _by_builder(case.variant.name)
    maker(case, source, making, folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"):
        if (source / name).exists() and not (making / name).exists():
            shutil.copy(source / name, making / name)
    making.rename(made)
    return made


def _save(architecture: str, source: Path) -> None:
    """Save a decoder with drawn weights, and what it says."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    found = ARCHITECTURES[architecture]
    config = AutoConfig.for_model(found.kind, **found.all_settings)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    model.get_output_embeddings().weight.data[END] = 0
    model.save_pretrained(source)
    _save_tokenizer(source)
    rng = random.Random(0)
    prompts = [[rng.randrange(5, VOCABULARY) for _ in range(length)] for length in PROMPTS]
    said = []
    with torch.no_grad():
        for prompt in prompts:
            ids = torch.tensor([prompt])
            mask = torch.ones_like(ids)
            answer = model.generate(
                ids, attention_mask=mask, do_sample=False, max_new_tokens=ANSWER, pad_token_id=0
            )
            said.append(answer[0, len(prompt) :].tolist())
    (source / SAID).write_text(json.dumps({"prompts": prompts, "tokens": said}))


def _save_tokenizer(source: Path) -> None:
    """Save a tokenizer in which each token is a word of its own, so that a text says which tokens it has."""
    words = {f"w{number}": number for number in range(VOCABULARY)}
    document = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
    }
    keys = ("truncation", "padding", "normalizer", "post_processor", "decoder")
    (source / "tokenizer.json").write_text(json.dumps(document | dict.fromkeys(keys)))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0"}
    (source / "tokenizer_config.json").write_text(json.dumps(config))


def _by_optimum(case: Case, source: Path, making: Path, folder: Path, **options: Any) -> None:
    from optimum.exporters.onnx import main_export

    main_export(
        str(source),
        making,
        task="text-generation-with-past",
        do_validation=False,
        local_files_only=True,
        **options,
    )


def _optimised_by_optimum(level: str) -> Callable[..., None]:
    return lambda *given: _by_optimum(*given, optimize=level)


def _plain(case: Case, folder: Path) -> Path:
    """Return the export of optimum that others are made of."""
    plain = next(one for one in all_cases() if one.name == f"optimum-plain-{case.architecture}")
    return make(plain, folder) / MODEL


def _optimised_by_runtime(level: str) -> Callable[..., None]:
    def optimise(case: Case, source: Path, making: Path, folder: Path) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
        options.optimized_model_filepath = str(making / MODEL)
        ort.InferenceSession(str(_plain(case, folder)), options, providers=["CPUExecutionProvider"])

    return optimise


def _to_float16(keep_types: bool) -> Callable[..., None]:
    def convert(case: Case, source: Path, making: Path, folder: Path) -> None:
        import onnx

        _save_float16(onnx.load(_plain(case, folder)), making / MODEL, keep_types)

    return convert


def _save_float16(model: Any, path: Path, keep_types: bool = False) -> None:
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(model, keep_io_types=keep_types, disable_shape_infer=False), path)


def _to_eight_bits(kind: str) -> Callable[..., None]:
    def quantise(case: Case, source: Path, making: Path, folder: Path) -> None:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(_plain(case, folder), making / MODEL, weight_type=getattr(QuantType, kind))

    return quantise


def _to_four_bits(symmetric: bool, half: bool = False) -> Callable[..., None]:
    def quantise(case: Case, source: Path, making: Path, folder: Path) -> None:
        import onnx
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        model = onnx.load(_plain(case, folder))
        quantiser = MatMulNBitsQuantizer(model, bits=4, block_size=BLOCK, is_symmetric=symmetric)
        quantiser.process()
        made = quantiser.model.model
        _save_float16(made, making / MODEL) if half else onnx.save(made, making / MODEL)

    return quantise


def _to_bnb4(case: Case, source: Path, making: Path, folder: Path) -> None:
    import onnx
    from onnxruntime.quantization.matmul_bnb4_quantizer import MatMulBnb4Quantizer

    quantiser = MatMulBnb4Quantizer(
        onnx.load(_plain(case, folder)), quant_type=MatMulBnb4Quantizer.NF4, block_size=64
    )
    quantiser.process()
    onnx.save(quantiser.model.model, making / MODEL)


def _by_torch(case: Case, source: Path, making: Path, folder: Path) -> None:
    _export_by_torch(source, making / MODEL, with_past=True)


def _export_by_torch(source: Path, path: Path, with_past: bool) -> None:
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache

    model = AutoModelForCausalLM.from_pretrained(source, attn_implementation="eager").eval()
    config = model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    layers = range(config.num_hidden_layers)

    class Decoder(torch.nn.Module):  # type: ignore[misc]  # torch's types are not read
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, past: Any) -> Any:
            cache = DynamicCache()
            for layer, (key, value) in enumerate(past or ()):
                cache.update(key, value, layer)
            out = self.model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                past_key_values=cache,
                use_cache=True,
            )
            kept = [one for layer in out.past_key_values.layers for one in (layer.keys, layer.values)]
            return (out.logits, *kept)

    names = [f"{{}}.{layer}.{kind}" for layer in layers for kind in ("key", "value")]
    batch, rows, before = 2, 3, 4 if with_past else 0
    past = [tuple(torch.randn(batch, heads, before, size) for _ in range(2)) for _ in layers]
    ids = torch.randint(0, VOCABULARY, (batch, rows))
    mask = torch.ones(batch, before + rows, dtype=torch.int64)
    positions = torch.arange(before, before + rows).repeat(batch, 1)
    auto, fixed = torch.export.Dim.DYNAMIC, torch.export.Dim.STATIC
    shapes: Any = [{0: auto, 1: auto}, {0: auto, 1: auto}, {0: auto, 1: auto}]
    shapes.append([({0: auto, 1: fixed, 2: auto, 3: fixed},) * 2 for _ in layers] if with_past else None)
    reads = [name.format("past_key_values") for name in names] if with_past else []
    torch.onnx.export(
        Decoder().eval(),
        (ids, mask, positions, past if with_past else None),
        path,
        input_names=["input_ids", "attention_mask", "position_ids", *reads],
        output_names=["logits", *(name.format("present") for name in names)],
        dynamic_shapes=tuple(shapes),
        dynamo=True,
        external_data=False,
    )


def _merged(case: Case, source: Path, making: Path, folder: Path) -> None:
    """Make the form that optimum wrote until its version 2: both decoders below an `If`."""
    import onnx
    from optimum.onnx import merge_decoders

    decoders = []
    for with_past in (False, True):
        path = making / "part.onnx"
        _export_by_torch(source, path, with_past=with_past)
        decoders.append(onnx.load(path))
        path.unlink()
    for value in [one for decoder in decoders for one in (*decoder.graph.input, *decoder.graph.output)]:
        _name_dimensions(value)
    merge_decoders(*decoders, save_path=making / MODEL)


def _name_dimensions(value: Any) -> None:
    """Give an input or output the dimensions' names that optimum gave it, which both decoders have in common."""
    rows = {"input_ids": "sequence_length", "position_ids": "sequence_length", "logits": "sequence_length"}
    rows["attention_mask"] = "attention_mask_sequence_length"
    kind, axis = value.name.partition(".")[0], 2 if "." in value.name else 1
    past = "past_sequence_length" if kind == "past_key_values" else "past_sequence_length + 1"
    dims = value.type.tensor_type.shape.dim
    dims[0].dim_param, dims[axis].dim_param = "batch_size", rows.get(value.name, past)
    del value.metadata_props[:]


def _by_builder(precision: str) -> Callable[..., None]:
    def build(case: Case, source: Path, making: Path, folder: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "onnxruntime_genai.models.builder",
            "-i",
            str(source),
            "-o",
            str(making),
        ]
        command += ["-p", precision, "-e", "cpu", "-c", str(folder / "cache")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.strip()[-2000:])

    return build


MAKERS: Mapping[tuple[str, str], Callable[..., None]] = {
    ("optimum", "plain"): _by_optimum,
    ("optimum", "o1"): _optimised_by_optimum("O1"),
    ("optimum", "o2"): _optimised_by_optimum("O2"),
    ("optimum", "o3"): _optimised_by_optimum("O3"),
    ("optimum", "basic"): _optimised_by_runtime("BASIC"),
    ("optimum", "extended"): _optimised_by_runtime("EXTENDED"),
    ("optimum", "merged"): _merged,
    ("optimum", "fp16"): _to_float16(keep_types=False),
    ("optimum", "fp16io"): _to_float16(keep_types=True),
    ("optimum", "int8"): _to_eight_bits("QInt8"),
    ("optimum", "uint8"): _to_eight_bits("QUInt8"),
    ("optimum", "q4"): _to_four_bits(symmetric=True),
    ("optimum", "q4asym"): _to_four_bits(symmetric=False),
    ("optimum", "q4f16"): _to_four_bits(symmetric=True, half=True),
    ("optimum", "bnb4"): _to_bnb4,
    ("torch", "dynamo"): _by_torch,
}
"""How each variant is made: of the case, the saved decoder, the folder to fill, and the folder of all. What is not named is
made by the builder."""


def main() -> int:
    name, folder = sys.argv[1:]
    case = next(one for one in all_cases() if one.name == name)
    print(make(case, Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
