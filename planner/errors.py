"""All errors of edgepart, one small tree parted by who can act. Each says what was wrong, where, what to do, and
what has (not) changed; the facts are attributes as well.

    EdgepartError
      UserError          the user's input: a model, an option, a request
        ModelError         the model file cannot be used; nothing was stored
        RequestError       an inference request does not fit the model; nothing was run
        UsageError         an option or argument is wrong; nothing was changed
          NotInstalled       it needs an extra of the package that is not there
          Removed            this device was removed from its cluster; it may join anew
      ClusterError       the cluster, as it is now, cannot do it: give it devices, memory or time
        Infeasible         no plan fits
        Unavailable        nobody serves that now; try again later
        StillGoing         it was begun and goes on, but was not done in time
        WorkerDied         the process that computed it ended; another try may end another one
      RunError           a device could not compute a request, though its inputs fit the model
        CrashError         a model or a request ends the process that computes it; it is not tried again
      PeerError          another box broke the protocol, or may not do what it asked; its connection is closed
        FrameError         bytes that are no frame, or one over its limits
        NotAuthorised      no valid certificate, token or credential
      InternalError      our own fault: a broken rule of a plan, a state that must not be
"""

from __future__ import annotations

from collections.abc import Mapping


class EdgepartError(Exception):
    """What was wrong, where and what to do, in one or two sentences."""


class UserError(EdgepartError):
    """The user's input is at fault."""


class ModelError(UserError):
    """The model cannot be used. Nothing was stored."""


class RequestError(UserError):
    """The request does not fit the model. Nothing was run."""


class UnknownDeployment(RequestError):
    """Nothing of that name is deployed. Nothing was run."""


class UsageError(UserError):
    """An option or argument is wrong. Nothing was changed."""


class NotInstalled(UsageError):
    """What was asked for needs an extra of the package that is not installed here."""


class Removed(UsageError):
    """This device was removed from its cluster."""

    exit_status = 4
    """Of an agent; systemd does not start it again."""


class ClusterError(EdgepartError):
    """The cluster as it is now cannot do it."""


class Infeasible(ClusterError):
    """No plan fits: give it devices or memory. Nothing was deployed."""

    def __init__(self, message: str, short_bytes: Mapping[str, int] | None = None) -> None:
        super().__init__(message)
        self.short_bytes: dict[str, int] = dict(short_bytes or {})
        """Per device, the bytes that are missing."""


class Unavailable(ClusterError):
    """Nobody serves that now. The request was not accepted; try again after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class StillGoing(ClusterError):
    """It was begun and goes on; only the time to wait for it is over."""


class WorkerDied(ClusterError):
    """The process that computed it ended. Nothing else was harmed."""


class RunError(EdgepartError):
    """A device could not compute a request, though its inputs fit the model."""


class CrashError(RunError):
    """A model or a request that ends the process that computes it. It is not tried again."""


class PeerError(EdgepartError):
    """Another box broke the protocol."""


class FrameError(PeerError):
    """Bytes that are no frame, or one over its limits."""


class NotAuthorised(PeerError):
    """No valid certificate, token or credential."""


class InternalError(EdgepartError):
    """Our own fault; please report it."""
