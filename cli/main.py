"""The `edgepart` command: its subcommands, and how a failed one ends.

Commands import heavy modules (onnx, onnxruntime, numpy, aiohttp) only when they run, so that `--help` is instant.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from edgepart.cli import deployment, membership, security, status
from edgepart.cli.agent_command import agent
from edgepart.cli.bench import bench
from edgepart.cli.chat import chat
from edgepart.cli.check import check
from edgepart.cli.demo.command import demo
from edgepart.cli.describe import commands as describe
from edgepart.cli.doctor import doctor
from edgepart.cli.drain import drain, remove, undrain
from edgepart.cli.export import export
from edgepart.cli.feed.command import feed
from edgepart.cli.inference import infer
from edgepart.cli.output import FAILED, exit_status, print_error
from edgepart.cli.planning.plan_command import plan
from edgepart.cli.service.commands import service
from edgepart.cli.tracing.trace_command import trace
from edgepart.cli.train import train
from edgepart.cli.watching.events_command import events
from edgepart.cli.watching.logs_command import logs
from edgepart.cli.watching.top_command import top
from edgepart.planner.errors import EdgepartError

app = typer.Typer(
    name="edgepart",
    help="Runs any ONNX model on the small computers that you already have.\n\n"
    "Try `edgepart demo`, or: `edgepart init`, `edgepart agent`, and `edgepart deploy MODEL` from another terminal.",
    no_args_is_help=True,
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
    """Runs any ONNX model on the small computers that you already have."""


_START, _USE, _SEE, _KEEP = "Make a cluster", "Use it", "Look at it", "Secure it"

app.command(rich_help_panel=_START)(membership.init)
app.command(rich_help_panel=_START)(membership.join)
app.add_typer(membership.token, name="token", rich_help_panel=_START)
# An environment variable stands for each of its options: EDGEPART_HTTP for --http.
app.command(rich_help_panel=_START, context_settings={"auto_envvar_prefix": "EDGEPART"})(agent)
app.add_typer(service, name="service", rich_help_panel=_START)
app.command(rich_help_panel=_START)(drain)
app.command(rich_help_panel=_START)(undrain)
app.command(rich_help_panel=_START)(remove)
app.command(rich_help_panel=_KEEP)(security.revoke)
app.add_typer(security.credential, name="credential", rich_help_panel=_KEEP)
app.add_typer(security.ca, name="ca", rich_help_panel=_KEEP)
app.command(rich_help_panel=_USE)(deployment.deploy)
app.command(rich_help_panel=_USE)(deployment.share)
app.command(rich_help_panel=_USE)(deployment.promote)
app.command(rich_help_panel=_USE)(deployment.rollback)
app.command(rich_help_panel=_USE)(deployment.undeploy)
app.command(rich_help_panel=_USE)(describe.apply)
app.command(rich_help_panel=_USE)(describe.diff)
app.command(rich_help_panel=_USE)(export)
app.command(rich_help_panel=_USE)(infer)
app.command(rich_help_panel=_USE)(feed)
app.command(rich_help_panel=_USE)(chat)
app.command(rich_help_panel=_USE)(bench)
app.command(rich_help_panel=_SEE)(status.status)
app.command(rich_help_panel=_SEE)(status.devices)
app.command(rich_help_panel=_SEE)(status.models)
app.command(rich_help_panel=_SEE)(top)
app.command(rich_help_panel=_SEE)(events)
app.command(rich_help_panel=_SEE)(logs)
app.command(rich_help_panel=_SEE)(doctor)
app.command(rich_help_panel=_SEE)(plan)
app.command(rich_help_panel=_SEE)(train)
app.command(rich_help_panel=_SEE)(trace)
app.command(rich_help_panel=_SEE)(check)
app.command(rich_help_panel=_START)(demo)


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script. Exits with 0 on success, 1 on failure, 2 on wrong usage, and 3 if the work goes on."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(given)
    except EdgepartError as error:
        print_error(error, "--json" in given)
        sys.exit(exit_status(error))
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of the output has gone (`| head`); what Python still flushes goes to the null device.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
