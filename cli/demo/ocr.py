"""Text recognition with PP-OCR, for the demo. It needs the extra `edgepart[demo]`.

RapidOCR finds the lines of text in an image and reads them. It prepares the pixels and interprets the outputs; a `Session`
runs the models in between: one ONNX Runtime session in this process, or a cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from edgepart.cli.tensors import largest_difference
from edgepart.planner.errors import UsageError
from edgepart.planner.region import Array

Session = Callable[[Array], Array]
"""Takes a batch of images (float32, NCHW) and returns the model's first output."""

PAGE = Path(__file__).with_name("page.png")
"""A scanned page, 384 x 191 pixels; NOTICE says where it is from."""

DETECTED_ROWS = 544
"""To how many rows a small page is enlarged before lines are looked for. With more, up to RapidOCR's 736, a box that is
eight times as slow as this machine takes two seconds, and finds fewer lines of the demo's page. With fewer, boxes that
share an image compute less between two messages, and gain less."""


@dataclass
class RecordingSession:
    """A session that keeps its inputs and outputs."""

    run: Session
    seen: list[tuple[Array, Array]] = field(default_factory=list)

    def __call__(self, batch: Array) -> list[Array]:
        output = self.run(batch)
        self.seen.append((batch, output))
        return [output]


class Reader:
    """Reads an image; `text` holds its lines. `detector` and `recogniser` are the files of the two models."""

    def __init__(self, image: Path = PAGE, threads: int = -1) -> None:
        if (found := find_spec("rapidocr_onnxruntime")) is None or found.origin is None:
            raise UsageError("reading a page needs the demo extra: pip install 'edgepart[demo]'")
        from rapidocr_onnxruntime import RapidOCR

        models = Path(found.origin).parent / "models"
        self.detector = models / "ch_PP-OCRv4_det_infer.onnx"
        self.recogniser = models / "ch_PP-OCRv4_rec_infer.onnx"
        self.image = image
        self._engine: Any = RapidOCR(
            use_cls=False,
            rec_batch_num=1,
            det_limit_side_len=DETECTED_ROWS,
            intra_op_num_threads=threads,
            print_verbose=False,
        )
        self._alone = (_whole(self._engine.text_det.infer), _whole(self._engine.text_rec.session))
        self._widen()

    def _widen(self) -> None:
        """Pads all lines to the width of the widest one: lines differ in width, and a deployment has one shape."""
        _, lines = self.read()
        height = self._engine.text_rec.rec_image_shape[1]
        widest = max((batch.shape[3] for batch, _ in lines.seen), default=height)
        self._engine.text_rec.rec_image_shape = [3, height, math.ceil(widest / 32) * 32]

    def read(
        self, detect: Session | None = None, recognise: Session | None = None
    ) -> tuple[RecordingSession, RecordingSession]:
        """Reads the image with the given sessions, or with sessions in this process. Returns the detector and the
        recogniser with the arrays that went through them."""
        detector, recogniser = (
            RecordingSession(detect or self._alone[0]),
            RecordingSession(recognise or self._alone[1]),
        )
        self._engine.text_det.infer, self._engine.text_rec.session = detector, recogniser
        found, _ = self._engine(str(self.image))
        self.text = [str(line[1]) for line in found or []]
        return detector, recogniser


def _whole(session: Any) -> Session:
    def run(batch: Array) -> Array:
        output: Array = np.asarray(session(batch)[0])
        return output

    return run


def relative_difference(one: Array, two: Array) -> float:
    """The largest difference divided by the largest magnitude of `two`: the measure of "same answer". It is infinite if
    only one of two numbers is NaN."""
    return largest_difference({"": one}, {"": two}) / max(float(np.max(np.abs(two))), 1e-30)
