"""Emulated hosts that generate text, for benchmarks: language models are deployed on them, clients on the hosts ask them,
and a plain loop on the same hosts shows what one of them can do. Door: the laboratory.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from tokenizers import Tokenizer

from benchmarks.emulated import Hosts, hosts
from benchmarks.generation_asking import AskJob, read_told
from benchmarks.generation_bare import BareJob, BareText
from benchmarks.generation_report import Told
from benchmarks.models.language import LanguageFolder, language_folder
from benchmarks.serving import POLL_S, SETTLED_S, client_of, deploy, settle
from edgepart.agent.wire.inference import DeployOptions
from edgepart.planner.errors import ClusterError, InternalError

RATE = "1gbit"
ASK_WITHIN_S = 3600.0
LOADED_WITHIN_S = 300.0
FIRST_HOST = "box-1"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Deployed:
    """A language model that the hosts serve."""

    name: str
    folder: LanguageFolder
    tokenizer: Tokenizer
    report: Mapping[str, Any]
    """The agent's report of the plan."""

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self.report["devices"])

    def encode(self, text: str) -> list[int]:
        tokens: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return tokens

    def texts(self, tokens: Sequence[int]) -> list[str]:
        """Return the text of each token, as an agent tells it."""
        return [self.tokenizer.decode([token], skip_special_tokens=False) for token in tokens]


