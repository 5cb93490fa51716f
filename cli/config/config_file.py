"""The file of options: reads it, and gives its values to the command line, which ranks them below the environment's and
above the defaults. Door: reads the file."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from edgepart.cli.config.option_list import Option
from edgepart.planner.errors import UsageError

MOST_BYTES = 1 << 20
"""A larger file is no file of options."""
EXPECTED = {
    str: 'a text, such as key = "value"',
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: 'a list of texts, such as key = ["one", "two"]',
}
FROM_FILE, FROM_ENVIRONMENT = "DEFAULT_MAP", "ENVIRONMENT"
"""What typer calls the sources of a value."""


def read(path: Path, options: Sequence[Option]) -> dict[str, Any]:
    """The values in the file, by the names of the command's parameters. Raises UsageError if it cannot be read, or holds
    something that is no option, or a value of another type."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(
                f"--config {path}: has more than {MOST_BYTES >> 20} MiB, and is no file of options"
            )
        text = path.read_text("utf-8")
        document = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"--config {path}: cannot be read ({error.strerror})") from error
    except ValueError as error:  # no TOML, or not UTF-8
        raise UsageError(f"{path}: is no TOML: {error}") from error
    known = {option.key: option for option in options}
    values = {}
    for key, value in document.items():
        if key not in known:
            raise UsageError(f"{_place(path, text, key)}: {_unknown(key, value, known)}")
        if not _fits(value, known[key].kind):
            expected = EXPECTED[known[key].kind].replace("key", key)
            raise UsageError(f"{_place(path, text, key)}: {key} is {_named(value)}; give {expected}")
        values[known[key].parameter] = value
    return values


def _unknown(key: str, value: Any, known: Mapping[str, Option]) -> str:
    if isinstance(value, dict):
        return f"[{key}] begins a table; the options stand in no table"
    near = difflib.get_close_matches(key, known, 1)
    return f"there is no option {key!r}; " + (
        f"did you mean {near[0]}?" if near else f"the options are {', '.join(known)}"
    )


def _fits(value: Any, kind: type) -> bool:
    if kind is list:
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind  # True is no number here


def _named(value: Any) -> str:
    names = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", list: "a list"}
    return names.get(type(value), "a table" if isinstance(value, dict) else "a date or a time")


def _place(path: Path, text: str, key: str) -> str:
    """The file, and the line where the key seems to stand; TOML's reader does not tell lines."""
    line = re.compile(rf"""^[ \t]*(?:\[[ \t]*)?["']?{re.escape(key)}["']?[ \t]*[=.\]]""", re.MULTILINE)
    if (found := line.search(text)) is None:
        return str(path)
    return f"{path}, line {text.count(chr(10), 0, found.start()) + 1}"


def load(context: typer.Context, path: Path | None, options: Sequence[Option]) -> Path | None:
    """Give the command the values in the file as its defaults, before it reads any other option."""
    if path is not None:
        context.default_map = read(path, options)
    return path


def located(
    error: UsageError, context: typer.Context, config: Path | None, options: Sequence[Option]
) -> UsageError:
    """The error, with the file or the variable that holds the option which the message names first; the same error if the
    command line holds it."""
    named = re.match(r"--([a-z-]+)", str(error))
    option = next((each for each in options if named and each.key == named[1]), None)
    source = context.get_parameter_source(option.parameter) if option else None
    if option is None or source is None:
        return error
    if source.name == FROM_FILE and config is not None:
        return type(error)(f"{_place(config, config.read_text('utf-8'), option.key)}: {error}")
    if source.name == FROM_ENVIRONMENT:
        return type(error)(f"{option.variable}: {error}")
    return error
