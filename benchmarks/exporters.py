"""Language models as the exporters that people use write them: small ones of many architectures are exported, deployed on
two real agents, and asked for text, which is compared with that of transformers, or of one session over the same file.

    python -m benchmarks.exporters [--only NAME,...] [--json FILE] [--markdown] [--docs docs/generation.md]

`make exporters` makes the environments of the exporters first. A case's name is exporter-variant-architecture, as in
optimum-fp16-llama; --only takes beginnings of names. Trials that are in the file and went well are not made again, unless
--only names them. Exits with 1 if a text is wrong or something failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

from benchmarks.exporters_alone import PlainDecoder
from benchmarks.exporters_cases import ANSWER, CONTEXT, Case, Variant, all_cases
from benchmarks.exporters_making import MODEL, SAID
from benchmarks.exporters_report import (
    BEGIN,
    END,
    PROGRAMS,
    WORSE,
    Ending,
    Trial,
    ending_of,
    page,
    sentences,
    tabled,
)
from benchmarks.machine import commit, sentence, show_table
from benchmarks.page import replaced
from edgepart.agent.planwork.model_process import ROWS
from edgepart.agent.text.decoder import common_start
from edgepart.cli.local import LocalAgent, LocalCluster
from edgepart.cli.output import note
from edgepart.planner.errors import ClusterError

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = {"optimum": ROOT / ".venv/optimum", "genai": ROOT / ".venv/genai"}
"""Where `make exporters` makes them."""
PACKAGES = ("optimum-onnx", "onnxruntime-genai", "transformers", "torch", "onnxruntime")
NAMES = ("a", "b")
WITHIN_S = 600.0
BOTH_WITHIN_S = 20.0
DEPLOYED = "tried"
REFUSALS = (Fail, InvalidArgument, RuntimeException)
"""What ONNX Runtime raises where a model does not take the rows of a step."""
CRASHED = re.compile(r"Traceback|bug in edgepart|InternalError")


class NotServed(Exception):
    """The cluster answered with an error."""


@dataclass(frozen=True)
class Said:
    """The prompts, and what transformers continues them with."""

    prompts: Sequence[Sequence[int]]
    tokens: Sequence[Sequence[int]]


@dataclass(frozen=True)
class Texts:
    """What the cluster said."""

    tokens: tuple[tuple[int, ...], ...]
    in_blocks: bool
    kept_tokens: int
    devices: tuple[str, ...]


def tried(case: Case, folder: Path, environments: Mapping[str, Path], cluster: LocalCluster) -> Trial:
    """Export, deploy and ask a case; return what came of it."""
    variant = case.variant
    python = environments[variant.environment] / "bin/python"
    blank = Trial(
        case.name, variant.exporter, variant.name, case.architecture, Ending.FAILED, commit=commit()
    )
    blank = replace(blank, version=_versions(python, variant.environment))
    made = _run(python, "-m", "benchmarks.exporters_making", case.name, str(folder))
    if made.returncode:
        return replace(blank, ending=Ending.NOT_EXPORTED, why=_last_line(made.stderr, folder))
    said = Said(**json.loads((folder / case.architecture / SAID).read_text()))
    try:
        texts = _asked(cluster, folder / case.name, said)
    except (ClusterError, NotServed, OSError) as error:
        crashed = isinstance(error, OSError) or CRASHED.search(str(error))
        return replace(
            blank, ending=Ending.FAILED if crashed else Ending.REFUSED, why=_last_line(str(error), folder)
        )
    return _judged(blank, variant, texts, said, PlainDecoder(folder / case.name / MODEL, CONTEXT))


def _judged(blank: Trial, variant: Variant, texts: Texts, said: Said, decoder: PlainDecoder) -> Trial:
    """Return the trial with what came of the texts."""
    endings, equal, itself = [], 0, 0
    for prompt, got, by_transformers in zip(said.prompts, texts.tokens, said.tokens, strict=True):
        alone, *others = _alone(decoder, prompt, variant)
        same = min((common_start(alone, other) for other in others), default=ANSWER)
        ending, count = ending_of(variant, got, by_transformers, alone, same)
        endings.append(ending)
        equal, itself = equal + count, itself + same
    return replace(
        blank,
        ending=max(endings, key=WORSE.index),
        equal_tokens=equal,
        itself_tokens=itself,
        tokens=ANSWER * len(endings),
        in_blocks=texts.in_blocks,
        kept_tokens=texts.kept_tokens,
        devices=texts.devices,
    )


def _alone(decoder: PlainDecoder, prompt: Sequence[int], variant: Variant) -> list[list[int]]:
    """Return the text of one session that reads the prompt at once; of an inexact model also the texts of one that reads it
    in blocks and token by token, as devices do. They differ where activations are rounded by the rows of a step."""
    found = [decoder.continued(prompt, ANSWER)]
    for rows in () if variant.exact else (ROWS, 1):
        try:
            found.append(decoder.continued(prompt, ANSWER, rows))
        except REFUSALS as error:
            note(f"one session does not read {rows} tokens after others: {str(error)[:200]}")
    return found


def _asked(cluster: LocalCluster, folder: Path, said: Said) -> Texts:
    """Deploy a folder, ask for the texts and for a second turn, and undeploy it."""
    first = cluster.first
    with ExitStack() as stack:
        stack.callback(_undeploy, cluster)
        options = ["--name", DEPLOYED, "--devices", ",".join(NAMES), "--context", str(CONTEXT)]
        options += ["--strategy", "pipeline", "--objective", "throughput"]
        first.type("deploy", str(folder), *options, timeout_s=WITHIN_S)
        _wait_for_both(cluster)
        before = _steps(cluster)
        tokens = [_continued(first, said.prompts[0], ANSWER)[0]]
        steps = max(now - then for now, then in zip(_steps(cluster), before, strict=True))
        tokens += [_continued(first, prompt, ANSWER)[0] for prompt in said.prompts[1:]]
        turn = [*said.prompts[-1], *tokens[-1], 5, 6, 7]
        kept = _continued(first, turn, 1)[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
        in_blocks = steps < len(said.prompts[0])
        return Texts(tuple(map(tuple, tokens)), in_blocks, kept, _devices(cluster))


def _devices(cluster: LocalCluster) -> tuple[str, ...]:
    """Return the devices that compute."""
    (card,) = (one for one in cluster.status()["deployments"] if one["name"] == DEPLOYED)
    return tuple(sorted(card["devices"]))


def _wait_for_both(cluster: LocalCluster) -> None:
    """Wait until both devices compute: on a busy machine one of them may seem to be away for a moment, and plans do without
    it until it is back. The table tells of a model that is on one of them all the same."""
    try:
        cluster.wait(lambda: _devices(cluster) == NAMES, "both devices to compute", timeout_s=BOTH_WITHIN_S)
    except ClusterError:
        note(f"{DEPLOYED} is on {', '.join(_devices(cluster))} only")


def _undeploy(cluster: LocalCluster) -> None:
    """Undeploy what there is, for a model that was refused is not."""
    if any(one["name"] == DEPLOYED for one in cluster.status()["deployments"]):
        cluster.first.type("undeploy", DEPLOYED)


def _steps(cluster: LocalCluster) -> list[float]:
    """Return how many requests each agent has computed a part of."""
    found = []
    for agent in cluster.living:
        with urllib.request.urlopen(f"{agent.url}/metrics", timeout=10) as answer:
            (count,) = re.findall(r"^edgepart_requests_computed_total (\S+)$", answer.read().decode(), re.M)
            found.append(float(count))
    return found


def _continued(agent: LocalAgent, prompt: Sequence[int], most: int) -> tuple[list[int], dict[str, Any]]:
    """Return the most likely continuation of a prompt, and the whole answer. Raises NotServed."""
    body = {"model": DEPLOYED, "prompt": list(prompt), "max_tokens": most, "temperature": 0, "logprobs": 0}
    request = urllib.request.Request(
        f"{agent.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=WITHIN_S) as answer:
            document: dict[str, Any] = json.load(answer)
    except HTTPError as error:
        raise NotServed(error.read().decode()) from error
    return [int(text[1:]) for text in document["choices"][0]["logprobs"]["tokens"]], document


def _run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in the environment of an exporter, which reads no model from a network."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [python, *arguments], capture_output=True, text=True, check=False, env=env, cwd=ROOT
    )


def _versions(python: Path, environment: str) -> str:
    """Return the versions of the packages in an environment. Raises SystemExit if there is none."""
    if not python.exists():
        sys.exit(
            f"error: there is no {python}; run `make exporters`, or say where it is with --{environment} FOLDER"
        )
    code = (
        "import importlib.metadata as m, sys\n"
        "have = {one.metadata['Name'].lower(): one.version for one in m.distributions()}\n"
        "print(', '.join(f'{one} {have[one]}' for one in sys.argv[1:] if one in have))"
    )
    return _run(python, "-c", code, *PACKAGES).stdout.strip()


def _last_line(text: str, folder: Path = ROOT) -> str:
    """Return the last line that says something, without the name of the folder that the models are in.

    >>> _last_line("reading\\nerror: no such operator\\n")
    'no such operator'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["nothing was said"]
    return lines[-1].removeprefix("error: ").replace(f"{folder}/", "")


