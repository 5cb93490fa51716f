"""One ONNX Runtime session that continues a prompt in a plain loop, whatever exporter wrote the decoder: caches grow from
nothing, or are buffers, as in programs that know nothing of edgepart. Door: ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from benchmarks.exporters_cases import HEAD
from edgepart.planner.model.model_file import read_model
from edgepart.planner.model.rewrites.merged_decoder import CACHE_BRANCH
from edgepart.planner.model.states import suggested_pairs
from edgepart.planner.region import Array

_DTYPES: Mapping[str, type] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}


class PlainDecoder:
    """A decoder that one session computes."""

    def __init__(self, path: Path, rows: int) -> None:
        """`rows` are those of a text at most: where an operator writes new ones into a buffer, it has as many."""
        buffered = any(node.op_type == "GroupQueryAttention" for node in read_model(path).graph.node)
        self._rows = rows if buffered else 0
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        # The builder says that some values have one row, in fp16. Memory that is planned by it ends a step of several.
        options.enable_mem_reuse = options.enable_mem_pattern = False
        self._session: Any = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._inputs = {one.name: one for one in self._session.get_inputs()}
        self._outputs = [one.name for one in self._session.get_outputs()]
        self._states = dict(suggested_pairs(self._outputs, self._inputs))

    def continued(self, prompt: Sequence[int], most: int, at_once: int = 0) -> list[int]:
        """Return the most likely continuation of a prompt, of which `at_once` tokens are read in a step, or with 0 all."""
        past = {read: self._nothing(read) for read in self._states.values()}
        tokens: list[int] = []
        left, position = list(prompt), 0
        while len(tokens) < most:
            rows = left[: at_once or len(left)]
            logits, past = self._step(rows, position, past)
            left, position = left[len(rows) :], position + len(rows)
            if not left:
                left = [int(logits.reshape(-1, logits.shape[-1])[-1].argmax())]
                tokens += left
        return tokens

    def _step(
        self, rows: Sequence[int], position: int, past: Mapping[str, Array]
    ) -> tuple[Array, dict[str, Array]]:
        feeds: dict[str, Array] = {
            "input_ids": np.array([rows]),
            "attention_mask": np.ones((1, position + len(rows)), np.int64),
            "position_ids": np.arange(position, position + len(rows))[None],
            CACHE_BRANCH: np.array([position > 0]),
        }
        feeds = {
            name: value.astype(_DTYPES[self._inputs[name].type])
            for name, value in feeds.items()
            if name in self._inputs
        }
        answers = dict(zip(self._outputs, self._session.run(self._outputs, {**feeds, **past}), strict=True))
        return answers["logits"], {read: answers[output] for output, read in self._states.items()}

    def _nothing(self, name: str) -> Array:
        """Return a state before the first step: zeros."""
        one = self._inputs[name]
        fixed = [extent if isinstance(extent, int) else None for extent in one.shape]
        grows = (
            len(fixed) == 4 and fixed[2] is None
        )  # keys and values; states of convolutions have three axes
        extents = [1 if extent is None else extent for extent in fixed]
        if grows:  # The builder gives the size of a head a name, too.
            extents[2:] = self._rows, fixed[3] or HEAD
        return np.zeros(extents, _DTYPES[one.type])
