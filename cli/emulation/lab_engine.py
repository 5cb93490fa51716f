"""Makes a provider of ONNX Runtime that does not exist: the CPU's own under another name, with another speed and with
faults. sitecustomize.py puts it in; the product does not know about it.

EDGEPART_LAB_ENGINE=lab,lacks=MatMul|Softmax,conv=2,other=16 makes LabExecutionProvider, an engine named "lab":

    conv=2, other=16   runs of sessions with and without convolutions take that many times their CPU time, where the CPU's
                       own take EDGEPART_LAB_SLOW times theirs; without it, as long as the CPU's
    lacks=A|B          it leaves these operators to the CPU
    crashes=A          a run of a model with this operator ends the process; crashes=A@5 only the fifth run of each session,
                       and crashes=A@/FILE every run while there is that file
    hangs=A            the same, and the run does not end
    lies=A             the same, and the answer is wrong
    fails=A            the same, and the run raises an error
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

VARIABLE = "EDGEPART_LAB_ENGINE"
FAULTS = ("crashes", "hangs", "lies", "fails")
SPEEDS = ("conv", "other")
CPU = "CPUExecutionProvider"
HANGING_S = 1e6
NO_CPU = "session.disable_cpu_ep_fallback"
"""The option with which a session has all of its operators on its provider, or is not made."""


@dataclass(frozen=True)
class LabEngine:
    """The engine that the variable describes."""

    name: str
    lacks: frozenset[str] = frozenset()
    faults: dict[str, tuple[str, int | str]] = field(default_factory=dict)
    """By fault, the operator, and the number of the run (0 is every run) or the path of a file."""
    speeds: dict[str, float] = field(default_factory=dict)

    @property
    def provider(self) -> str:
        return f"{self.name[:1].upper()}{self.name[1:]}ExecutionProvider"

    def factor(self, operators: frozenset[str]) -> float | None:
        return self.speeds.get("conv" if "Conv" in operators else "other")


def engine_of(text: str) -> LabEngine:
    """Return the engine in the variable. Ends the process if it is invalid: a lab must not lack faults unnoticed."""
    name, *parts = text.split(",")
    lacks: frozenset[str] = frozenset()
    faults: dict[str, tuple[str, int | str]] = {}
    speeds: dict[str, float] = {}
    try:
        if not name.isalnum():
            raise ValueError(f"{name!r} is no name")
        for part in parts:
            key, _, value = part.partition("=")
            if key == "lacks":
                lacks = frozenset(value.split("|"))
            elif key in FAULTS:
                operator, _, run = value.partition("@")
                faults[key] = operator, run if run.startswith("/") else int(run or 0)
            elif key in SPEEDS:
                speeds[key] = float(value)
            else:
                raise ValueError(f"{key!r} is no property")
    except ValueError as error:
        sys.exit(f"{VARIABLE}={text!r}: {error}")
    return LabEngine(name, lacks, faults, speeds)


def add_provider(engine: LabEngine) -> Callable[[ModuleType], None]:
    """Return a change of the module onnxruntime, after which it offers the provider."""

    def change(module: ModuleType) -> None:
        offered = [engine.provider, *module.get_available_providers()]
        module.get_available_providers = lambda: offered  # type: ignore[attr-defined]

    return change


def make_sessions(engine: LabEngine) -> Callable[[ModuleType], None]:
    """Return a change of the module that defines InferenceSession, after which it makes sessions of the provider."""

    def change(module: ModuleType) -> None:
        session: Any = module.InferenceSession
        session.__init__ = _initialise(session.__init__, engine)
        session.get_provider_graph_assignment_info = lambda self: [_Assigned(CPU, self.lab_left)]
        session.get_providers = _providers(session.get_providers, engine)
        for name in ("run", "run_with_iobinding", "run_with_ortvaluevector"):
            setattr(session, name, _with_faults(getattr(session, name), engine, name))

    return change


def _initialise(initialise: Callable[..., None], engine: LabEngine) -> Callable[..., None]:
    def changed(
        self: Any, model: Any, sess_options: Any = None, providers: Any = None, *rest: Any, **more: Any
    ) -> None:
        names = [one[0] if isinstance(one, tuple) else one for one in providers or ()]
        if engine.provider not in names:
            initialise(self, model, sess_options, providers, *rest, **more)
            return
        nodes = _nodes(model)
        self.lab_operators = operators = frozenset(node.op_type for node in nodes)
        self.lab_left = [node for node in nodes if node.op_type in engine.lacks]
        if self.lab_left and sess_options.get_session_config_entry(NO_CPU) == "1":
            raise RuntimeError(f"nodes are assigned to the default CPU EP: {engine.provider} lacks them")
        sess_options.add_session_config_entry(NO_CPU, "0")
        self.lab_runs = 0
        if (factor := engine.factor(operators)) is not None:
            self.lab_factor = lambda: factor
        initialise(self, model, sess_options, [CPU], *rest, **more)

    return changed


def _nodes(model: Any) -> list[Any]:
    """The operators of a model, given by its path or its bytes."""
    import onnx

    if isinstance(model, bytes):
        proto = onnx.load_model_from_string(model)
    else:
        proto = onnx.load(os.fspath(model), load_external_data=False)
    return list(proto.graph.node)


@dataclass(frozen=True)
class _Assigned:
    """What ONNX Runtime tells of the operators on one provider."""

    ep_name: str
    nodes: list[Any]

    def get_nodes(self) -> list[Any]:
        return self.nodes


def _providers(known: Callable[..., list[str]], engine: LabEngine) -> Callable[..., list[str]]:
    return lambda self: [engine.provider, CPU] if hasattr(self, "lab_operators") else known(self)


def _with_faults(run: Callable[..., Any], engine: LabEngine, name: str) -> Callable[..., Any]:
    def faulty(self: Any, *args: Any, **options: Any) -> Any:
        operators = getattr(self, "lab_operators", None)
        if operators is None:
            return run(self, *args, **options)
        self.lab_runs += 1
        due = {
            fault
            for fault, (operator, when) in engine.faults.items()
            if operator in operators and _is_due(when, self.lab_runs)
        }
        if "crashes" in due:
            os.abort()
        if "hangs" in due:
            time.sleep(HANGING_S)
        if "fails" in due:
            raise RuntimeError(f"{engine.provider} failed on purpose")
        found = run(self, *args, **options)
        if "lies" in due:
            _spoil(found, args, name)
        return found

    return faulty


def _is_due(when: int | str, run: int) -> bool:
    return os.path.exists(when) if isinstance(when, str) else when in (0, run)


def _spoil(found: Any, args: tuple[Any, ...], name: str) -> None:
    """Make the answer wrong where it lies."""
    values = args[4] if name == "run_with_ortvaluevector" else found
    for value in values or ():
        array = value if hasattr(value, "dtype") else value.numpy()
        if array.dtype.kind == "f":
            array += 1
