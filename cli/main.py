"""The `edgepart` command: which commands there are, and how any of them ends.

Thin: heavy modules (onnx, onnxruntime, numpy, aiohttp) are imported inside commands, so that `--help` is
instant.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from edgepart.cli import asking, clustering, deploying, running, securing, serving
from edgepart.cli.checking import check
from edgepart.cli.demo import demo
from edgepart.cli.doctor import doctor
from edgepart.cli.draining import drain, remove, undrain
from edgepart.cli.ending import FAILED, exit_status, report
from edgepart.cli.plan import plan
from edgepart.cli.tracing import trace
from edgepart.planner.errors import EdgepartError

app = typer.Typer(
    name="edgepart",
    help="Runs any ONNX model over the small boxes you already have.\n\n"
    "Try `edgepart demo`, or: `edgepart init`, `edgepart agent`, and `edgepart deploy MODEL` from another terminal.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from edgepart import __version__

        typer.echo(f"edgepart {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Runs any ONNX model over the small boxes you already have."""


_START, _USE, _SEE, _KEEP = "Make a cluster", "Use it", "Look at it", "Keep it yours"

app.command(rich_help_panel=_START)(clustering.init)
app.command(rich_help_panel=_START)(clustering.join)
app.add_typer(clustering.token, name="token", rich_help_panel=_START)
app.command(rich_help_panel=_START)(running.agent)
app.command(rich_help_panel=_START)(drain)
app.command(rich_help_panel=_START)(undrain)
app.command(rich_help_panel=_START)(remove)
app.command(rich_help_panel=_KEEP)(securing.revoke)
app.add_typer(securing.credential, name="credential", rich_help_panel=_KEEP)
app.add_typer(securing.ca, name="ca", rich_help_panel=_KEEP)
app.command(rich_help_panel=_USE)(deploying.deploy)
app.command(rich_help_panel=_USE)(deploying.undeploy)
app.command(rich_help_panel=_USE)(serving.infer)
app.command(rich_help_panel=_USE)(serving.bench)
app.command(rich_help_panel=_SEE)(asking.status)
app.command(rich_help_panel=_SEE)(asking.devices)
app.command(rich_help_panel=_SEE)(asking.models)
app.command(rich_help_panel=_SEE)(doctor)
app.command(rich_help_panel=_SEE)(plan)
app.command(rich_help_panel=_SEE)(trace)
app.command(rich_help_panel=_SEE)(check)
app.command(rich_help_panel=_START)(demo)


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script. Exits 0 when done, 1 when it failed, 2 on wrong usage."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(given)
    except EdgepartError as error:
        report(error, "--json" in given)
        sys.exit(exit_status(error))
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output has gone (`| head`); what Python still flushes goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