def trials_of(cases: Sequence[Case], folder: Path, environments: Mapping[str, Path]) -> Iterator[Trial]:
    """Try the cases, one after the other, on two agents of this machine's loopback."""
    with LocalCluster(NAMES, options=("--no-mdns",), listen="127.0.0.1:0") as cluster:
        for case in cases:
            trial = tried(case, folder, environments, cluster)
            note(f"{trial.name}: {trial.ending.value}, {trial.equal_tokens} of {trial.tokens}. {trial.why}")
            yield trial


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.exporters",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--only", default="", help="cases whose names begin so, separated by commas")
    made.add_argument("--json", type=Path, help="keeps the trials, for the next time")
    made.add_argument("--markdown", action="store_true", help="prints the table as Markdown")
    made.add_argument("--docs", type=Path, help="the document whose table is written anew")
    made.add_argument("--folder", type=Path, help="keeps what is exported here")
    for name, folder in ENVIRONMENTS.items():
        made.add_argument(f"--{name}", type=Path, default=folder, help=f"the environment of {PROGRAMS[name]}")
    return made


def main(given: Sequence[str] | None = None) -> int:
    options = parser().parse_args(given)
    only = tuple(name for name in options.only.split(",") if name)
    known = _read(options.json)
    wanted = [
        case
        for case in all_cases()
        if (case.name.startswith(only) if only else known.get(case.name) is None or known[case.name].is_fault)
    ]
    if only and not wanted:
        sys.exit(f"error: --only {options.only}: no case begins so; one is {next(all_cases()).name}")
    environments = {name: getattr(options, name) for name in ENVIRONMENTS}
    with tempfile.TemporaryDirectory(prefix="edgepart-exporters-") as temporary:
        for trial in trials_of(wanted, options.folder or Path(temporary), environments) if wanted else ():
            known[trial.name] = trial
            if options.json:
                options.json.parent.mkdir(parents=True, exist_ok=True)
                options.json.write_text(json.dumps([asdict(one) for one in known.values()], indent=1) + "\n")
    ordered = {case.name: known[case.name] for case in all_cases() if case.name in known}
    print(f"{sentence()}\n")
    show_table(tabled(ordered), options.markdown)
    print("\n".join(["", *(f"- {line}" for line in sentences(ordered.values()))]))
    if options.docs:
        document = replaced(options.docs.read_text(), BEGIN, END, page(ordered, date.today()))
        options.docs.write_text(document)
    return int(any(trial.is_fault for trial in ordered.values()))


def _read(path: Path | None) -> dict[str, Trial]:
    """Return the trials that are kept in a file."""
    documents = json.loads(path.read_text()) if path and path.exists() else []
    found = (
        Trial(**{**one, "ending": Ending(one["ending"]), "devices": tuple(one["devices"])})
        for one in documents
    )
    return {trial.name: trial for trial in found}


if __name__ == "__main__":
    sys.exit(main())
