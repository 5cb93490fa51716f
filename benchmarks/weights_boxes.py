"""Boxes with too little memory for a model: it is refused as it is, and served with weights of few bits. Door: agents."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from benchmarks.serving import client_of, settle
from edgepart.agent.verify.same_answer import TOLERANCE_QUANTISED, largest_difference
from edgepart.cli.local import LocalCluster
from edgepart.client.async_client import AsyncClient
from edgepart.planner.errors import Infeasible

CONTEXT = 256
NAME = "model"
ANY_ERROR = 9.0


@dataclass(frozen=True)
class BoxCase:
    """Boxes on which a model is tried."""

    model: str
    boxes: int
    limit: str
    """The most memory of each agent, its workers included."""
    weights: str
    tokens: int = 24
    """The tokens of a text that are compared."""


BOXES = (
    BoxCase("minilm_l6", 2, "150M", "int8"),
    BoxCase("smollm2_135m", 2, "290M", "int8"),
    BoxCase("smollm2_135m", 2, "240M", "int4"),
)


@dataclass(frozen=True)
class Served:
    """What came of a case."""

    case: BoxCase
    refused: str
    """What was said of the model as it is; "served" if it was not refused."""
    peak_bytes: Mapping[str, int]
    """What the plan takes on each box, as it is predicted and never exceeded."""
    compared: str
    right: bool


Wanted = Mapping[str, Any] | Callable[[Sequence[int]], list[int]]
"""The outputs of one session, or the tokens that a loop over one session generates after those of a prompt."""


def serve(
    case: BoxCase, model: Path, shapes: Mapping[str, tuple[int, ...]], asked: Any, wanted: Wanted
) -> Served:
    """Deploy the model on the case's boxes, as it is and with the case's weights. `asked` are inputs, or a text."""
    names = [chr(ord("a") + n) for n in range(case.boxes)]
    options = ["--threads", "1", "--memory-limit", case.limit]
    with LocalCluster(names, options=options, listen="127.0.0.1:0") as cluster:
        return asyncio.run(_serve(case, client_of(cluster.first), model, dict(shapes), asked, wanted))


async def _serve(
    case: BoxCase,
    connection: AsyncClient,
    model: Path,
    shapes: dict[str, tuple[int, ...]],
    asked: Any,
    wanted: Wanted,
) -> Served:
    more: Any = {"context": CONTEXT, "sequences": 1} if isinstance(asked, str) else {"shapes": shapes}
    async with connection as client:
        try:
            await client.deploy(model, NAME, **more)
            refused = "served"
        except Infeasible as error:
            needs = re.search(r"with (.+?) in total", str(error))
            refused = f"does not fit: needs {needs[1]}" if needs else "does not fit"
        await client.deploy(model, NAME, weights=case.weights, max_error=ANY_ERROR, **more)
        await settle(client, NAME)
        compared, right = await _compare(case, client, model, asked, wanted)
        devices = (await client.plan(NAME))["devices"]
    peaks = {name: int(one["peak_memory_bytes"]) for name, one in devices.items()}
    return Served(case, refused, peaks, compared, right and refused != "served")


async def _compare(
    case: BoxCase, client: AsyncClient, model: Path, asked: Any, wanted: Wanted
) -> tuple[str, bool]:
    """How the boxes' answer compares with that of one session over the quantised model."""
    if isinstance(wanted, Mapping):
        answer = await client.infer(NAME, asked)
        off = largest_difference(answer.outputs, wanted)
        return f"within {off:.1e} of one session", bool(np.isfinite(off)) and off <= TOLERANCE_QUANTISED
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    prompt = tokenizer.encode(asked, add_special_tokens=False).ids
    body = {"model": NAME, "prompt": asked, "max_tokens": case.tokens, "temperature": 0}
    async with client.door.change("POST", "/v1/completions", json=body) as response:
        text = (await response.json())["choices"][0]["text"]
    expected = tokenizer.decode(wanted(prompt))
    same = len([1 for one, other in zip(text, expected, strict=False) if one == other])
    alike = text.strip() == expected.strip()
    said = f"the same {case.tokens} tokens" if alike else f"{same} of {len(expected)} characters the same"
    return f"{said} as one session", alike
