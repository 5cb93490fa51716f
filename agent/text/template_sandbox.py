"""Template sandbox: the process that renders chat templates, from its start to its end. Door: a pipe, limits of the
process, jinja2.

Nothing here runs in the agent itself. What the process is asked is JSON, and what it answers is bytes.
"""

from __future__ import annotations

import json
import math
import resource
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Template

PROCESSOR_S = 2
"""Processor time that a template may take, in seconds: a thousand times what real ones take."""
MEMORY_BYTES = 256 << 20
"""What the process may take beside what it takes at its start."""
MOST_PROMPT_BYTES = 1 << 20
"""The longest text that is rendered."""
MOST_REASON_CHARACTERS = 500
TEMPLATES_KEPT = 8
"""Compiled templates that the process keeps."""

READY, TEXT, REFUSAL = b"r", b"t", b"n"
"""The first byte of what the process says."""


def serve(orders: Connection[Any, Any], idle_s: float) -> None:
    """Run the process: render until nothing is asked for `idle_s`, or the agent is gone."""
    compiled = compiler()
    limit_own_process()
    try:
        orders.send_bytes(READY)
        while orders.poll(idle_s):
            order = json.loads(orders.recv_bytes())
            _allow_processor_time()
            orders.send_bytes(answer(compiled, order))
    except (EOFError, OSError):
        return


def compiler() -> Callable[[str], Template]:
    """Return a function that compiles a template, each only once."""
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _generation_blocks()]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    return lru_cache(TEMPLATES_KEPT)(environment.from_string)


def _generation_blocks() -> Any:
    """Return an extension for `{% generation %}`, with which templates mark what a model answers, for its training. It
    changes no text."""
    from jinja2.ext import Extension

    class GenerationBlocks(Extension):
        tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return GenerationBlocks


class _Refused(Exception):
    """The template called `raise_exception`."""


def _refuse(message: object) -> None:
    raise _Refused(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike jinja2's own filter, this leaves the letters of HTML and of other languages as they are."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def limit_own_process() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _lower(resource.RLIMIT_AS, pages * resource.getpagesize() + MEMORY_BYTES)
    _lower(resource.RLIMIT_FSIZE, 0)
    _lower(resource.RLIMIT_CORE, 0)


def _lower(kind: int, limit: int) -> None:
    _, hard = resource.getrlimit(kind)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (limit, limit))


def _allow_processor_time() -> None:
    """Let the system end this process if it takes more than PROCESSOR_S from now on."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    limit = math.ceil(used.ru_utime + used.ru_stime) + PROCESSOR_S
    resource.setrlimit(
        resource.RLIMIT_CPU, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard)
    )


def answer(compiled: Callable[[str], Template], order: Mapping[str, Any]) -> bytes:
    now = datetime.fromisoformat(order["now"])
    try:
        return TEXT + _rendered(
            compiled(order["template"]), {**order["values"], "strftime_now": partial(_format_time, now)}
        )
    except Exception as error:  # noqa: BLE001 - a stranger's program may raise anything, and its text is the answer
        return REFUSAL + _reason(error)[:MOST_REASON_CHARACTERS].encode(errors="replace")


def _reason(error: Exception) -> str:
    match error:
        case _Refused():
            return str(error)
        case MemoryError():
            return f"it needs more than {MEMORY_BYTES} bytes of memory"
        case _:
            line = getattr(error, "lineno", None)
            where = f" (line {line})" if line is not None else ""
            return f"{type(error).__name__}: {str(error).removesuffix('.')}{where}"


def _format_time(now: datetime, form: str) -> str:
    return now.strftime(form)


def _rendered(template: Template, values: Mapping[str, Any]) -> bytes:
    pieces, characters = [], 0
    for piece in template.generate(values):
        characters += len(piece)
        if characters > MOST_PROMPT_BYTES:
            raise _Refused(f"the text is longer than {MOST_PROMPT_BYTES} bytes")
        pieces.append(piece)
    text = "".join(pieces).encode()
    if len(text) > MOST_PROMPT_BYTES:
        raise _Refused(f"the text is longer than {MOST_PROMPT_BYTES} bytes")
    return text
