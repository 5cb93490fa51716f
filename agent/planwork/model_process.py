"""Model process: does work on models in a process beside the agent, one piece at a time. Door: a process and a pipe.

The code that loads models takes 30 MB, and cutting weights touches files as large as the model: a resident agent should
keep neither in memory. The process is started when it is first needed. It ends when it has had no work for a while, or
when the agent ends and thereby closes the pipe.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from edgepart.agent.host.child_process import BESIDE_NICENESS, ChildProcess, start_child
from edgepart.agent.host.system import lower_priority
from edgepart.agent.storage.store import Source, Store
from edgepart.agent.text.companions import TOKENIZER, check_tokenizer, read_companions
from edgepart.agent.wire.inference import DeployOptions
from edgepart.planner.errors import EdgepartError, InternalError, ModelError, Unavailable, UsageError
from edgepart.planner.plans.plan import ValueInfo

if TYPE_CHECKING:
    from edgepart.planner.model.graph import Graph

log = logging.getLogger(__name__)

USUAL_CONTEXT = 2048
"""The most tokens of prompt and answer together if the user does not say: enough for a chat. Caches for all tokens that a
model was made for may take more memory than small devices have."""
BATCH = 4
"""Sequences in one request, at most. SmolLM2's step, with weights of 8 bits, takes twice as long for four as for one; with
more, a step of two takes longer too, and a token of eight is no cheaper than one of four."""
ROWS = 64
"""The rows (tokens) of a prompt that are read at once. With more, a prompt is hardly read faster on processors of small
devices; with fewer, more of its last rows are read one by one."""
IDLE_S = 20.0
"""Seconds without work after which the process ends. A longer time more often saves starting it again, which takes about
a second; a shorter one returns its memory sooner."""

P = ParamSpec("P")
T = TypeVar("T")


class ModelProcess:
    """Does work in the process for any thread; the caller waits for the answer."""

    def __init__(self) -> None:
        self._lock = Lock()
        """Guards the pipe: a thread holds this lock while its work is done."""
        self._life = Lock()
        """Guards starting and killing the process, because a process that is only half started cannot be killed."""
        self._process: ChildProcess | None = None
        self._pipe: Connection[Any, Any] | None = None
        self._stopped = False

    def do(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Call `work` in the process and return its result; the function, its arguments and the result are pickled.
        Raises what `work` raises, InternalError if that is an unexpected error, and Unavailable if the process ended
        before it had an answer."""
        with self._lock:
            for _ in range(2):  # The first process may just have ended because it had no work.
                pipe = self._ensure_running()
                try:
                    pipe.send((work, args, named))
                    done, result = pipe.recv()
                    break
                except (EOFError, OSError):
                    self._pipe = None
            else:
                raise Unavailable("the process that works on models ended before it had an answer")
        if not done:
            raise result
        answer: T = result
        return answer

    def stop(self) -> None:
        """Stop the work under way, and do none from now on."""
        with self._life:
            self._stopped = True
            if self._process is not None:
                self._process.kill()

    def _ensure_running(self) -> Connection[Any, Any]:
        with self._life:
            if self._stopped:
                raise Unavailable("this agent stops")
            if self._pipe is None:
                self._process, self._pipe = start_child(_work, name="edgepart-aside")
            return self._pipe


def _work(orders: Connection[Any, Any]) -> None:
    """Run the process: do work until none comes for IDLE_S, or the agent is gone."""
    lower_priority(BESIDE_NICENESS)
    try:
        while orders.poll(IDLE_S):
            work, args, named = orders.recv()
            try:
                answer = True, work(*args, **named)
            except (EdgepartError, OSError, MemoryError) as error:
                answer = False, error
            except Exception as error:
                log.exception("%s failed inside", work.__name__)
                answer = (
                    False,
                    InternalError(f"{work.__name__} failed inside ({error!r}); the log says where"),
                )
            orders.send(answer)
    except (EOFError, OSError):
        return


ModelEnds = tuple[tuple[ValueInfo, ...], tuple[ValueInfo, ...]]
"""The inputs that requests bring, and the outputs that answer them."""


def examine_model(
    path: Path, options: DeployOptions
) -> tuple[tuple[str, ...], tuple[Path, ...], DeployOptions, ModelEnds]:
    """Notes about a model, its files, the options with all that they leave open (the shapes that are assumed, the states,
    and the context of a language model), and its inputs and outputs. The files of a language model include those that say
    how text is made with it, from the model's folder. Raises ModelError and UsageError."""
    from edgepart.agent.planwork.batches import check_batches
    from edgepart.agent.verify.same_answer import tolerance_for
    from edgepart.planner.model.model_file import model_files
    from edgepart.planner.model.stateful import load_with_states
    from edgepart.planner.plans.model_ends import value_info

    notes, companions, context = _look_for_text(path, options)
    graph, assumed = load_with_states(path, options.shapes, options.states, context)
    check_batches(graph, options)
    prefill = batch = None
    if companions and context is not None:  # Only texts have steps of several rows.
        prefill, more = _look_for_blocks(path, options, graph, context)
        batch, further = _look_for_batches(path, options, graph, context)
        notes = (*notes, *more, *further)
    found = replace(
        options,
        prefill=None if prefill is None else {**options.shapes, **prefill},
        batch=batch,
        shapes={**options.shapes, **assumed},
        # Planning takes None as none, and agents of an earlier release can read that.
        states=tuple((state.output, state.input) for state in graph.states) or None,
        context=context,
        text=bool(companions),
        batch_tolerance=tolerance_for(graph) if options.batch_rows > 1 or batch is not None else None,
    )
    ends = (
        tuple(value_info(graph, name) for name in graph.request_inputs),
        tuple(value_info(graph, name) for name in graph.answer_outputs),
    )
    return (*notes, *graph.notes), (*model_files(path), *companions), found, ends


