"""`edgepart train`: trains the network that guides a placer, and says what it learned. Door: it reads workloads, has a
clock, writes the network, and prints."""

from __future__ import annotations

import shlex
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from importlib.util import find_spec
from math import exp, log
from pathlib import Path
from signal import SIGINT, default_int_handler, signal
from statistics import mean
from tempfile import TemporaryDirectory
from threading import current_thread, main_thread
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgepart.cli.options import Json
from edgepart.cli.output import console, note, print_json, say, table
from edgepart.cli.sources.workload import read_workload_file
from edgepart.planner.errors import Infeasible, NotInstalled, UsageError
from edgepart.planner.figures import format_figure
from edgepart.planner.vocabulary import check_word

if TYPE_CHECKING:
    from edgepart.planner.learning.training.trainers import Trained, TrainingAsked, TrainingPoint

MEASURE = "heft"
"""The placer whose makespan is the unit of the comparison."""

OTHERS = ("m-etf",)
"""Other placers that a network is compared with, besides itself before it was trained."""

SEARCH_S = 0.1
"""What each placer may take for a graph of the comparison: enough for samples, and too little to search on from there."""

REMINDER_S = 10.0
"""How often a training says how far it is."""

Families = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FAMILY[,FAMILY...]",
        help="The kinds of graphs to draw. Repeatable.",
        show_default="all but cells; none with --workload",
    ),
]
Steps = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Train for so many updates, whatever time they take: for the same seed, the same network comes out.",
        show_default="as many as there is time for",
    ),
]
Machines = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=64,
        help="The machines of each graph.",
        show_default="those of the workloads, or as the placer has it",
    ),
]


