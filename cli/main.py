"""The `edgepart` command: its subcommands, and how a failed one ends.

Commands import heavy modules (onnx, onnxruntime, numpy, aiohttp) only when they run, so that `--help` is instant.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from edgepart.cli.output import FAILED, exit_status, print_error
from edgepart.planner.errors import EdgepartError

_START, _USE, _SEE, _KEEP = "Make a cluster", "Use it", "Look at it", "Secure it"
COMMANDS = {
    "init": _START,
    "join": _START,
    "agent": _START,
    "drain": _START,
    "undrain": _START,
    "remove": _START,
    "revoke": _KEEP,
    "deploy": _USE,
    "share": _USE,
    "promote": _USE,
    "rollback": _USE,
    "undeploy": _USE,
    "apply": _USE,
    "diff": _USE,
    "export": _USE,
    "infer": _USE,
    "feed": _USE,
    "chat": _USE,
    "bench": _USE,
    "status": _SEE,
    "devices": _SEE,
    "models": _SEE,
    "top": _SEE,
    "events": _SEE,
    "logs": _SEE,
    "doctor": _SEE,
    "plan": _SEE,
    "train": _SEE,
    "trace": _SEE,
    "check": _SEE,
    "demo": _START,
    "token": _START,
    "service": _START,
    "credential": _KEEP,
    "ca": _KEEP,
}
"""The commands in the order in which help shows them, each with its panel."""
SETTINGS = {"agent": {"auto_envvar_prefix": "EDGEPART"}}
"""Settings of commands. An environment variable stands for each option of the agent: EDGEPART_HTTP for --http."""


class CommandGroup(TyperGroup):
    """The commands, of which each is imported when it is asked for: all of them take half a second, which a start of the
    agent on a small box pays several times over."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.commands:
            self.commands[cmd_name] = _read_command(cmd_name)
        return self.commands[cmd_name]


def _module_of(name: str) -> ModuleType:
    """The module of a command, imported now. In it, the function or the Typer of the command has the command's name."""
    found: ModuleType
    match name:
        case "init" | "join" | "token":
            from edgepart.cli import membership as found
        case "agent":
            from edgepart.cli import agent_command as found
        case "drain" | "undrain" | "remove":
            from edgepart.cli import drain as found
        case "revoke" | "credential" | "ca":
            from edgepart.cli import security as found
        case "deploy" | "share" | "promote" | "rollback" | "undeploy":
            from edgepart.cli import deployment as found
        case "apply" | "diff":
            from edgepart.cli.describe import commands as found
        case "export":
            from edgepart.cli import export as found
        case "infer":
            from edgepart.cli import inference as found
        case "feed":
            from edgepart.cli.feed import command as found
        case "chat":
            from edgepart.cli import chat as found
        case "bench":
            from edgepart.cli import bench as found
        case "status" | "devices" | "models":
            from edgepart.cli import status as found
        case "top":
            from edgepart.cli.watching import top_command as found
        case "events":
            from edgepart.cli.watching import events_command as found
        case "logs":
            from edgepart.cli.watching import logs_command as found
        case "doctor":
            from edgepart.cli import doctor as found
        case "plan":
            from edgepart.cli.planning import plan_command as found
        case "train":
            from edgepart.cli import train as found
        case "trace":
            from edgepart.cli.tracing import trace_command as found
        case "check":
            from edgepart.cli import check as found
        case "demo":
            from edgepart.cli.demo import command as found
        case "service":
            from edgepart.cli.service import commands as found
    return found


def _read_command(name: str) -> Any:
    """The command of that name; its module is imported."""
    found, panel = getattr(_module_of(name), name), COMMANDS[name]
    holder = typer.Typer(add_completion=False, callback=lambda: None)
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name, rich_help_panel=panel)
    else:
        holder.command(name, rich_help_panel=panel, context_settings=SETTINGS.get(name))(found)
    group: Any = typer.main.get_command(holder)
    return group.commands[name]


app = typer.Typer(
    cls=CommandGroup,
    name="edgepart",
    help="Runs any ONNX model on the small computers that you already have.\n\n"
    "Try `edgepart demo`, or: `edgepart init`, `edgepart agent`, and `edgepart deploy MODEL` from another terminal.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from edgepart import __version__  # Looked up when it is first imported, which takes a while.

        typer.echo(f"edgepart {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Runs any ONNX model on the small computers that you already have."""


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
