"""`edgepart infer`: sends one request to a deployment, as any client does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgepart.cli.options import Agent, Deadline, DeployedName, Input, Json, Picture, State
from edgepart.cli.output import console, note, print_json, say, shape, table
from edgepart.cli.query import note_detour
from edgepart.client.target import AgentTarget, target_of
from edgepart.planner.errors import UsageError
from edgepart.planner.figures import format_seconds

if TYPE_CHECKING:
    from edgepart.cli.tensors import Array
    from edgepart.client.records import Answer

Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write the outputs to this .npz file.")]


def infer(
    name: DeployedName,
    given: Input = None,
    output: Output = None,
    picture: Picture = "",
    timeout_s: Deadline = 60.0,
    state: State = None,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Send one request, and print its outputs or write them to a file."""
    target = target_of(agent, state)
    if not given:
        raise UsageError(
            f"--input is missing: `edgepart infer {name} --input NAME=FILE.npy`; {_see(target, name)}"
        )
    if output is not None and output.suffix != ".npz":
        raise UsageError(f"--output {output}: give a name that ends in .npz")
    assumed: list[str] = []
    answer = asyncio.run(_infer(target, name, given, timeout_s, picture, assumed))
    if output is not None:
        _write(answer, output)
    if as_json:
        print_json(_document(answer, output) | ({"assumed": assumed} if assumed else {}))
    else:
        _print(answer)
        for text in assumed:
            note(f"{text} (--picture changes that)")
        if output is not None:
            say(f"written to {output}")


def _write(answer: Answer, output: Path) -> None:
    import numpy as np

    packed = {key: _storable(array) for key, array in answer.outputs.items()}
    try:
        with output.open("wb") as file:
            np.savez(file, allow_pickle=False, **packed)
    except OSError as error:
        raise UsageError(f"--output {output}: {error.strerror}") from error


def _document(answer: Answer, output: Path | None) -> dict[str, Any]:
    """The document that --json prints. It holds the values only if they are not written to a file."""
    from edgepart.cli.tensors import plain

    outputs = {
        key: {"dtype": str(array.dtype), "shape": list(array.shape)}
        | ({} if output else {"data": plain(array)})
        for key, array in answer.outputs.items()
    }
    return {
        "outputs": outputs,
        "output": str(output) if output else None,
        "epoch": answer.epoch,
        "seconds": answer.seconds,
        "replays": answer.replays,
    }


def _print(answer: Answer) -> None:
    from edgepart.cli.tensors import glance

    rows = [
        (key, str(array.dtype), shape(array.shape), glance(array)) for key, array in answer.outputs.items()
    ]
    console().print(table(("output", "type", "shape", "values"), rows))
    again = f", run {answer.replays + 1} times" if answer.replays else ""
    note(f"answered in {format_seconds(answer.seconds)} by the plan of epoch {answer.epoch}{again}")


async def _infer(
    target: AgentTarget,
    name: str,
    given: Sequence[str],
    timeout_s: float,
    picture: str,
    assumed: list[str],
) -> Answer:
    """The answer. What is assumed of pictures is added to `assumed`."""
    from edgepart.agent.api.deployment_name import check_name
    from edgepart.cli.tensors import bound_metadata, read_inputs
    from edgepart.client.async_client import AsyncClient

    check_name(name)
    async with AsyncClient(target) as client:
        await client.learn()
        metadata = await client.get(f"/v2/models/{name}")
        card = next((card for card in await client.models() if card["name"] == name), {})
        inputs = read_inputs(given, bound_metadata(metadata, card), picture, assumed.append)
        answer = await client.infer(name, inputs, None, timeout_s)
        note_detour(target, answer.url)
        return answer


def _storable(array: Array) -> Array:
    """The array in a type that .npz can hold without pickling."""
    if array.dtype.kind == "O":
        return array.astype(str)
    return array if array.dtype.kind in "fiubUS" else array.astype("float32")


def _see(target: AgentTarget, name: str) -> str:
    return f"{target.url}/v2/models/{name} lists the inputs"
