"""Choice: which engines an agent tries, of what the installed ONNX Runtime offers and the user asks for. Rules, without
ONNX Runtime: the names of its providers are an argument."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from edgepart.agent.engines.catalogue import (
    CPU,
    CPU_PROVIDER,
    FLOAT32,
    KINDS,
    NEVER,
    EngineKind,
    kind_of,
    own_name,
)
from edgepart.planner.errors import UsageError

AUTO = "auto"
"""The value of `--providers` that tries every engine that computes as exactly as the CPU."""


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The engines that are to be tried, and why others are not."""

    tried: tuple[EngineKind, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Why an engine or a provider is left out, by its name. Those of which no engine is ever made are not named."""


def parse_providers(text: str, *, option: str = "--providers") -> tuple[str, ...]:
    """The names in a list such as "auto", "cpu" or "openvino,cuda". Raises UsageError, which names `option`.

    >>> parse_providers("openvino, cuda")
    ('openvino', 'cuda')
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{0,40}", name):
            raise UsageError(
                f"{option} {text!r}: give {AUTO}, {CPU}, or names with commas between them, such as openvino,cuda"
            )
    if AUTO in names and len(names) > 1:
        raise UsageError(f"{option} {text!r}: {AUTO} stands alone, as it tries everything that is there")
    return names


def choose(names: Sequence[str], available: Collection[str]) -> EngineChoice:
    """The engines to try for the option's `names`, of the providers that are `available`. Raises UsageError, which says
    what to install, if one is named that is not available."""
    if tuple(names) == (AUTO,):
        return _choose_all(available)
    tried: dict[str, EngineKind] = {}
    for name in names:
        for kind in _named(name):
            _require(kind, name, available)
            tried[kind.name] = kind
    return EngineChoice(tuple(tried.values()))


def _choose_all(available: Collection[str]) -> EngineChoice:
    left_out: dict[str, str] = {}
    tried = []
    for kind in KINDS:
        if kind.provider not in available:
            continue
        if kind.precision == FLOAT32:
            tried.append(kind)
        else:
            left_out[kind.name] = f"it computes in {kind.precision}; name it with --providers to have it"
    known = {kind.provider for kind in KINDS} | {*NEVER, CPU_PROVIDER}
    for provider in sorted({*available} - known):
        name = own_name(provider)
        left_out[name] = f"nothing is known of {provider}; name it with --providers {name} to have it tried"
    return EngineChoice(tuple(tried), left_out)


def _named(name: str) -> list[EngineKind]:
    """The engines that a name in the option stands for: one engine, or those of a family that round nothing."""
    if name == CPU:
        return []
    exact = [kind for kind in KINDS if kind.name == name]
    family = [kind for kind in KINDS if kind.name.startswith(f"{name}-") and kind.precision == FLOAT32]
    return exact or family or [kind_of(name)]


def _require(kind: EngineKind, name: str, available: Collection[str]) -> None:
    if kind.provider in NEVER:
        raise UsageError(
            f"--providers {name}: no engine is made of {kind.provider}, because {NEVER[kind.provider]}"
        )
    if kind.provider in available:
        return
    here = ", ".join([CPU, *(one.name for one in KINDS if one.provider in available)])
    remedy = f"to have it: {kind.install}" if kind.install else f"ONNX Runtime calls it {kind.provider}"
    raise UsageError(
        f"--providers {name}: the onnxruntime that is installed here has no {kind.provider} (it has {here}); {remedy}"
    )
