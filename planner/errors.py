"""All errors of edgepart: one small tree, divided by who can act on them. Each message says what was wrong, where, what
to do, and what has (not) changed. Facts that callers need are attributes as well.

    EdgepartError
      UserError          the user's input: a model, an option, a request
        ModelError         the model file cannot be used; nothing was stored
          NotInPlace         its states cannot be written in place; it can be used as it is
        RequestError       an inference request does not fit the model; nothing was run
          UnknownDeployment  no deployment has that name; nothing was run
          ContextExceeded    a prompt does not fit the model's context; nothing was run
        UsageError         an option or argument is wrong; nothing was changed
          NotInstalled       the command needs an extra of the package that is not installed
          Removed            this device was removed from its cluster; it may join again
      ClusterError       the cluster cannot do what was asked: give it devices, memory or time
        Infeasible         no plan fits
        Unavailable        no device serves the request now; try again later
        DeadlinePassed     an accepted request was not answered in time
        StillGoing         the operation was started and continues, but was not done in time
        StateLost          the states of a sequence are gone; its steps have to be made again from the first
        WorkerDied         the worker that computed the request ended; a retry may end another worker
      HostError          the operating system of this machine did not do what was needed
      RunError           a device could not compute a request, though its inputs fit the model
        CrashError         a model or a request ends the worker that computes it; it is not tried again
      PeerError          another device broke the protocol, or asked for what it may not do; its connection is closed
        FrameError         bytes that are not a frame, or a frame over its limits
        NotAuthorised      no valid certificate, token or credential
      InternalError      a fault of edgepart itself: a broken rule of a plan, a state that must not occur
"""

from __future__ import annotations

from collections.abc import Mapping


class EdgepartError(Exception):
    """The base of all errors. The message says in one or two sentences what was wrong, where, and what to do."""


class UserError(EdgepartError):
    """The user's input is at fault."""


class ModelError(UserError):
    """The model cannot be used. Nothing was stored."""


class NotInPlace(ModelError):
    """It is not sure that a model says the same if its states are written in place, and the message says why not. It can be
    used as it is."""


class RequestError(UserError):
    """The request does not fit the model. Nothing was run."""


class UnknownDeployment(RequestError):
    """No deployment has that name. Nothing was run."""


class ContextExceeded(RequestError):
    """The prompt, with the tokens that were asked for, does not fit the model's context. Nothing was run."""


class UsageError(UserError):
    """An option or argument is wrong. Nothing was changed."""


class NotInstalled(UsageError):
    """The command needs an extra of the package that is not installed here."""


class Removed(UsageError):
    """This device was removed from its cluster."""

    exit_status = 4
    """The exit status of the agent; systemd does not start an agent again after it."""


class ClusterError(EdgepartError):
    """In its present state, the cluster cannot do what was asked."""


class Infeasible(ClusterError):
    """No plan that fits was found: the cluster needs more devices or memory. Nothing was deployed."""

    def __init__(
        self, message: str, short_bytes: Mapping[str, int] | None = None, *, proven: bool = False
    ) -> None:
        super().__init__(message)
        self.short_bytes: dict[str, int] = dict(short_bytes or {})
        """Missing memory by device, in bytes."""
        self.proven = proven
        """Whether no plan that was asked for can fit. If not, none was found."""


class Unavailable(ClusterError):
    """No device serves the request now. It was not accepted; try again after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlinePassed(ClusterError):
    """A request was accepted, but not answered before its deadline. Nothing else was changed."""


class StillGoing(ClusterError):
    """The operation was started and continues; only the caller's waiting time is over."""


class StateLost(ClusterError):
    """A device does not have the states with which a step of a sequence begins. The step was not run; the sequence has to
    be made again from its first step."""


class WorkerDied(ClusterError):
    """The worker that computed the request ended. Nothing else was harmed."""


class HostError(EdgepartError):
    """The operating system of this machine did not do what was needed. What had been done before is undone."""


class RunError(EdgepartError):
    """A device could not compute a request, though its inputs fit the model."""


class CrashError(RunError):
    """A model or a request ends the worker that computes it. It is not tried again."""


class PeerError(EdgepartError):
    """Another device broke the protocol."""


class FrameError(PeerError):
    """The bytes are not a frame, or the frame is over its limits."""


class NotAuthorised(PeerError):
    """The peer has no valid certificate, token or credential."""


class InternalError(EdgepartError):
    """A fault of edgepart itself; please report it."""