def _look_for_blocks(
    path: Path, options: DeployOptions, graph: Graph, context: int
) -> tuple[Mapping[str, tuple[int, ...]] | None, tuple[str, ...]]:
    """The shapes of steps that read a block of rows into the states of `graph`; None if there can be none. A note says why
    if the model does not take blocks, though its states would."""
    from edgepart.planner.model.context_shapes import context_of_block, load_with_context

    wide = context_of_block(graph, context, ROWS)
    if wide is None:
        return None, ()
    try:
        block, shapes = load_with_context(path, options.shapes, wide, ROWS)
        _check_states(block, graph)
    except ModelError as error:
        return None, (f"prompts are read token by token: {error}",)
    return shapes, ()


def _look_for_batches(
    path: Path, options: DeployOptions, graph: Graph, context: int
) -> tuple[dict[str, tuple[int, ...]] | None, tuple[str, ...]]:
    """The shapes of requests that make a step in each of several sequences, with the states of `graph`; None if there can
    be none. A note says why if the model does not take several, though its states would."""
    from edgepart.planner.model.context_shapes import load_with_context

    in_place = [state.in_place for state in graph.states]
    alike = bool(in_place) and (all(in_place) or all(state.grows is not None for state in graph.states))
    if not alike or options.sequences < 2 or options.shapes:
        return None, ()
    try:
        several, shapes = load_with_context(path, {}, context, batch=min(BATCH, options.sequences))
        _check_states(several, graph)
    except ModelError as error:
        return None, (f"texts at the same time are computed one after the other: {error}",)
    return shapes, ()


def _check_states(other: Graph, graph: Graph) -> None:
    """Raises ModelError if `other` keeps its states in another way than `graph` does."""
    if [one.in_place for one in other.states] != [one.in_place for one in graph.states]:
        why = next((note for note in other.notes if "written in place" in note), "its states differ")
        raise ModelError(f"{graph.name}: such steps cannot write states in place as single ones do: {why}")


def _look_for_text(
    path: Path, options: DeployOptions
) -> tuple[tuple[str, ...], tuple[Path, ...], int | None]:
    """Notes, the files beside a language model, and its context, which is USUAL_CONTEXT at most if the user does not say. A
    model without a tokenizer has no such files, and no context but the user's. Raises ModelError and UsageError."""
    folder = path.parent
    if not generates_text(path, folder, options):
        return (), (), options.context
    check_tokenizer(folder / TOKENIZER)  # Otherwise it would be the first chat that finds out.
    files = read_companions(folder)
    most, context = files.context or USUAL_CONTEXT, options.context
    if context is not None and files.context is not None and context > files.context:
        raise UsageError(
            f"--context {context}: the model was made for {files.context} tokens (prompt and answer together)"
        )
    notes = []
    if context is None:
        context = min(USUAL_CONTEXT, most)
        notes.append(
            f"prompt and answer may have {context} tokens together; --context TOKENS says another number"
        )
    return tuple(notes), tuple(folder / name for name in files.names), context


def generates_text(path: Path, folder: Path, options: DeployOptions) -> bool:
    """Whether the model is stored with the files in `folder` that say how text is made with it. Raises ModelError."""
    from edgepart.planner.model.context_shapes import has_growing_states

    return options.states is None and (folder / TOKENIZER).is_file() and has_growing_states(path)


def stored_digest(path: Path, companions: Sequence[Path], options: DeployOptions) -> str:
    """The digest by which the cluster knows the model in a file once it is deployed with these options. `companions` are
    the files beside it that say how text is made with it. Raises ModelError."""
    from edgepart.planner.model.digests import model_digest
    from edgepart.planner.model.model_file import model_files

    kept = companions if companions and generates_text(path, companions[0].parent, options) else ()
    return model_digest([*model_files(path), *kept])


def cut_weights(store: Path, wanted: Sequence[tuple[str, Source]]) -> None:
    """Make sure that the store in the folder `store` has these blobs: cut those that are missing from their models.
    Raises what Store.cut raises."""
    _open_store(store).cut(wanted)


@cache
def _open_store(store: Path) -> Store:
    return Store(store, alone=False)
