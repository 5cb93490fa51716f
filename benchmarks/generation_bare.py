"""One ONNX Runtime session that generates text in a plain loop: what edgepart's texts and their speed are compared with.

    python -m benchmarks.generation_bare JOB.json      on a host of the laboratory; prints the result as JSON

The loop is as good as can be written, and the session has ONNX Runtime's own options. Caches stay in one buffer, which the
session writes in place (genai style), or have a fixed length (optimum style). Door: ONNX Runtime and the clock.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from benchmarks.models.language import LanguageFolder, language_folder
from edgepart.planner.region import Array


@dataclass(frozen=True)
class BareJob:
    """What to generate."""

    language: str
    length: int
    """The most tokens of a prompt and its answer."""
    prompts: Sequence[Sequence[int]]
    most: int
    """The most tokens of an answer."""
    whole: int = 0
    """If not 0, the time of reading so many tokens at once, without a cache, is measured as well."""
    turns: bool = False
    """Whether the first prompt is continued in turns: by as many tokens as each line of stdin says."""


@dataclass(frozen=True)
class BareText:
    """What came of a prompt."""

    tokens: list[int]
    """Without the token that ends the text."""
    step_s: list[float]
    """Seconds from each token to the next one."""


class BareDecoder:
    """A decoder with the caches of one sequence."""

    def __init__(self, folder: LanguageFolder, length: int, threads: int = 1) -> None:
        self._folder = folder
        self._length = length
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        self._session: Any = ort.InferenceSession(
            str(folder.model), options, providers=["CPUExecutionProvider"]
        )
        self._caches = [one.name for one in self._session.get_inputs() if one.name.startswith("past_")]
        self._in_place = folder.style == "genai"
        self._past: dict[str, Any] = {}
        self.position = 0
        self.reset()

    def reset(self) -> None:
        """Begin a new sequence."""
        shape, rows = self._folder.shape, self._length - (0 if self._in_place else 1)
        zeros = {name: np.zeros((1, shape.kv_heads, rows, shape.size), np.float32) for name in self._caches}
        self.position = 0
        self._past = (
            {name: ort.OrtValue.ortvalue_from_numpy(value) for name, value in zeros.items()}
            if self._in_place
            else zeros
        )

    def step(self, token: int) -> Array:
        """Read a token; return the logits of the next one."""
        logits = self._write_in_place([token]) if self._in_place else self._put_before(token)
        self.position += 1
        row: Array = logits.reshape(-1)
        return row

    def _write_in_place(self, tokens: Sequence[int]) -> Array:
        mask = np.zeros((1, self._length), np.int64)
        mask[:, : self.position + len(tokens)] = 1
        binding = self._session.io_binding()
        binding.bind_cpu_input("input_ids", np.array([tokens]))
        binding.bind_cpu_input("attention_mask", mask)
        binding.bind_output("logits")
        for name, value in self._past.items():
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(name.replace("past_key_values", "present"), value)
        self._session.run_with_iobinding(binding)
        found: Array = binding.get_outputs()[0].numpy()
        return found

    def _put_before(self, token: int) -> Array:
        mask = np.zeros((1, self._length), np.int64)
        mask[:, -self.position - 1 :] = 1
        feeds = {"input_ids": np.array([[token]]), "attention_mask": mask}
        feeds["position_ids"] = np.array([[self.position]])
        presents = [name.replace("past_key_values", "present") for name in self._caches]
        logits, *made = self._session.run(["logits", *presents], feeds | self._past)
        self._past = {name: value[:, :, 1:] for name, value in zip(self._caches, made, strict=True)}
        found: Array = logits
        return found

    def continued(self, prompt: Sequence[int], most: int) -> BareText:
        """Return the most likely continuation of a prompt."""
        self.reset()
        logits = [self.step(token) for token in prompt][-1]
        tokens: list[int] = []
        step_s: list[float] = []
        while len(tokens) < most and (token := int(logits.argmax())) != self._folder.end_token:
            tokens.append(token)
            if len(tokens) < most:
                began_s = time.perf_counter()
                logits = self.step(token)
                step_s.append(time.perf_counter() - began_s)
        return BareText(tokens, step_s)

    def forced(self, tokens: Sequence[int]) -> Array:
        """Return the logits after each of the tokens."""
        self.reset()
        return np.stack([self.step(token) for token in tokens])

    def forced_in_blocks(self, tokens: Sequence[int], rows: int) -> Array:
        """Return the logits after each of the tokens, of which `rows` are read at once. Caches have to be in one buffer."""
        self.reset()
        found = []
        for block in (tokens[at : at + rows] for at in range(0, len(tokens), rows)):
            found.append(self._write_in_place(block)[0])
            self.position += len(block)
        return np.concatenate(found)

    def whole_s(self, rows: int, times: int = 3) -> float:
        """Return the seconds of reading `rows` tokens at once: what each token costs where no states are kept."""
        shape = self._folder.shape
        feeds: dict[str, Array] = {
            name: np.zeros((1, shape.kv_heads, 0, shape.size), np.float32) for name in self._caches
        }
        feeds |= {"input_ids": np.full((1, rows), 5), "attention_mask": np.ones((1, rows), np.int64)}
        if not self._in_place:
            feeds["position_ids"] = np.arange(rows)[None]
        found = []
        for _ in range(times):
            began_s = time.perf_counter()
            self._session.run(["logits"], feeds)
            found.append(time.perf_counter() - began_s)
        return min(found)


def generate(job: BareJob) -> Mapping[str, Any]:
    """Generate everything at once."""
    decoder = BareDecoder(language_folder(job.language), job.length)
    texts = [asdict(decoder.continued(prompt, job.most)) for prompt in job.prompts]
    return {"texts": texts, "whole_s": decoder.whole_s(job.whole) if job.whole else None}


def take_turns(job: BareJob) -> None:
    """Continue the first prompt when stdin says so. The text does not end at the token that ends texts."""
    decoder = BareDecoder(language_folder(job.language), job.length)
    logits = [decoder.step(token) for token in job.prompts[0]][-1]
    print("ready", flush=True)
    for line in sys.stdin:
        tokens, step_s = [], []
        for _ in range(int(line)):
            began_s = time.perf_counter()
            tokens.append(int(logits.argmax()))
            logits = decoder.step(tokens[-1])
            step_s.append(time.perf_counter() - began_s)
        print(json.dumps(asdict(BareText(tokens, step_s))), flush=True)


def main(path: str) -> None:
    job = BareJob(**json.loads(Path(path).read_text()))
    if job.turns:
        take_turns(job)
    else:
        print(json.dumps(generate(job)))


if __name__ == "__main__":
    main(sys.argv[1])
