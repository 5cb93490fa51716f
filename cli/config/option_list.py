"""Option: what a command's signature says about one of its options. The signature is the only list of options; the file of
options, its template and its tests are made from it. Rules: no door."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from typer.models import OptionInfo

ENVIRONMENT = "EDGEPART_"
"""The names of environment variables that stand for options begin with this."""
NOT_IN_FILES = ("config",)
"""The options that a file cannot hold: the one that names the file."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a command."""

    key: str
    """The name in the file; on the command line two dashes come before it."""
    parameter: str
    """The name of the function's parameter."""
    kind: type
    """The type of the value in the file: str, int, float, bool, or list (of texts) if the option can be repeated."""
    default: Any
    """None if the agent decides."""
    shown_default: str
    """What the agent takes if it decides; "" if there is a default."""
    metavar: str
    """What a value stands for, such as HOST:PORT; "" if the type says it."""
    help: str

    @property
    def variable(self) -> str:
        """The environment variable that stands for this option."""
        return ENVIRONMENT + self.parameter.upper()


def options_of(command: Callable[..., Any]) -> tuple[Option, ...]:
    """The options of a command, in the order of its signature, without those that a file cannot hold."""
    hints = get_type_hints(command, include_extras=True)
    found = []
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        # Python 3.10 takes a default of None for a hint, and puts `| None` around the annotation.
        outer = next((each for each in get_args(hint) if get_origin(each) is Annotated), hint)
        annotated, *extras = get_args(outer) or (outer,)
        infos = [extra for extra in extras if isinstance(extra, OptionInfo)]
        if infos and parameter.name not in NOT_IN_FILES:
            found.append(_option(parameter, annotated, infos[0]))
    return tuple(found)


def _option(parameter: inspect.Parameter, annotated: Any, info: OptionInfo) -> Option:
    return Option(
        parameter.name.replace("_", "-"),
        parameter.name,
        _kind(annotated),
        parameter.default,
        info.show_default if isinstance(info.show_default, str) else "",
        info.metavar or "",
        info.help or "",
    )


def _kind(annotated: Any) -> type:
    """The type in the file of a parameter that may also be None."""
    if get_origin(annotated) in (Union, types.UnionType):
        (annotated,) = (each for each in get_args(annotated) if each is not type(None))
    kind = get_origin(annotated) or annotated
    return str if kind is Path else kind
