"""The options of a deployment as a description of the cluster has them: the names of `edgepart deploy`'s options, and plain
values. Rules: no door. Both directions use one table, so that what is exported can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edgepart.agent.options import parse_bytes, parse_delay
from edgepart.agent.wire.codec import json_record, read_json_record
from edgepart.agent.wire.inference import DeployOptions
from edgepart.planner.errors import FrameError, UsageError
from edgepart.planner.vocabulary import STRATEGIES, check_word


def _same(value: Any) -> Any:
    return value


def _read_bytes(value: Any) -> Any:
    return parse_bytes(value) if isinstance(value, str) else value


def _read_delay(value: Any) -> Any:
    return parse_delay(value, "batch-delay") if isinstance(value, str) else value


def _read_no_states(value: Any) -> Any:
    if value is not True:
        raise UsageError("only `true` can be said here; leave it out otherwise")
    return []


@dataclass(frozen=True)
class OptionKey:
    """An option's key in a description."""

    name: str
    field: str
    """The field of DeployOptions."""
    read: Callable[[Any], Any] = _same
    """Turns a value of a description into that of the field's JSON. Raises UsageError; what is not checked here is checked
    by the field's own bounds."""


KEYS: Mapping[str, OptionKey] = {
    key.name: key
    for key in (
        OptionKey("shape", "shapes"),
        OptionKey("objective", "objective"),
        OptionKey(
            "strategy", "strategy", lambda value: value if not isinstance(value, str) else _word(value)
        ),
        OptionKey("axis", "axis"),
        OptionKey("devices", "devices"),
        OptionKey("memory-limit", "memory_limit_bytes", _read_bytes),
        OptionKey("bindings", "bindings"),
        OptionKey("search-budget", "search_budget_s"),
        OptionKey("transfer-dtype", "transfer_dtype"),
        OptionKey("state-pair", "states"),
        OptionKey("no-states", "states", _read_no_states),
        OptionKey("context", "context"),
        OptionKey("sequences", "sequences"),
        OptionKey("mirror", "mirrors"),
        OptionKey("batch", "batch_rows"),
        OptionKey("batch-delay", "batch_delay_s", _read_delay),
        OptionKey("weights", "weights"),
        OptionKey("max-error", "max_error"),
        OptionKey("keep", "keep"),
    )
}
"""Every option that a user can give, by its key."""
FOUND = frozenset(("prefill", "batch", "text", "batch_tolerance", "quantised"))
"""The fields that no user gives: the agent that takes a model, or the client that sends it, finds their values."""


def _word(value: str) -> str:
    return check_word(value, STRATEGIES, "strategy")


def read_option(name: str, value: Any) -> Any:
    """The value of the option's field. Raises UsageError, without the place in the file."""
    key = KEYS[name]
    try:
        found = read_json_record(DeployOptions, {key.field: key.read(value)}, DeployOptions())
    except FrameError as error:
        raise UsageError(str(error).removeprefix(f"DeployOptions.{key.field}").lstrip(": ")) from error
    return getattr(found, key.field)


def write_options(options: DeployOptions) -> dict[str, Any]:
    """The keys and plain values of all options that are not the usual ones."""
    document, usual, found = json_record(options), DeployOptions(), {}
    for key in KEYS.values():
        value = getattr(options, key.field)
        if value != getattr(usual, key.field) and key.name == _name_of(key.field, value):
            found[key.name] = True if key.name == "no-states" else _plain(document[key.field])
    return found


def _name_of(field: str, value: Any) -> str:
    """The key that says this value of a field."""
    if field == "states":
        return "state-pair" if value else "no-states"
    return next(key.name for key in KEYS.values() if key.field == field)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
