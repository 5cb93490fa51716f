"""A client of texts that runs on a laboratory host: streams answers, and writes down each token and when it came.

    python -m benchmarks.generation_asking JOB.json

It writes a line of JSON for each thing that it is told, so that others can see how far a text has come. Door: aiohttp.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import aiohttp

from benchmarks.generation_report import Told
from edgepart.client.event_stream import read_events
from edgepart.client.target import AgentTarget
from edgepart.planner.errors import EdgepartError


@dataclass(frozen=True)
class AskJob:
    """What to ask."""

    url: str
    state: str
    """The state folder of the agent, which holds the credential."""
    model: str
    prompts: Sequence[Sequence[int]]
    most: int
    """The most tokens of an answer."""
    out: str
    at_once: bool = False
    """Whether all prompts are sent at the same time, and not one after the other."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the requests."""


async def _ask(session: aiohttp.ClientSession, job: AskJob, number: int, out: TextIO) -> None:
    def tell(**document: Any) -> None:
        out.write(json.dumps({"number": number, "at": time.monotonic(), **document}) + "\n")
        out.flush()

    body = {
        "model": job.model,
        "prompt": list(job.prompts[number]),
        "max_tokens": job.most,
        "temperature": 0,
        "logprobs": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **job.options,
    }
    tell(began=True)
    try:
        async with session.post(f"{job.url}/v1/completions", json=body) as response:
            if response.status != 200:
                tell(error=f"{response.status}: {(await response.text())[:300]}")
                return
            async for document in read_events(response.content):
                if "error" in document:
                    tell(error=str(document["error"])[:300])
                    return
                for choice in document.get("choices", ()):
                    tokens = (choice.get("logprobs") or {}).get("tokens", [])
                    tell(tokens=tokens, reason=choice.get("finish_reason"))
                if document.get("usage") or document.get("edgepart"):
                    tell(usage=document.get("usage"), edgepart=document.get("edgepart"))
    except (aiohttp.ClientError, EdgepartError, OSError, TimeoutError) as error:
        tell(error=repr(error)[:300])


async def ask(job: AskJob) -> None:
    """Ask everything."""
    target = AgentTarget(job.url, Path(job.state))
    headers = {} if target.is_local else {"Authorization": f"Bearer {target.credential()}"}
    timeout = aiohttp.ClientTimeout(total=None, sock_read=300)
    with Path(job.out).open("w") as out:
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            asks = [_ask(session, job, number, out) for number in range(len(job.prompts))]
            if job.at_once:
                await asyncio.gather(*asks)
            else:
                for one in asks:
                    await one


def read_told(out: Path, count: int) -> list[Told]:
    """Return what was told of each prompt so far."""
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    return [told_of([line for line in lines if line["number"] == number]) for number in range(count)]


def told_of(lines: Sequence[Mapping[str, Any]]) -> Told:
    """Return what these lines tell of one prompt."""
    tokens: list[str] = []
    at_s: list[float] = []
    reason, error, replays, cached = "", "", 0, 0
    for line in lines:
        tokens += line.get("tokens", ())
        at_s += [line["at"]] * len(line.get("tokens", ()))
        reason, error = line.get("reason") or reason, line.get("error") or error
        replays = int((line.get("edgepart") or {}).get("replays", replays))
        details = (line.get("usage") or {}).get("prompt_tokens_details") or {}
        cached = int(details.get("cached_tokens", cached))
    began_s = next((line["at"] for line in lines if line.get("began")), 0.0)
    return Told(tuple(tokens), tuple(at_s), began_s, reason, replays, cached, error)


if __name__ == "__main__":
    asyncio.run(ask(AskJob(**json.loads(Path(sys.argv[1]).read_text()))))
