"""Foreign formats: says what a file is that was given in place of an ONNX model or its weights. A pure rule over bytes."""

from __future__ import annotations

BEGIN_BYTES = 512
"""The number of bytes at the begin of a file by which its format is known."""

POINTER = (
    "it is a pointer of Git LFS in place of the file, as the repository was cloned without its large files; run `git lfs "
    "pull` in it, or download the file"
)
POINTER_BEGIN = b"version https://git-lfs"
_EXPORT = "export the model to ONNX from what it was trained in"
_FORMATS: tuple[tuple[tuple[tuple[int, bytes], ...], str], ...] = (
    (((0, POINTER_BEGIN),), POINTER),
    (
        ((0, b"GGUF"),),
        "it is a GGUF file of llama.cpp; take an ONNX export of the model, or make one from its original weights",
    ),
    (
        ((0, b"PK\x03\x04"),),
        f"it is a ZIP archive, as PyTorch saves models; unpack it, or {_EXPORT} (torch.onnx.export)",
    ),
    (((0, b"\x80\x02"),), f"it is a Python pickle, as PyTorch saves weights; {_EXPORT} (torch.onnx.export)"),
    (
        ((0, b"\x89HDF\r\n"),),
        f"it is an HDF5 file, as Keras saves models; {_EXPORT} (model.export(..., format='onnx'))",
    ),
    (
        ((1, bytes(3)), (4, b"TFL3")),
        "it is a TensorFlow Lite file; convert it to ONNX (python -m tf2onnx.convert --tflite FILE)",
    ),
    (
        ((1, bytes(3)), (4, b"ORTM")),
        "it is in ONNX Runtime's own format (.ort), which cannot be divided; deploy the .onnx that it was made from",
    ),
    (
        ((4, bytes(4)), (8, b'{"')),
        f"these are weights without a model (safetensors); {_EXPORT} (optimum-cli export onnx)",
    ),
    (((0, b"\x1f\x8b"),), "it is a compressed archive; unpack it"),
    (((0, b"7z\xbc\xaf"),), "it is a compressed archive; unpack it"),
    (((0, b"\xfd7zXZ"),), "it is a compressed archive; unpack it"),
)
"""What the first bytes of each format are, and from which byte on. No ONNX file begins with any of them: where the first
one might be a field of ONNX, the zeros behind it end what protobuf reads."""
_TEXTS: tuple[tuple[bytes, str], ...] = (
    (b"<!doctype html", "it is a web page; download the file itself, and not the page that shows it"),
    (b"<html", "it is a web page; download the file itself, and not the page that shows it"),
    (b"<?xml", "it is XML, as OpenVINO describes models; deploy the ONNX model that it was made from"),
    (b"{", "it is JSON; give the model's .onnx file, or the folder in which it lies"),
)
"""How texts begin, in lower case and after spaces."""


def is_pointer(begin: bytes) -> bool:
    """Whether a file that has these first bytes stands for another one, which Git LFS has."""
    return begin.startswith(POINTER_BEGIN)


def explain_foreign(begin: bytes) -> str | None:
    """What a file is that has these first bytes (BEGIN_BYTES of them, or all), and what to do; None if its format is not
    known here.

    >>> (explain_foreign(b"GGUF\\x03\\0\\0\\0") or "")[:17]
    'it is a GGUF file'
    >>> explain_foreign(b"\\x08\\x0a") is None
    True
    """
    for parts, said in _FORMATS:
        if all(begin[at : at + len(part)] == part for at, part in parts):
            return said
    text = begin.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return next((said for start, said in _TEXTS if text.startswith(start)), None)
