"""What the training workers tell the driver, kept in a small Ray actor. Light: no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from configs.errors import ModelmillError, ResourceError
from tasks.errors import LASTING, unwritable

_PEER_SIGNS = ("gloo", "nccl", "connection closed", "connection reset", "broken pipe")


@dataclass(frozen=True)
class Failure:
    """A failure of a worker.

    Attributes:
        step: Optimiser steps that were done; -1: training had not begun.
        error: What was raised.
        trace: Its traceback on the worker.
        fatal: Trying again would end the same way.
    """

    step: int
    error: Exception
    trace: str
    fatal: bool


@dataclass(frozen=True)
class Snapshot:
    """How far the workers are.

    Attributes:
        step: Optimiser steps done.
        loss: Loss of the last one; None before the first.
        failure: The failure to report: the first fatal one, or else the last one.
        controller: Handle of Ray Train's controller, whose end is the end of the workers; None as
            long as it hasn't started.
        groups: Groups of workers that were placed and started so far.
    """

    step: int = 0
    loss: float | None = None
    failure: Failure | None = None
    controller: Any = None
    groups: int = 0


class Monitor:
    """The state of one `fit`, told by workers and controller, looked at by the driver."""

    def __init__(self) -> None:
        self._snapshot = Snapshot()
        self._seen: dict[tuple[int, str], int] = {}

    def controller_started(self, controller: Any) -> None:
        """Ray Train's controller is there."""
        self._snapshot = replace(self._snapshot, controller=controller)

    def group_started(self) -> None:
        """Rank 0 of a new group of workers is there."""
        self._snapshot = replace(self._snapshot, groups=self._snapshot.groups + 1)

    def stepped(self, step: int, loss: float) -> None:
        """Rank 0 has done a step."""
        self._snapshot = replace(self._snapshot, step=step, loss=loss)

    def failed(self, step: int, error: Exception, trace: str) -> None:
        """A worker has failed.

        A user's error is fatal at once, and so are a full disk and a bug before training begins;
        anything else when a second group of workers fails with it at the same step. What a lost
        peer causes in the others is never fatal: how often that is tried again is Ray's
        `max_failures`.
        """
        key = (step, f"{type(error).__name__}: {error}")
        group = self._snapshot.groups
        again = self._seen.setdefault(key, group) != group
        fatal = not _by_peer(error) and (again or _deterministic(step, error))
        earlier = self._snapshot.failure
        if earlier is None or not earlier.fatal:
            self._snapshot = replace(self._snapshot, failure=Failure(step, error, trace, fatal))

    def look(self) -> Snapshot:
        """How far it is."""
        return self._snapshot


def as_told(error: Exception, where: str) -> Exception:
    """A worker's error as the driver should hear of it; it has to survive pickling.

    Args:
        error: What was raised.
        where: Where the worker writes, for a disk that can't take any more.
    """
    import cloudpickle
    import torch

    if isinstance(error, torch.OutOfMemoryError):
        return ResourceError(
            f"the GPU's memory is full: {str(error).splitlines()[0]}",
            where="train.micro_batch_size",
            hint="lower it, or set train.gradient_checkpointing=true; neither changes the result",
            code="gpu_out_of_memory",
        )
    if not isinstance(error, ModelmillError):
        error = unwritable(error, where) or error
    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _deterministic(step: int, error: Exception) -> bool:
    if isinstance(error, ResourceError):
        return error.code in LASTING
    if isinstance(error, ModelmillError):
        return True
    return step < 0 and not isinstance(error, (OSError, RuntimeError))


def _by_peer(error: Exception) -> bool:
    text = str(error).lower()
    return not isinstance(error, ModelmillError) and any(sign in text for sign in _PEER_SIGNS)
