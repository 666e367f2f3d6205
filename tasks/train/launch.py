"""Starts the training workers, watches them, and ends them when the run shall stop."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import RayError
from ray.train import ControllerError, FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.execution.callback import ControllerCallback

from configs.compute import ComputeConfig
from configs.errors import ModelmillError, ResourceError
from tasks.errors import is_loss, ray_errors, unwritable
from tasks.stage import Context
from tasks.train.monitor import Failure, Monitor, Snapshot
from tasks.train.worker import TrainJob, train_loop

_POLL_SECONDS = 0.2
_ANSWER_SECONDS = 30.0
_PLACING_SECONDS = 60.0
# Ray polls its workers every 2 s by default, and a report waits for the poll.
_HEALTH_CHECK_SECONDS = "0.25"


class _TellController(ControllerCallback):
    """Runs in Ray Train's controller: gives the driver a handle to it, which Ray itself doesn't."""

    def __init__(self, monitor: Any) -> None:
        self._monitor = monitor

    def after_controller_start(self, train_run_context: Any) -> None:
        own: Any = ray.get_runtime_context().current_actor
        ray.get(self._monitor.controller_started.remote(own))


def start_monitor() -> Any:
    """A handle of a new `Monitor` actor; it ends with this process."""
    return ray.remote(num_cpus=0)(Monitor).remote()


@ray_errors()
def launch(job: TrainJob, context: Context) -> None:
    """Trains to the last step, with lost workers started again.

    `fit()` runs in a thread of its own: in the main thread, it would keep SIGTERM and Ctrl-C from
    being acted on. When this function ends, in whatever way, no worker is left.

    Raises:
        ModelmillError: The run was stopped (`stopped`), or the workers fail in a way that a user
            can mend.
        ResourceError: Workers were lost more than `compute.max_failures` times (`workers_lost`), or
            what watches over them was (`worker_lost`).
    """
    monitor = job.monitor
    fit = _Fit(_trainer(job))
    fit.start()
    try:
        while fit.is_alive():
            _look(fit, job, context)
            if context.stop.wait(_POLL_SECONDS):
                raise ModelmillError(
                    "training was stopped",
                    hint="run the same command again to go on from the newest checkpoint",
                    code="stopped",
                )
        if fit.error is not None:
            full = unwritable(fit.error, job.output.location.uri)
            raise _explained(full or fit.error, _snapshot(monitor).failure)
        _look(fit, job, context)
    finally:
        _end_workers(monitor, fit, job.experiment.compute.grace_seconds)


class _Fit(threading.Thread):
    def __init__(self, trainer: TorchTrainer) -> None:
        super().__init__(name="fit", daemon=True)
        self._trainer = trainer
        self.error: Exception | None = None
        self.controller: Any = None
        self.began = time.monotonic()

    def run(self) -> None:
        try:
            self._trainer.fit()
        except Exception as error:
            self.error = error


def _trainer(job: TrainJob) -> TorchTrainer:
    compute = job.experiment.compute
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", _HEALTH_CHECK_SECONDS)
    filesystem, path = job.output.location.join("ray").arrow()
    return TorchTrainer(
        train_loop,
        train_loop_config={"job": job},
        scaling_config=_scaling(compute, use_gpu=job.use_gpu),
        run_config=RunConfig(
            # Ray looks for its own snapshot under this name; a fresh one has none.
            name=f"fit-{secrets.token_hex(4)}",
            storage_path=path,
            storage_filesystem=filesystem,
            failure_config=FailureConfig(max_failures=compute.max_failures),
            callbacks=[_TellController(job.monitor)],  # pyright: ignore[reportArgumentType]
        ),
    )


def _scaling(compute: ComputeConfig, *, use_gpu: bool) -> ScalingConfig:
    return ScalingConfig(
        num_workers=compute.num_workers,
        use_gpu=use_gpu,
        resources_per_worker=dict(compute.resources_per_worker),
    )


def _look(fit: _Fit, job: TrainJob, context: Context) -> None:
    """Passes on how far it is, and raises the error of workers that would fail again."""
    snapshot = _snapshot(job.monitor)
    # Kept here, because the monitor may be what is lost.
    fit.controller = snapshot.controller
    note = _note(snapshot, job, seconds=time.monotonic() - fit.began)
    context.progress.update("train", snapshot.step, job.num_steps, note)
    if snapshot.failure is not None and snapshot.failure.fatal:
        raise _explained(snapshot.failure.error, snapshot.failure)


def _note(snapshot: Snapshot, job: TrainJob, *, seconds: float) -> str:
    if snapshot.loss is not None:
        return f"loss {snapshot.loss:.4f}"
    short = ""
    if snapshot.groups == 0 and seconds > _PLACING_SECONDS:
        compute = job.experiment.compute
        gpu = {"GPU": 1.0} if job.use_gpu else {}
        demand = gpu | compute.resources_per_worker
        short = shortage(demand, compute.num_workers, ray.available_resources())
    return short or "starting workers"


def shortage(demand: dict[str, float], num_workers: int, free: Mapping[str, float]) -> str:
    """What workers wait for on a busy cluster; empty if the cluster as a whole has enough free.

    Args:
        demand: Resources of one worker.
        num_workers: Workers to place.
        free: What nobody uses, of the whole cluster.
    """
    needed = {name: amount * num_workers for name, amount in demand.items()}
    short = [name for name in needed if needed[name] > free.get(name, 0.0)]
    if not short:
        return ""
    wanted = ", ".join(f"{needed[name]:g} {name}" for name in short)
    there = ", ".join(f"{free.get(name, 0.0):g} {name}" for name in short)
    return f"waiting for {wanted}; {there} are free"


def _snapshot(monitor: Any) -> Snapshot:
    answer: Any = ray.get(monitor.look.remote(), timeout=_ANSWER_SECONDS)
    return answer


def _explained(error: Exception, failure: Failure | None) -> Exception:
    """The error to raise: the worker's own if it is a user's, otherwise one that says what fell."""
    if failure is not None and isinstance(failure.error, ModelmillError):
        return failure.error
    if failure is not None and failure.fatal:
        failure.error.add_note(failure.trace)
        return failure.error
    if isinstance(error, ControllerError) and is_loss(error.controller_failure):
        return error.controller_failure
    if not isinstance(error, WorkerGroupError):
        return error
    last = f": {type(failure.error).__name__}: {failure.error}" if failure is not None else ""
    lost = ResourceError(
        f"training workers were lost again and again{last}",
        where="compute.max_failures",
        hint="the memory may not suffice; run the same command again to go on from the newest "
        "checkpoint",
        code="workers_lost",
    )
    lost.__cause__ = error
    return lost


def _end_workers(monitor: Any, fit: _Fit, grace_seconds: float) -> None:
    """Ends Ray Train's controller, and with it the workers that it owns, unless all is done."""
    deadline = time.monotonic() + grace_seconds
    with contextlib.suppress(RayError):
        while fit.is_alive() and time.monotonic() < deadline:
            controller = fit.controller or _snapshot(monitor).controller
            if controller is not None:
                ray.kill(controller)
                break
            # It is just being started: without its handle its workers would come to life later.
            fit.join(timeout=_POLL_SECONDS)
    fit.join(timeout=max(0.0, deadline - time.monotonic()))