@dataclass(frozen=True)
class TextHosts:
    """Hosts that run agents."""

    made: Hosts
    say: Say

    @property
    def names(self) -> tuple[str, ...]:
        return self.made.names

    @contextmanager
    def serving(
        self, language: str, *, context: int, wait: bool = True, **options: Any
    ) -> Iterator[Deployed]:
        """Deploy a language model for as long as the block lasts. `options` are those of DeployOptions."""
        folder = language_folder(language)
        name = language.replace("_", "-")
        asked = DeployOptions(context=context, **options)
        report = asyncio.run(self._deploy(name, folder, asked, wait))
        self.say(f"{language} is served by {', '.join(report['devices'])}, by {report['strategy']}")
        tokenizer = Tokenizer.from_file(str(folder.path / "tokenizer.json"))
        try:
            yield Deployed(name, folder, tokenizer, report)
        finally:
            asyncio.run(self._undeploy(name))

    async def _deploy(
        self, name: str, folder: LanguageFolder, options: DeployOptions, wait: bool
    ) -> Mapping[str, Any]:
        async with client_of(self.made.running.first) as client:
            await deploy(client, folder.model, name, options)
            if wait:
                await settle(client, name)
            report: Mapping[str, Any] = await client.get(f"/api/models/{name}/plan")
            return report

    async def _undeploy(self, name: str) -> None:
        async with client_of(self.made.running.first) as client:
            await client.undeploy(name)

    def settled(self, name: str) -> Mapping[str, Any]:
        """Wait until the plan does not change any more, and return the agent's report of it."""

        async def wait() -> Mapping[str, Any]:
            async with client_of(self.made.running.first) as client:
                await settle(client, name)
                report: Mapping[str, Any] = await client.get(f"/api/models/{name}/plan")
                return report

        return asyncio.run(wait())

    def wait_until_loaded(self, name: str) -> None:
        """Wait until the plan does not change any more, and no host has yet to load something for it: plans for losses, or
        the sessions that read several texts together. Raises ClusterError if that takes too long."""
        asyncio.run(self._wait_until_loaded(name))

    async def _wait_until_loaded(self, name: str) -> None:
        until = time.monotonic() + LOADED_WITHIN_S
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(client_of(agent))
                for agent in self.made.running.agents.values()
            ]
            since, epoch = time.monotonic(), ""
            while time.monotonic() < until:
                said = [await client.get("/api/status") for client in clients]
                card = next(card for card in said[0]["deployments"] if card["name"] == name)
                whole = set(card["devices"]) <= set(card["covered"]) or len(self.names) == 1
                busy = not whole or any(name in one["loading"] for one in said)
                if busy or str(card["epoch"]) != epoch:
                    since, epoch = time.monotonic(), str(card["epoch"])
                elif time.monotonic() - since >= SETTLED_S:
                    return
                await asyncio.sleep(POLL_S)
        raise ClusterError(f"{name}: something was still to be loaded after {LOADED_WITHIN_S:.0f} s")

    def plans(self, name: str) -> set[str]:
        """Return the epochs of the plans that serve."""

        async def look() -> set[str]:
            async with client_of(self.made.running.first) as client:
                cards = (await client.get("/api/models"))["models"]
            card = next(card for card in cards if card["name"] == name)
            epochs = [card["epoch"], *(one.get("epoch") for one in card.get("bindings", ()))]
            return {json.dumps(epoch) for epoch in epochs if epoch}

        return asyncio.run(look())

    def ask(
        self,
        deployed: Deployed,
        prompts: Sequence[Sequence[int]],
        most: int,
        *,
        at: str = FIRST_HOST,
        at_once: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> list[Told]:
        """Have a client on a host ask its agent, and return what it was told."""
        process, out = self.begin_asking(deployed, prompts, most, at=at, at_once=at_once, options=options)
        process.wait(ASK_WITHIN_S)
        if process.returncode:
            raise InternalError(f"the client ended with {process.returncode}: see the log of {out}")
        return read_told(out, len(prompts))

    def begin_asking(
        self,
        deployed: Deployed,
        prompts: Sequence[Sequence[int]],
        most: int,
        *,
        at: str = FIRST_HOST,
        at_once: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[subprocess.Popen[Any], Path]:
        """Start the client; return its process and the file in which it writes what it is told."""
        agent = self.made.running.agents[at]
        out = self.made.folder / f"told-{time.monotonic_ns()}.jsonl"
        job = AskJob(
            agent.url, str(agent.state), deployed.name, prompts, most, str(out), at_once, options or {}
        )
        file = out.with_suffix(".job")
        file.write_text(json.dumps(asdict(job)))
        command = (sys.executable, "-m", "benchmarks.generation_asking", str(file))
        with out.with_suffix(".log").open("wb") as log:
            return self.made.lab.start(at, *command, stdout=log, stderr=log), out

    def bare(
        self,
        deployed: Deployed,
        prompts: Sequence[Sequence[int]],
        most: int,
        length: int,
        *,
        at: str = FIRST_HOST,
        whole: int = 0,
    ) -> tuple[list[BareText], float | None]:
        """Generate the same in a plain loop on a host. Return the texts, and how many seconds reading `whole` tokens at
        once takes."""
        file = self.made.folder / "bare.json"
        job = BareJob(deployed.folder.name, length, prompts, most, whole)
        file.write_text(json.dumps(asdict(job)))
        command = (sys.executable, "-m", "benchmarks.generation_bare", str(file))
        done = self.made.lab.run(at, *command, timeout_s=ASK_WITHIN_S)
        if done.returncode:
            raise InternalError(f"the plain loop failed: {done.stderr[-2000:]}")
        found = json.loads(done.stdout)
        return [BareText(**text) for text in found["texts"]], found["whole_s"]

    @contextmanager
    def plain_loop(
        self, deployed: Deployed, prompt: Sequence[int], length: int, *, at: str = FIRST_HOST
    ) -> Iterator[Callable[[int], BareText]]:
        """Start a plain loop on a host for as long as the block lasts. It continues the prompt by as many tokens as it is
        asked for, each time."""
        file = self.made.folder / "turns.json"
        file.write_text(json.dumps(asdict(BareJob(deployed.folder.name, length, [prompt], 0, turns=True))))
        command = (sys.executable, "-m", "benchmarks.generation_bare", str(file))
        process = self.made.lab.start(at, *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

        said, heard = process.stdin, process.stdout
        assert said is not None and heard is not None

        def take_turn(count: int) -> BareText:
            said.write(f"{count}\n")
            said.flush()
            return BareText(**json.loads(heard.readline()))

        try:
            if heard.readline().strip() != "ready":
                raise InternalError("the plain loop did not start")
            yield take_turn
        finally:
            said.close()
            process.wait(60)

    def sent_bytes(self) -> int:
        """Return the bytes that all hosts have sent to others."""
        return sum(self.made.lab.traffic()[name].sent_bytes for name in self.names)

    def resident_bytes(self, host: str) -> int:
        """Return the memory that the processes on a host have for themselves."""
        total = 0
        for process in self.made.lab.processes(host):
            try:
                total += psutil.Process(process).memory_full_info().uss
            except psutil.NoSuchProcess:
                continue
        return total


@contextmanager
def text_hosts(slow: Sequence[float], say: Say) -> Iterator[TextHosts]:
    """Start a host for each factor, connected with 1 Gbit/s. Raises LabError if there can be no laboratory."""
    with hosts(slow, RATE, say) as made:
        yield TextHosts(made, say)