def train(
    placer: Annotated[str, typer.Option(metavar="NAME", help="The placer that the network guides.")],
    out: Annotated[Path, typer.Option(metavar="FILE.onnx", help="Where the network is written.")],
    seed: Annotated[int, typer.Option(min=0, help="What all chance comes from.")] = 0,
    minutes: Annotated[float, typer.Option(min=0.01, max=10_000, help="How long to train.")] = 10.0,
    steps: Steps = None,
    machines: Machines = None,
    families: Families = None,
    graphs: Annotated[int, typer.Option(min=1, max=10_000, help="The graphs to draw of each family.")] = 32,
    tasks: Annotated[
        int, typer.Option(min=10, max=100_000, help="The nodes of a drawn graph, roughly.")
    ] = 140,
    workload: Annotated[
        list[Path] | None,
        typer.Option(metavar="W.json", help="A graph of costs to train on. Repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train the network that guides a placer, and compare it with what it was before, and with heft and m-etf.

    `edgepart plan --strategy NAME --network FILE.onnx` uses it. Ctrl-C ends the training and keeps what was learned until
    then; pressed twice, it ends the command, which then writes nothing."""
    from edgepart.planner.learning.training.trainers import TRAINERS, TrainingAsked, stamped, trainer
    from edgepart.planner.placing.engine.judge import prepare

    check_word(placer, list(TRAINERS), "--placer")
    if find_spec("torch") is None:
        raise NotInstalled("`edgepart train` needs torch: pip install 'edgepart[learn]'")
    _check_writable(out)
    workloads = tuple(map(read_workload_file, workload or ()))
    names = _families(families, all_of_them=not workloads)
    prepare()
    given = {"placer": placer, "out": out, "seed": seed, "steps": steps, "minutes": None if steps else minutes,
             "machines": machines, "families": ",".join(names), "graphs": graphs, "tasks": tasks}  # fmt: skip
    command = _command(given, workload or ())
    with _counted(steps, 60 * minutes) as over:
        asked = TrainingAsked(
            over, names, graphs, tasks, workloads, machines, seed, date.today().isoformat(), command,
            tell=_teller(placer, over),
        )  # fmt: skip
        trained = trainer(placer)(asked)
    _write(out, stamped(trained.network, trained.card))
    found = compare_networks(trained)
    scores = {f"{family}: {name}": value for family, row in found.items() for name, value in row.items()}
    _write(out, stamped(trained.network, replace(trained.card, scores=scores)))
    document = _document(out, asked, trained, found)
    print_json(document) if as_json else _show(document)


def _command(given: Mapping[str, Any], workloads: Sequence[Path]) -> str:
    """The command with these options, without those that say nothing."""
    options = [(f"--{name}", str(value)) for name, value in given.items() if value not in (None, "")]
    options += [("--workload", str(path)) for path in workloads]
    return shlex.join(["edgepart", "train", *(word for option in options for word in option)])


def _families(given: Sequence[str] | None, *, all_of_them: bool) -> tuple[str, ...]:
    from edgepart.planner.learning.training.families import FAMILIES, HELD_OUT

    if given is None:
        return tuple(name for name in FAMILIES if name != HELD_OUT) if all_of_them else ()
    names = [name for text in given for name in text.split(",")]
    return tuple(dict.fromkeys(check_word(name, list(FAMILIES), "--families") for name in names))


def _check_writable(out: Path) -> None:
    """Raises UsageError if no file can be written there, before the time is spent."""
    if out.suffix != ".onnx":
        raise UsageError(f"--out {out}: a network's file ends with .onnx")
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise UsageError(f"--out {out}: name a file in a folder that exists")
    try:
        with TemporaryDirectory(dir=out.absolute().parent):
            pass
    except OSError as error:
        raise UsageError(f"--out {out}: cannot be written ({error.strerror})") from error


def _write(out: Path, network: bytes) -> None:
    from edgepart.agent.storage.atomic_files import write_atomic

    try:
        write_atomic(out, network)
    except OSError as error:
        raise UsageError(f"--out {out}: cannot be written ({error.strerror})") from error


@contextmanager
def _counted(steps: int | None, seconds: float) -> Iterator[Callable[[int], float]]:
    """What says how much of a training is over, by updates or by time. The first Ctrl-C ends it, the second the command."""
    begun_s, pressed = time.perf_counter(), list[int]()

    def over(done: int) -> float:
        if pressed:
            return 1.0
        return done / steps if steps else (time.perf_counter() - begun_s) / seconds

    def press(number: int, frame: FrameType | None) -> None:
        if pressed:
            default_int_handler(number, frame)
        pressed.append(number)
        note("the training ends with what was learned so far; press Ctrl-C again to write nothing")

    if current_thread() is not main_thread():
        yield over
        return
    before = signal(SIGINT, press)
    try:
        yield over
    finally:
        signal(SIGINT, before)


def _teller(placer: str, over: Callable[[int], float]) -> Callable[[TrainingPoint], None]:
    """What says now and then how far the training is."""
    begun_s = told_s = time.perf_counter()

    def tell(point: TrainingPoint) -> None:
        nonlocal told_s
        now_s = time.perf_counter()
        if now_s - told_s >= REMINDER_S:
            told_s = now_s
            note(
                f"{placer} has trained for {now_s - begun_s:.0f} s, {min(1.0, over(point.step)):.0%} of the whole; "
                f"{point.step} updates; {_point(point)}"
            )

    return tell


def _point(point: TrainingPoint) -> str:
    return f"loss {format_figure(point.value, 4)}, entropy {format_figure(point.entropy, 3)}"


def compare_networks(trained: Trained) -> dict[str, dict[str, float]]:
    """The makespans on graphs that the network was not trained on, or on its own if there are no others: for each family
    the geometric mean in units of `MEASURE`'s, of the network, of what it was before it was trained, and of `OTHERS`."""
    from edgepart.agent.engines.networks import networks_of
    from edgepart.planner.learning.training.trainers import stamped
    from edgepart.planner.placing.placers.best import find
    from edgepart.planner.placing.problem.schedule import Asked

    placer = trained.card.placer
    ratios: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with TemporaryDirectory() as folder:
        given = {}
        for name, network in (("trained", trained.network), ("untrained", trained.untrained)):
            given[name] = Path(folder) / f"{name}.onnx"
            given[name].write_bytes(stamped(network, trained.card))
        for graph in trained.unseen or trained.trained_on:
            asked = Asked(time.perf_counter, budget_s=SEARCH_S)
            try:
                unit_s = find(graph, MEASURE, asked).value_s
                found = {name: find(graph, name, asked).value_s for name in OTHERS}
                for name, path in given.items():
                    guided = replace(asked, networks=networks_of({placer: path}))
                    found[name] = find(graph, placer, guided).value_s
            except Infeasible as error:
                note(f"left out of the comparison: {error}")
                continue
            for name in (*given, *OTHERS):
                ratios[graph.name][name].append(found[name] / unit_s)
    return {
        family: {"graphs": len(row["trained"]), **{name: exp(mean(map(log, row[name]))) for name in row}}
        for family, row in ratios.items()
    }


def _document(
    out: Path, asked: TrainingAsked, trained: Trained, found: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    return {
        "placer": trained.card.placer,
        "network": str(out),
        "machines": trained.card.machines,
        "trained_on": list(trained.card.families),
        "graphs": len(trained.trained_on),
        "seed": asked.seed,
        "updates": len(trained.curve),
        "curve": [
            {"updates": point.step, "loss": point.value, "entropy": point.entropy} for point in trained.curve
        ],
        "unseen": bool(trained.unseen),
        "unit": MEASURE,
        "compared": {family: dict(row) for family, row in found.items()},
    }


def _show(document: Mapping[str, Any]) -> None:
    curve = document["curve"]
    learned = ""
    if curve:
        first, last = (format_figure(curve[at]["loss"], 4) for at in (0, -1))
        learned = f": its loss was {first} at first and {last} at last"
    say(
        f"{document['network']}: {document['placer']}, trained on {document['graphs']} graphs "
        f"({', '.join(document['trained_on'])}) by {document['updates']} updates{learned}",
        prose=True,
    )
    names = ("trained", "untrained", *OTHERS)
    columns = ("graphs of", "graphs", *names)
    rows = [
        (family, str(row["graphs"]), *(format_figure(row[name], 3) for name in names))
        for family, row in document["compared"].items()
    ]
    console().print(table(columns, rows, columns[1:]))
    which = (
        "that it was not trained on"
        if document["unseen"]
        else "that it was trained on, as there are no others"
    )
    say(
        f"Makespans on graphs {which}, as multiples of those of {document['unit']}; geometric means.",
        prose=True,
    )
